"""What a run needs beside its tables: against counts written out, and against torch's own bookkeeping."""

from dataclasses import replace

import pytest

from dlrm_app.config.compose import compose_config
from dlrm_app.config.like_train import PlanConfig
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.planning.estimates import RunMemory, estimate_run, shortage
from dlrm_app.sharding.cluster import GIB, described_cluster
from dlrm_app.tables.specs import resolve_tables
from tests.model.test_parity import MODELS
from tests.plain_training import compose_train
from tests.random_batches import NUM_DENSE, TABLES

ALL = {**MODELS, "concat": ["model=concat", "model.bottom_mlp=[]"], "ensemble": ["model.ensemble_size=2"]}


def estimate(*overrides: str, ranks: int = 1) -> RunMemory:
    config = compose_train(*overrides)
    spec = ModelSpec(config.model, TABLES, NUM_DENSE)
    return estimate_run(spec, config.trainer, config.optimizer.dense, ranks, "cpu")


def test_an_mlp_alone_is_counted_by_hand() -> None:
    """concat without a bottom MLP: the top one has in → 16 → 1."""
    needed = estimate(
        "model=concat", "model.bottom_mlp=[]", "trainer.global_batch_size=1024", "optimizer.dense.kind=sgd"
    )
    width = NUM_DENSE + sum(table.dim * len(table.features) for table in TABLES)
    assert needed.dense == 4 * 3 * (width * 16 + 16 + 16 + 1)
    rows = 4 * 1024
    # the concatenation, the hidden layer, logits and labels; and twice the widest
    assert needed.activations == pytest.approx(rows * (width + 16 + 2) + 2 * rows * width, rel=0.1)


@pytest.mark.parametrize("kind", ALL)
def test_every_architecture_is_counted_and_grows_with_the_rows_of_a_rank(kind: str) -> None:
    few = estimate(*ALL[kind], "trainer.global_batch_size=64")
    many = estimate(*ALL[kind], "trainer.global_batch_size=256")
    spread = estimate(*ALL[kind], "trainer.global_batch_size=256", ranks=4)
    assert many.activations == pytest.approx(4 * few.activations, rel=0.2)
    assert few.activations > 0
    assert spread == few
    assert many.dense == few.dense


def test_mlperf_s_dcn_at_its_batch_needs_more_than_a_gib_on_each_of_eight_gpus() -> None:
    config = compose_config("plan", PlanConfig, ["experiment=mlperf_dcnv2", "topology=a100_80g_8"])
    tables = resolve_tables(config.tables, None)
    needed = estimate_run(
        ModelSpec(config.model, tables, 13), config.trainer, config.optimizer.dense, 8, "cuda"
    )
    assert 1 * GIB < needed.activations < 10 * GIB
    assert "activations" in str(needed)
    cluster = described_cluster(config.topology)
    assert shortage(needed, cluster) is None
    told = shortage(needed, replace(cluster, reserved_share=0.01))
    assert told is not None
    assert "topology.reserved_share=0.01 keeps from the tables: use topology.reserved_share=0." in told
