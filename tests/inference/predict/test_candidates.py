"""Rows with lists of candidates: a list of scores for each, those of the same candidates in rows of their own."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm_app.errors import ConfigError, DataError
from tests.inference.conftest import predicted
from tests.inference.shop import NUM_TEST, draw_rows
from tests.inference.test_predict import parquet_columns
from tests.refusals import refused

LENGTHS = [3, 0, 1, 7, 40, 2]
"""Of the lists of candidates, in turn."""
NAMES = ["item", "price"]


def grouped(columns: dict[str, pa.Array]) -> tuple[pa.Table, pa.Table]:
    """(rows with lists of items and prices, these in rows of their own)."""
    table = pa.table(columns)
    items = table.select(NAMES).to_pylist()
    users = table.drop_columns(NAMES).to_pylist()
    rows = []
    at = 0
    while at + max(LENGTHS) < len(table):
        shown = items[at : at + LENGTHS[len(rows) % len(LENGTHS)]]
        rows.append({**users[len(rows)], **{name: [each[name] for each in shown] for name in NAMES}})
        at += len(shown)
    single = [
        {**row, **dict(zip(NAMES, pair, strict=True))}
        for row in rows
        for pair in zip(*(row[name] for name in NAMES), strict=True)
    ]
    kinds = {name: pa.list_(table[name].type) for name in NAMES}
    schema = pa.schema([(name, kinds.get(name, table[name].type)) for name in table.column_names])
    return pa.Table.from_pylist(rows, schema), pa.Table.from_pylist(single, table.schema)


@pytest.fixture(scope="module")
def lists(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with lists.parquet and single.parquet."""
    folder = tmp_path_factory.mktemp("candidates")
    by_row, single = grouped(parquet_columns(draw_rows()[-NUM_TEST:]))
    pq.write_table(by_row, folder / "lists.parquet", row_group_size=7)
    pq.write_table(single, folder / "single.parquet")
    return folder


def test_lists_of_candidates_have_the_scores_of_single_rows(shop: Path, lists: Path, tmp_path: Path) -> None:
    """To the bit, in order, beside kept columns; labels are not read, and empty lists stay empty."""
    keys = f"model={shop}/export", "keep=[user]"
    single = predicted(tmp_path / "single.parquet", *keys, f"input={lists}/single.parquet", "labels=false")
    table = predicted(
        tmp_path / "scores.parquet", *keys, f"input={lists}/lists.parquet", "candidates=[item,price]"
    )
    given = pq.read_table(lists / "lists.parquet")
    assert table.column_names == ["score", "file", "line", "user"]
    assert table["line"].to_pylist() == list(range(1, len(given) + 1))
    assert table["user"].to_pylist() == given["user"].to_pylist()
    assert [len(each) for each in table["score"].to_pylist()] == [
        len(each) for each in given["item"].to_pylist()
    ]
    assert table["score"].combine_chunks().flatten().to_pylist() == single["score"].to_pylist()


def test_a_malformed_candidate_leaves_its_row_out(shop: Path, lists: Path, tmp_path: Path) -> None:
    table = pq.read_table(lists / "lists.parquet").slice(0, 6)
    hours = pa.array([7, None, 9, 10, 11, 12])
    prices = table["price"].to_pylist()
    prices[3][2], prices[0], prices[5] = "cheap", prices[0][:2], None
    texts = [None if each is None else [None if p is None else str(p) for p in each] for each in prices]
    table = table.set_column(table.column_names.index("price"), "price", pa.array(texts))
    table = table.set_column(table.column_names.index("hour"), "hour", hours)
    pq.write_table(table, tmp_path / "rows.parquet")
    keys = f"model={shop}/export", f"input={tmp_path}/rows.parquet", "candidates=[item,price]"
    found = predicted(tmp_path / "scores.parquet", *keys, "rejects.max_fraction=0.5")
    assert found["line"].to_pylist() == [2, 3, 5]
    assert [len(each) for each in found["score"].to_pylist()] == [0, 1, 40]
    rule = "is malformed: the lists of its candidates differ in length (item 3, price 2)"
    with refused(DataError, f"{tmp_path}/rows.parquet:1", rule):
        predicted(tmp_path / "other.parquet", *keys)


def test_rows_without_candidates_have_lists_of_no_scores(shop: Path, lists: Path, tmp_path: Path) -> None:
    table = pq.read_table(lists / "lists.parquet")
    for rows in (table.filter(pa.array([len(each) == 0 for each in table["item"].to_pylist()])), table[:0]):
        pq.write_table(rows, tmp_path / "rows.parquet")
        found = predicted(
            tmp_path / f"scores{len(rows)}.parquet",
            f"model={shop}/export",
            f"input={tmp_path}/rows.parquet",
            "candidates=[item,price]",
        )
        assert found["score"].to_pylist() == [[]] * len(rows)
        assert found["score"].type == pa.list_(pa.float32())


@pytest.mark.parametrize(
    ("given", "key", "rule"),
    [
        (
            "last_items",
            "candidates",
            "holds lists for the model itself, so that its lists would not be candidates",
        ),
        ("colour", "candidates", "is not a column that the model reads"),
        ("clicked", "candidates", "is not a column that the model reads"),
        ("item,price,user", "candidates=user", "holds no lists in .../lists.parquet"),
        ("item,item", "candidates", "names a column twice"),
    ],
)
def test_other_columns_are_refused(
    shop: Path, lists: Path, tmp_path: Path, given: str, key: str, rule: str
) -> None:
    keys = f"model={shop}/export", f"input={lists}/lists.parquet", f"candidates=[{given}]"
    with refused(ConfigError, key, rule):
        predicted(tmp_path / "scores.parquet", *keys)


def test_candidates_are_for_parquet_without_labels(shop: Path, lists: Path, tmp_path: Path) -> None:
    output, keys = tmp_path / "scores.parquet", (f"model={shop}/export", "candidates=[item]")
    with refused(ConfigError, "candidates=['item']", "is for Parquet, .../test.csv is text"):
        predicted(output, *keys, f"input={shop}/test.csv")
    with refused(ConfigError, "labels", "are not read with candidates=, which have none"):
        predicted(output, *keys, f"input={lists}/lists.parquet", "labels=true")
    with refused(ConfigError, "candidates", "is for raw logs (input=), the dataset at data.path has its own"):
        predicted(output, *keys, f"data.path={shop}/dataset")
