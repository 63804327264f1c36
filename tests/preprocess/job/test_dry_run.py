"""``dry_run=true``: close to what the run then takes, without a trace."""

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dlrm_app.errors import ConfigError
from dlrm_app.preprocess.job import dry_run
from dlrm_app.preprocess.job.dry_run import Estimate, estimate, warnings
from dlrm_app.preprocess.passes.growth import Growth
from tests.preprocess.clicks import make_clicks
from tests.preprocess.running import configure, run

COMMON = ("dataset=criteo_kaggle", "rejects.max_fraction=0.1", "layout.unit_mib=1")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "BLOCK_BYTES", 1 << 20)


@pytest.fixture(scope="module")
def text() -> bytes:
    return make_clicks(6000, bad_every=40)


@pytest.fixture
def clicks(text: bytes, tmp_path: Path) -> Path:
    (tmp_path / "clicks.tsv").write_bytes(text)
    return tmp_path / "clicks.tsv"


def estimated(clicks: Path, *options: str) -> Estimate:
    return estimate(
        configure(*COMMON, f"input.train={clicks}", *options, f"output={clicks.parent}/out", "dry_run=true")
    )


@pytest.mark.parametrize(
    "options",
    [("split.val=0.2", "split.test=0.1"), ("encoding=vocab", "shuffle=full", "dense.transform=standardize")],
)
def test_rows_and_size_are_close_to_the_run_s(clicks: Path, options: tuple[str, ...]) -> None:
    found = estimated(clicks, *options)
    manifest = run(clicks.parent / "out", *COMMON, f"input.train={clicks}", *options)
    for split, rows in found.rows.items():
        assert rows == pytest.approx(manifest.splits[split].rows, rel=0.02)
    size = sum(shard.bytes for split in manifest.splits.values() for shard in split.shards)
    assert found.output == pytest.approx(size, rel=0.35)
    assert found.rejected == pytest.approx(1 / 40, rel=0.3)
    for column in manifest.sparse:
        if found.vocabularies:
            assert found.vocabularies[column.name][0] == pytest.approx(column.distinct, rel=0.5)


def test_it_leaves_nothing_behind(clicks: Path) -> None:
    before = sorted(clicks.parent.rglob("*"))
    estimated(clicks, "shuffle=full", "encoding=vocab")
    assert sorted(clicks.parent.rglob("*")) == before


def test_a_gzip_file_is_judged_by_its_beginning(clicks: Path) -> None:
    zipped = clicks.with_suffix(".tsv.gz")
    zipped.write_bytes(gzip.compress(clicks.read_bytes()))
    assert sum(estimated(zipped).rows.values()) == pytest.approx(5850, rel=0.1)


def test_what_will_fail_is_said_beforehand(clicks: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        found = estimated(clicks, "rejects.max_fraction=0.001")
    assert "more lines are malformed than rejects.max_fraction=0.001 allows" in caplog.text
    config = configure(*COMMON, "input.train=x", "output=y", "encoding=vocab", "memory_gib=1")
    large = replace(found, vocabularies={"cat_0": (10**9, 10**8)}, free=1000)
    messages = "\n".join(warnings(config, large, needed=3000))
    assert "that is 2 kB more than there is room for" in messages
    assert "vocabularies of 100,000,000 values do not fit in memory_gib=1" in messages


def test_an_empty_file_is_refused_as_the_run_would(tmp_path: Path) -> None:
    (tmp_path / "empty.tsv").write_bytes(b"")
    with pytest.raises(ConfigError, match="the train split has no rows"):
        estimated(tmp_path / "empty.tsv")


def test_a_dry_run_on_a_cluster_is_refused() -> None:
    with pytest.raises(ConfigError, match="dry_run=true measures this machine"):
        configure("input.train=x", "output=y", "dry_run=true", "executor=dask", "dask.address=tcp://a")


def test_distinct_values_grow_by_a_power_law() -> None:
    growth = Growth(rows=1000, distinct=100, exponent=0.5)
    assert [growth.at(rows) for rows in (0, 1000, 4000, 100_000)] == [0, 100, 200, 1000]


def test_values_that_occur_often_are_those_of_a_power_law() -> None:
    """Value k occurs in a row with chance proportional to k^-2, so distinct values grow as the root of the rows."""
    random = np.random.default_rng(0)
    chances = np.arange(1, 200_000) ** -2.0
    counts = random.poisson(400_000 * chances / chances.sum())
    growth = Growth(rows=400_000, distinct=int((counts > 0).sum()), exponent=0.5)
    for min_count in (1, 2, 5, 20):
        assert growth.often(400_000, min_count) == pytest.approx((counts >= min_count).sum(), rel=0.1)
