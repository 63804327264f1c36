"""The tables' health against counting by hand, on one process and on two, for every sharding."""

import subprocess
import sys
from collections import Counter
from functools import partial

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from dlrm_app.dataset.manifest import Manifest, SparseColumn
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.model.initial_weights import local_parts, table_weights
from dlrm_app.tables.specs import Table
from dlrm_app.training.table_health import MAX_BITS, LookupCounter
from tests.random_batches import TABLES, draw
from tests.ranks import on_ranks
from tests.training.sharded_health import (
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


def test_two_ranks_measure_what_one_does_and_that_is_what_is_counted_by_hand() -> None:
    """Under every sharding type; both ranks know the same, and the curves are one rank's to the last count.

    A row counts as touched exactly if a training batch has its id, whatever state the optimizer keeps.
    """
    alone = {}
    for optimizer in OPTIMIZERS:
        with start_runtime(num_threads=1) as runtime:
            trainable, health = train_and_measure("table_wise", optimizer, runtime)
            weights = table_weights(trainable.model.state_dict(), {table.name: table for table in TABLES})
            norms = {
                name: float(sum(part.double().norm() ** 2 for part, _, _ in local_parts(weight)) ** 0.5)
                for name, weight in weights
            }
        check_by_hand(health)
        assert {name: each["weight_norm"] for name, each in health.items()} == pytest.approx(norms, rel=1e-6)
        assert all(values["norm_growth"] != 1.0 for values in health.values())
        alone[optimizer] = health
    first, second = on_ranks(partial(measure, CASES), 2)
    assert first == second
    assert first["of no rows"] is None
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


SCRIPT = """
import os
import resource

import torch
import torch.distributed as dist
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dlrm_app.tables.specs import Table
from dlrm_app.training.table_health import InitialWeights

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
config = EmbeddingBagConfig(name="t", embedding_dim=64, num_embeddings=1_000_000, feature_names=["f"])
model = EmbeddingBagCollection([config])
for number in range(3):
    if os.fork() == 0:
        ballast = [bytes(1000) for _ in range(number * 1000)]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        InitialWeights(model, [Table("t", 1_000_000, 64, ("f",))], torch.device("cpu"))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, flush=True)
        os._exit(0)
    os.wait()
"""


def test_it_takes_a_hash_a_row_and_little_else() -> None:
    """4 MB of hashes for 256 MB of weights; in three processes, for it depends on where malloc begins."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    kibibytes = [int(line) for line in done.stdout.splitlines()]
    assert len(kibibytes) == 3
    assert max(kibibytes) < 64 * 1024


CPU = torch.device("cpu")


def manifest_of(columns: list[SparseColumn]) -> Manifest:
    return Manifest("test", "label", [], columns, {}, [], {})


def test_padding_is_not_counted() -> None:
    """Two of the four rows are padding: their empty bags are no missing values."""
    table = Table("t", 10, 4, ("f",))
    counter = LookupCounter([table], manifest_of([SparseColumn("f", 10, {"missing_id": 0})]), CPU)
    counter.add(
        KeyedJaggedTensor(["f"], torch.tensor([3, 0], dtype=torch.int32), lengths=torch.tensor([1, 1, 0, 0])),
        2,
    )
    found = counter.rates()["t"]
    assert found["lookups"] == 2
    assert found["missing_rate"] == 0.5


def test_without_a_batch_nothing_is_divided() -> None:
    counter = LookupCounter([Table("t", 10, 4, ("f",))], manifest_of([SparseColumn("f", 10, {})]), CPU)
    assert counter.rates()["t"] == {
        "lookups": 0,
        "missing_rate": None,
        "rare_rate": None,
        "top1_share": None,
        "top10_share": None,
    }


def test_a_table_larger_than_the_buckets_keeps_its_hot_ids_apart() -> None:
    """Hot ids among many cold ones: their shares are right to a few lookups in 65,536; missing ones exactly."""
    rows = 100 << MAX_BITS
    generator = torch.Generator().manual_seed(0)
    cold = torch.randint(2, rows, (100_000,), generator=generator)
    ids = torch.cat(
        [cold, torch.zeros(500, dtype=torch.int64), *(torch.full((1000,), i) for i in range(2, 12))]
    )
    encoding = {"missing_id": 0, "rare_id": 1}
    counter = LookupCounter(
        [Table("t", rows, 4, ("f",))], manifest_of([SparseColumn("f", rows, encoding)]), CPU
    )
    counter.add(KeyedJaggedTensor(["f"], ids, lengths=torch.ones(len(ids), dtype=torch.int64)), len(ids))
    found = counter.rates()["t"]
    exact = Counter(ids.tolist())
    top10 = sum(count for _, count in exact.most_common(10))
    assert found["missing_rate"] == 500 / len(ids)
    assert found["rare_rate"] == 0
    assert (
        top10 <= found["top10_share"] * len(ids) <= top10 + 60
    )  # each bucket holds 1.5 cold ones on average
