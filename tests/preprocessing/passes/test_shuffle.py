"""Shuffling moves rows and changes nothing else; the order is the seed's."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dlrm_app.preprocessing.passes.shuffle import key_ranges, row_keys
from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import run, table_of

ROWS = 600


@pytest.fixture
def clicks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("dlrm_app.preprocessing.request.MIB", 10_000)
    (tmp_path / "clicks.tsv").write_bytes(make_clicks(ROWS))
    return tmp_path


def rows_of(folder: Path, *overrides: str, split: str = "train") -> list[tuple]:
    manifest = run(
        folder, f"input.train={folder.parent}/clicks.tsv", "split.test=0.2", "layout.unit_mib=1", *overrides
    )
    return [tuple(row.values()) for row in table_of(manifest, split).to_pylist()]


@pytest.mark.parametrize("shuffle", ["block", "full"])
def test_the_rows_stay_and_the_order_goes(clicks: Path, shuffle: str) -> None:
    """A block shuffle stays within the unit, and a full one does not."""
    unshuffled, shuffled = rows_of(clicks / "none"), rows_of(clicks / "some", f"shuffle={shuffle}")
    place = {row: number for number, row in enumerate(unshuffled)}
    moves = [abs(place[row] - number) for number, row in enumerate(shuffled)]
    assert sorted(map(repr, unshuffled)) == sorted(map(repr, shuffled))
    if shuffle == "block":
        assert 0 < max(moves) < 80  # a unit of 10,000 bytes has some 45 lines
    else:
        assert np.mean(moves) > ROWS * 0.8 / 4  # a third of the rows, on average, for a uniform shuffle
    assert shuffled == rows_of(clicks / "again", f"shuffle={shuffle}")
    assert shuffled != rows_of(clicks / "other", f"shuffle={shuffle}", "seed=1")


def test_val_and_test_keep_the_order_of_the_input(clicks: Path) -> None:
    assert rows_of(clicks / "none", split="test") == rows_of(clicks / "full", "shuffle=full", split="test")


def test_shards_of_a_full_shuffle_have_about_the_size_asked_for(clicks: Path) -> None:
    manifest = run(
        clicks / "out", f"input.train={clicks}/clicks.tsv", "shuffle=full", "layout.shuffled_shard_rows=100"
    )
    sizes = [shard.rows for shard in manifest.splits["train"].shards]
    assert sum(sizes) == ROWS
    assert len(sizes) == 6
    assert max(sizes) < 150


def test_no_two_rows_have_the_same_key() -> None:
    keys = np.concatenate([row_keys(5, source, unit, 1000) for source in range(3) for unit in range(30)])
    assert len(np.unique(keys)) == len(keys)


def test_key_ranges_are_all_keys() -> None:
    for parts in (1, 3, 1000):
        ranges = key_ranges(parts)
        assert ranges[0][0] == 0
        assert ranges[-1][1] == (1 << 64) - 1
        assert all(first[1] + 1 == second[0] for first, second in pairwise(ranges))
