"""Advice: given where a key would help, once, and not for a first slow reading."""

import logging

import pytest

from dlrm_app.training.instruments.bottleneck import Adviser, advise, largest_part
from tests.plain_training import compose_train

EVEN = {"mlps": 10.0, "mlps_backward": 20.0, "lookup": 2.0, "table_update": 3.0}


@pytest.mark.parametrize(
    ("step_ms", "overrides", "num_ranks", "key"),
    [
        ({**EVEN, "data": 20.0}, [], 1, "data.prefetch_batches"),
        ({**EVEN, "output_dist": 30.0}, ["trainer.pipeline=base"], 2, "trainer.pipeline=sparse_dist"),
        ({**EVEN, "gradient_exchange": 30.0}, [], 2, "sharding.collectives.forward=bf16"),
        ({**EVEN, "table_update": 60.0}, ["optimizer=adagrad"], 1, "optimizer=rowwise_adagrad"),
        ({**EVEN, "optimizer": 30.0}, [], 1, "trainer.global_batch_size"),
    ],
)
def test_the_key_that_would_help_is_named(
    step_ms: dict[str, float], overrides: list[str], num_ranks: int, key: str
) -> None:
    advice = advise(step_ms, compose_train(*overrides), num_ranks)
    assert advice is not None
    assert key in advice


@pytest.mark.parametrize(
    ("step_ms", "overrides"),
    [
        (EVEN, []),
        ({}, []),
        ({**EVEN, "output_dist": 30.0}, []),  # one rank exchanges nothing
        ({**EVEN, "table_update": 60.0}, ["optimizer=rowwise_adagrad"]),
    ],
)
def test_where_no_key_would_help_there_is_no_advice(step_ms: dict[str, float], overrides: list[str]) -> None:
    assert advise(step_ms, compose_train(*overrides), 1) is None


def test_advice_is_given_once_and_not_for_one_reading(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    adviser = Adviser(compose_train(), 1)
    adviser.look_at({**EVEN, "data": 50.0})
    adviser.look_at(EVEN)
    assert caplog.messages == []
    for waited in (20.0, 30.0, 40.0):
        adviser.look_at({**EVEN, "data": waited})
    (said,) = caplog.messages
    assert "46% of a step waits for batches" in said


def test_the_largest_part_is_named_with_its_share() -> None:
    assert largest_part({"mlps": 1.0, "mlps_backward": 3.0}) == "MLPs backward 75%"
    assert largest_part({}) == ""
