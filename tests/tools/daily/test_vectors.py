"""Days of a log with vectors, one of which has lost the vectors of its rows, or of its items."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from tests.integration.test_vectors import COLUMNS, draw_rows, write_items
from tests.make_log import describe, write_csv
from tests.tools.daily.days_here import NAMES, days_words, learn, lines

ROWS = 3000


@pytest.fixture(scope="module")
def two_days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of three days, of which two are learnt and published."""
    folder = tmp_path_factory.mktemp("vectors")
    for number, name in enumerate(NAMES[:3]):
        path = folder / "log" / f"dt={name}"
        path.mkdir(parents=True)
        write_csv(path / "log.csv", draw_rows(ROWS, seed=number))
        write_items(folder / f"items-{name}.parquet")
    described = describe(folder, COLUMNS)
    derived = "{name: item_text, kind: vectors, of: item, file: " + f'"{folder}/items-{{day}}.parquet"' + "}"
    described.write_text(f"{described.read_text()}derived:\n  - {derived}\n")
    learn(words(folder, folder / "out", NAMES[1]))
    return folder


def words(folder: Path, output: Path, last: str) -> list[str]:
    given = [word for word in days_words(folder / "log", output, last) if "dataset=" not in word]
    return [*given, f"dataset={folder}/log.yaml", "gate.max_known_rows=1"]


def lose(column: str, folder: Path) -> None:
    """The third day loses ``column``: all its queries, or the vectors of the items that its rows have."""
    rows = draw_rows(ROWS, seed=2)
    if column == "query":
        rows = rows.set_column(rows.column_names.index("query"), "query", pa.nulls(ROWS))
    else:
        others = pa.array([f"other-{item}" for item in rows["item"].to_pylist()])
        rows = rows.set_column(rows.column_names.index("item"), "item", others)
    write_csv(folder / "log" / f"dt={NAMES[2]}" / "log.csv", rows)


@pytest.mark.long
@pytest.mark.parametrize("column", ["query", "item_text", None])
def test_a_day_that_has_lost_its_vectors_is_held_back(
    two_days: Path, tmp_path: Path, column: str | None
) -> None:
    """Nothing is, where nothing is lost."""
    output = shutil.copytree(two_days / "out", tmp_path / "out", symlinks=True)
    kept = (two_days / "log" / f"dt={NAMES[2]}" / "log.csv").read_bytes()
    try:
        if column is not None:
            lose(column, two_days)
        learn(words(two_days, output, NAMES[2]))
    finally:
        (two_days / "log" / f"dt={NAMES[2]}" / "log.csv").write_bytes(kept)
    found = lines(output)
    assert [found[name]["published"] for name in NAMES[:3]] == [True, True, column is None]
    if column is not None:
        assert f"100% of {column} is missing" in found[NAMES[2]]["held"]
        assert (output / "published").resolve().name == NAMES[1]
