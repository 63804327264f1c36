"""The tables' health against counting by hand, on one process and on two, for every sharding."""

from collections import Counter
from functools import partial

import pytest

from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.model.initial_weights import local_parts, table_weights
from tests.random_batches import TABLES, draw
from tests.ranks import on_ranks
from tests.training.table_health.sharded_health import (
    BATCH,
    EVAL_SEEDS,
    TRAIN_SEEDS,
    curves_of_part,
    measure,
    train_and_measure,
)

CASES = [
    ("data_parallel", "sgd"),
    ("table_wise", "rowwise_adagrad"),
    ("row_wise", "adagrad"),
    ("column_wise", "sgd"),
    ("row_wise", "adam"),
    ("table_row_wise", "sgd"),
]
OPTIMIZERS = sorted({optimizer for _, optimizer in CASES})


def ids_of(table_features: tuple[str, ...], seeds: range) -> list[int]:
    return [
        i
        for seed in seeds
        for feature in table_features
        for bag in draw(seed, BATCH)[1][feature]
        for i in bag
    ]


def check_by_hand(health: dict[str, dict[str, float | None]]) -> None:
    """Everything but the norms follows from the ids alone."""
    for table in TABLES:
        found = health[table.name]
        trained, looked_up = ids_of(table.features, TRAIN_SEEDS), Counter(ids_of(table.features, EVAL_SEEDS))
        lookups = sum(looked_up.values())
        hottest = [count for _, count in looked_up.most_common(10)]
        assert found["rows"] == table.rows
        assert found["rows_touched"] == pytest.approx(len(set(trained)) / table.rows, rel=1e-12)
        assert found["lookups"] == lookups
        assert found["top1_share"] == hottest[0] / lookups
        assert found["top10_share"] == sum(hottest) / lookups
    shared, bags, long = (health[table.name] for table in TABLES)
    looked_up = Counter(ids_of(("f1", "f2"), EVAL_SEEDS))
    assert shared["missing_rate"] == looked_up[0] / looked_up.total()
    assert shared["rare_rate"] == looked_up[1] / looked_up.total()
    assert shared["collision_rate"] == 30 / 200
    empty = sum(not bag for seed in EVAL_SEEDS for bag in draw(seed, BATCH)[1]["f3"])
    assert bags["missing_rate"] == empty / (BATCH * len(EVAL_SEEDS))
    assert bags["rare_rate"] is None
    assert bags["collision_rate"] is None
    assert long["missing_rate"] == ids_of(("f4",), EVAL_SEEDS).count(0) / (BATCH * len(EVAL_SEEDS))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_rank_tells_which_rows_were_trained(optimizer: str) -> None:
    """A row counts as touched exactly if a training batch has its id, whatever state the optimizer keeps."""
    with start_runtime(num_threads=1) as runtime:
        trainable, health = train_and_measure("table_wise", optimizer, runtime)
        weights = table_weights(trainable.model.state_dict(), {table.name: table for table in TABLES})
        norms = {
            name: float(sum(part.double().norm() ** 2 for part, _, _ in local_parts(weight)) ** 0.5)
            for name, weight in weights
        }
    check_by_hand(health)
    assert {name: values["weight_norm"] for name, values in health.items()} == pytest.approx(norms, rel=1e-6)
    assert all(values["norm_growth"] != 1.0 for values in health.values())


def test_two_ranks_measure_what_one_does() -> None:
    """Under every sharding type; both ranks know the same, and the curves are one rank's to the last count."""
    first, second = on_ranks(partial(measure, CASES), 2)
    assert first == second
    assert first["of no rows"] is None
    alone = {}
    for optimizer in OPTIMIZERS:
        with start_runtime(num_threads=1) as runtime:
            alone[optimizer] = train_and_measure("table_wise", optimizer, runtime)[1]
    for (kind, optimizer), health in zip(CASES, first["health"], strict=True):
        check_by_hand(health)
        for name, values in health.items():
            expected = alone[optimizer][name]
            assert values["weight_norm"] == pytest.approx(expected["weight_norm"], rel=1e-5), (kind, name)
            assert values["norm_growth"] == pytest.approx(expected["norm_growth"], rel=1e-5), (kind, name)
    curves = curves_of_part(0, 1)
    means = first["curves"]["reliability"].pop("mean_prediction")
    assert means == pytest.approx(curves["reliability"].pop("mean_prediction"), rel=1e-12)
    assert first["curves"] == curves
