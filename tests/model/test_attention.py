"""Lists that are pooled by attention train like DIN in plain torch, row by row."""

from itertools import cycle

import pytest

from dlrm_app.tables.table import Attention, Table
from tests.model.test_parity import MODELS
from tests.plain_training import assert_trains_like_plain, compose_train

OTHERS = [Table("bags", 50, 8, ("f4",)), Table("long", 2_000, 8, ("f3_mean",), pooling="mean", init="normal")]
PLAIN_DENSE = ("optimizer.dense.kind=sgd", "optimizer.dense.lr=0.1")
"""Dense Adam would turn the rounding of gradients that are nearly 0 into steps."""


def attentive(**settings: object) -> Table:
    """A table of a one-hot feature and two lists, which are empty in some rows."""
    pooling = Attention("f1", (12, 5), **settings)  # type: ignore[arg-type]
    return Table("shown", 100, 8, ("f3", "f1", "f3_b"), pooling=pooling, init="normal")


@pytest.mark.parametrize(("kind", "softmax"), [*zip(MODELS, cycle([True, False]))])
def test_steps_equal_plain_din(kind: str, softmax: bool) -> None:
    """Same losses at every step and same weights at the end."""
    config = compose_train("optimizer=rowwise_adagrad", *PLAIN_DENSE, *MODELS[kind])
    assert_trains_like_plain(config, [OTHERS[0], attentive(softmax=softmax), OTHERS[1]])


@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "sgd"])
def test_every_table_may_be_attentive(optimizer: str) -> None:
    config = compose_train(f"optimizer={optimizer}", *PLAIN_DENSE)
    assert_trains_like_plain(config, [attentive()])
