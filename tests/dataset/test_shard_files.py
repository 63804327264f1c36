"""What plans expect of multi-hot features is what the dataset holds."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dlrm_app.config.like_train import PlanConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.dataset.shard_files import mean_ids
from dlrm_app.errors import DataError
from dlrm_app.tables.table import Table, with_pooling_factors
from dlrm_app.tools.planning.plan_cluster import plan_cluster
from tests.composed import compose_config
from tests.loader.dataset_fixture import write_dataset
from tests.refusals import refused


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return write_dataset(tmp_path / "data", rows=2000, multi_hot=(30, 40))


def test_mean_ids_are_the_mean_number_of_ids_a_row(manifest: Manifest) -> None:
    """Of the first shard, empty rows included; one-hot features are not asked."""
    assert manifest.path is not None
    shard = pq.read_table(manifest.path / manifest.splits["train"].shards[0].path)
    expected = {name: sum(map(len, shard[name].to_pylist())) / len(shard) for name in ("m0", "m1")}
    assert mean_ids(manifest) == {name: pytest.approx(mean, rel=0.05) for name, mean in expected.items()}


def test_pooling_factors_of_a_spec_win_over_the_datasets_means(manifest: Manifest) -> None:
    own = Table("own", 100, 4, ("m0",), pooling_factors=(7.0,))
    open_one = Table("open", 100, 4, ("m1", "c0"))
    one_hot = Table("one_hot", 1000, 4, ("c1",))
    found = with_pooling_factors([own, open_one, one_hot], mean_ids(manifest))
    assert found[0] == own
    assert found[1].pooling_factors == (mean_ids(manifest)["m1"], 1.0)
    assert found[2] == one_hot


def test_a_manifest_without_its_shards_says_nothing(manifest: Manifest) -> None:
    """It is enough to plan with."""
    assert manifest.path is not None
    for shard in manifest.splits["train"].shards:
        (manifest.path / shard.path).unlink()
    assert mean_ids(manifest) == {}


def test_a_shard_that_is_not_parquet_is_named(manifest: Manifest) -> None:
    assert manifest.path is not None
    path = manifest.path / manifest.splits["train"].shards[0].path
    path.write_bytes(b"nothing")
    with refused(
        DataError,
        ".../data/train/part-00000.parquet",
        "cannot be read (Parquet file size is 7 bytes, smaller than the minimum file footer...",
    ):
        mean_ids(manifest)


def test_plans_for_a_dataset_expect_it(manifest: Manifest) -> None:
    overrides = [f"data.path={manifest.path}", "topology=cpu_2", "smallest=false"]
    tables = plan_cluster(compose_config("plan", PlanConfig, overrides)).plan.work.tables
    assert tables["t_m0"].expected_pooling_factors == [mean_ids(manifest)["m0"]]
    assert tables["t_c0"].expected_pooling_factors == [1.0]
