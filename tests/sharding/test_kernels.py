"""Which tables take the dense kernel, and what is refused of a table's optimizer before work starts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dlrm_app.config.optimizer import SparseSettings
from dlrm_app.config.sharding import ShardingConfig
from dlrm_app.sharding.kernels import dense_kernel_tables, log_dense_kernel, table_problems
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS
from dlrm_app.tables.specs import Table
from tests.random_batches import TABLES


def dense(tables: Sequence[Table], settings: SparseSettings, device: str) -> set[str]:
    return set(dense_kernel_tables(tables, settings, ShardingConfig(), device))


def problems(
    tables: Sequence[Table], types: list[str] | None = None, device: str = "cpu", **changes: Any
) -> list[str]:
    settings = SparseSettings(**{"kind": "rowwise_adagrad", "lr": 0.1, **changes})
    return table_problems(tables, settings, ShardingConfig(types), device)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_kind_is_accepted_on_every_device_and_sharding(device: str) -> None:
    for kind in SPARSE_OPTIMIZERS:
        assert problems(TABLES, device=device, kind=kind) == []
        assert problems(TABLES, ["data_parallel"], device, kind=kind, weight_decay=0.1) == []


@pytest.mark.parametrize(
    ("table", "changes", "words"),
    [
        ({"optimizer": {"lr": "high"}}, {}, ["optimizer.lr", "high"]),
        ({"optimizer": {"kind": "lion"}}, {}, ["optimizer.kind must be one of sgd, ", "got 'lion'"]),
        ({"optimizer": {"lr": -1.0}}, {}, ["optimizer.lr must be a positive number, got -1.0"]),
        ({"optimizer": {"beta1": 1.0}}, {}, ["optimizer.beta1"]),
        ({}, {"kind": "adam", "max_gradient": 1.0}, ["max_gradient needs an optimizer inside"]),
        ({"sharding": {"types": ["data_parallel"]}}, {"max_gradient": 1.0}, ["max_gradient needs"]),
        ({"init": "zeros"}, {"kind": "lamb"}, ["init zeros would never move"]),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_tables_name(
    table: dict[str, Any], changes: dict[str, Any], words: list[str]
) -> None:
    (problem,) = problems([replace(TABLES[0], **table)], **changes)
    for word in ["table shared", *words]:
        assert word in problem


def test_one_cause_is_told_once_for_all_its_tables() -> None:
    tables = [Table(f"t{place}", 10, 4, (f"f{place}",)) for place in range(26)]
    (problem,) = problems(tables, kind="adam", max_gradient=1.0)
    assert problem.startswith("tables t0, t1, t2 and 23 more: max_gradient")


def test_what_fbgemm_has_not_fused_goes_beside_the_backward_pass(caplog: pytest.LogCaptureFixture) -> None:
    """And the run says so, for it costs a pass over the table a step."""
    caplog.set_level("INFO")
    tables = [replace(TABLES[0], optimizer={"weight_decay": 0.1}), TABLES[1]]
    settings = SparseSettings("rowwise_adagrad", 0.1)
    assert dense(tables, settings, "cpu") == {"shared"}
    assert dense(tables, settings, "cuda") == set()
    assert dense(tables, SparseSettings("adagrad", 0.1), "cuda") == {"shared"}
    assert dense(tables, SparseSettings("lamb", 0.1), "cpu") == {"shared", "bags"}
    coupled = SparseSettings("adam", 0.1, weight_decay=0.1, weight_decay_mode="coupled")
    for_all = SparseSettings("rowwise_adagrad", 0.1, updated_rows="all")
    assert (
        dense(TABLES, coupled, "cuda") == dense(TABLES, for_all, "cuda") == {table.name for table in TABLES}
    )
    assert dense(TABLES, replace(coupled, weight_decay_mode="decoupled"), "cuda") == set()
    log_dense_kernel(tables, settings, ShardingConfig(), "cpu")
    assert "table shared: rowwise_adagrad with weight_decay is not fused on cpu" in caplog.text
    assert "bags" not in caplog.text


def test_a_tables_own_sharding_comes_before_sharding_types() -> None:
    own = replace(TABLES[0], sharding={"types": ["table_wise"]})
    found = problems([own, TABLES[1]], ["data_parallel"], max_gradient=1.0)
    assert [problem.split(":")[0] for problem in found] == ["table bags"]


def test_tables_whose_only_kernel_is_dense_take_it() -> None:
    sharding = ShardingConfig(
        tables={"shared": {"kernels": ["dense"]}, "bags": {"kernels": ["fused", "dense"]}}
    )
    assert set(dense_kernel_tables(TABLES, SparseSettings("sgd", 0.1), sharding, "cuda")) == {"shared"}


def test_an_unknown_kind_is_refused_once() -> None:
    (problem,) = problems(TABLES, kind="lion")
    assert problem.startswith("optimizer.sparse.kind must be one of sgd, adagrad, ")
