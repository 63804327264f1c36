"""Vectors by item and by row: a run that is stopped anywhere, or that Dask's workers do, ends in the same bytes."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.make_log import make_log
from tests.preprocessing.interruptions import assert_kills_change_nothing, run_in_pieces
from tests.preprocessing.running import content, run

COLUMNS = [
    "{name: clicked, role: label}",
    "{name: age, role: dense, kind: integer}",
    "{name: item, role: sparse, kind: integer}",
    '{name: seen, role: sparse, kind: integer, separator: "|"}',
    '{name: query, role: vector, size: 6, separator: "|"}',
]
SETTINGS = ["encoding=vocab", "shuffle=full", "split.val=0.1", "split.test=0.1", "rejects.max_fraction=0.1"]
SMALL = [*SETTINGS, "layout.unit_mib=1", "layout.row_group_rows=64", "layout.shuffled_shard_rows=200"]
KILLS, ITEMS, WIDTH = 15, 2000, 32


def write_log(folder: Path, num_rows: int) -> list[str]:
    """The settings of a log with vectors of items, of the items of a list, and of each row, some of which are rejected."""
    draw = np.random.default_rng(0)
    queries = draw.normal(size=(num_rows, 6)).round(3).tolist()
    queries[::50] = [row[:5] for row in queries[::50]]
    rows = {
        "clicked": draw.integers(0, 2, num_rows),
        "age": draw.integers(18, 70, num_rows),
        "item": draw.integers(0, 2 * ITEMS, num_rows),
        "seen": pa.array([draw.integers(0, ITEMS, size).tolist() for size in draw.integers(0, 4, num_rows)]),
        "query": pa.array([None if row % 7 == 0 else query for row, query in enumerate(queries)]),
    }
    vectors = draw.normal(size=(ITEMS, WIDTH)).astype(np.float32)
    pq.write_table(pa.table({"value": np.arange(ITEMS), "vector": [*vectors]}), folder / "items.parquet")
    given = make_log(folder, COLUMNS, rows)
    of = [
        f"  - {{name: {name}_text, kind: vectors, of: {name}, file: {folder}/items.parquet}}"
        for name in ("item", "seen")
    ]
    described = folder / "log.yaml"
    described.write_text("\n".join([described.read_text() + "derived:", *of]) + "\n")
    return given


@pytest.mark.parametrize("loses_work", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.slow
def test_interruptions_end_in_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loses_work: bool
) -> None:
    monkeypatch.setattr("dlrm_app.preprocessing.request.MIB", 10_000)
    given = [*write_log(tmp_path, 1000), *SMALL, "threads=1"]
    manifest = run(tmp_path / "whole", *given)
    assert [column.name for column in manifest.vectors] == ["query"]
    again = run_in_pieces(
        lambda: run(tmp_path / "pieces", *given), monkeypatch, commits=1, loses_work=loses_work
    )
    assert again >= 3
    assert content(tmp_path / "pieces") == content(tmp_path / "whole")


@pytest.mark.slow
def test_dask_workers_make_the_same_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr("dlrm_app.preprocessing.request.MIB", 10_000)
    given = [*write_log(tmp_path, 1000), *SMALL]
    run(tmp_path / "whole", *given, "threads=2")
    one = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(**one) as cluster:
        run(tmp_path / "dask", *given, "executor=dask", f"dask.address={cluster.scheduler_address}")
    assert content(tmp_path / "dask") == content(tmp_path / "whole")


@pytest.mark.long
def test_kills_at_random_moments_end_in_the_same_bytes(tmp_path: Path) -> None:
    words = [*write_log(tmp_path, 40_000), *SETTINGS, "layout.unit_mib=1", "layout.shuffled_shard_rows=5000"]
    command = [str(Path(sys.executable).with_name("dlrm-preprocess")), *words]
    assert_kills_change_nothing([*command, f"output={tmp_path}/killed"], tmp_path / "killed", KILLS)
