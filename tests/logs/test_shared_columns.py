"""Columns that all rows share are read once, and give what the same values repeated in each row give."""

from dataclasses import fields

import numpy as np
import pyarrow as pa
import pytest
import yaml

from dlrm_app.config.datasets import DatasetConfig
from dlrm_app.logs.arrow_rows import ArrowCursor
from dlrm_app.logs.raw_columns import RawColumns, RawList, RepeatedList
from dlrm_app.logs.read_spec import read_spec

SPEC = """
name: of a test
delimiter: ","
header: true
columns:
  - {name: age, role: dense, kind: integer}
  - {name: price, role: dense, kind: float}
  - {name: at, role: time, kind: seconds}
  - {name: user, role: sparse, kind: string}
  - {name: shop, role: sparse, kind: integer}
  - {name: item, role: sparse, kind: string}
  - {name: last_items, role: sparse, kind: string, separator: "|", last: 3, padding: "0"}
  - {name: dwell, role: element_weights, weights_of: last_items}
  - {name: bought, role: sparse, kind: string, separator: "|", weights: ":"}
  - {name: text, role: vector, size: 2, separator: "|"}
derived:
  - {name: hour, kind: hour, of: at}
  - {name: user_item, kind: cross, of: [user, item]}
  - {name: seen, kind: in_list, of: [item, last_items]}
"""
spec = read_spec(DatasetConfig(**yaml.safe_load(SPEC)))
NAMES = [column.name for column in spec.columns]
LISTS = {
    "last_items": [["a", "0", "b", "c", "d"], [], ["b", "a"], [None], ["0", "0"]],
    "dwell": [[1.0, 9.0, 2.0, 3.0, 0.5], [], [1.0, 0.0], [], [1.0, 2.0]],
    "bought": [["a:2", "b:0.5"], [], ["c:1"]],
    "text": [[1.0, 2.0], [], [-0.0, 3.5]],
}
VALUES = {
    "age": [3, None, 40],
    "price": [1.5, None],
    "at": [1.7e9, None, 1.71e9],
    "user": ["u", None, "a"],
    "shop": [7, 8],
    "item": ["a", "b", "", "0"],
}


def drawn(rows: int, seed: int) -> dict[str, list[object]]:
    """Rows whose lists and their weights have equal numbers of elements."""
    random = np.random.default_rng(seed)
    places = random.integers(0, 5, rows)
    every = {**VALUES, **LISTS}
    return {
        name: [
            every[name][place if name in ("last_items", "dwell") else place % len(every[name])]
            for place in (places if name == "dwell" or name == "last_items" else random.integers(0, 60, rows))
        ]
        for name in NAMES
    }


def read(table: pa.Table, shared: pa.Table | None = None) -> tuple[RawColumns, list[object]]:
    cursor = ArrowCursor(table, spec)
    cursor.restart(table, shared)
    (raw,) = cursor.rows(100, None)
    return raw, [(each.line, each.column, each.reason) for each in cursor.take_rejects()]


def plain(value: object) -> object:
    """``value`` in a form that compares."""
    if isinstance(value, RawList):
        return value.ends.tolist(), value.keys[: value.ends[-1]].tolist()
    if isinstance(value, np.ndarray):
        return value.tobytes()
    return [plain(each) for each in value] if isinstance(value, list) else None


def all_of(raw: RawColumns) -> dict[str, object]:
    found = {each.name: plain(getattr(raw, each.name)) for each in fields(raw)}
    return found | {"one_hot": [raw.one_hot[c].tobytes() for c in range(len(raw.one_hot))]}


def as_table(columns: dict[str, list[object]]) -> pa.Table:
    return pa.table({name: pa.array(values) for name, values in columns.items()})


@pytest.mark.parametrize("seed", range(25))
def test_shared_columns_are_those_of_rows_that_repeat_them(seed: int) -> None:
    random, rows = np.random.default_rng(seed), drawn(30, seed)
    names = [name for name in NAMES if random.random() < 0.6 and name != "dwell"]
    names += ["dwell"] * ("last_items" in names)  # their sizes must agree
    shared = {name: rows[name][:1] for name in names}
    own = {name: values for name, values in rows.items() if name not in names}
    whole = {name: shared[name] * 30 if name in names else rows[name] for name in NAMES}
    table = as_table(own) if own else pa.Table.from_struct_array(pa.array([{}] * 30, pa.struct([])))
    assert [all_of(read(as_table(whole))[0])] == [all_of(read(table, as_table(shared))[0])]


def test_a_bad_shared_value_is_refused_in_each_row() -> None:
    rows = drawn(3, 0)
    own = {name: values for name, values in rows.items() if name != "age"}
    _, expected = read(as_table({**own, "age": ["x"] * 3}))
    _, found = read(as_table(own), as_table({"age": ["x"]}))
    assert found == expected
    assert len(found) == 3


def test_a_repeated_list_is_known_as_one_until_its_rows_differ() -> None:
    ends, keys = np.array([0, 3, 3]), np.array([5, 6, 7], np.uint64)
    lists = RepeatedList.of(RawList(ends, keys, np.zeros((0, 2), np.int64)), 4)
    assert isinstance(lists.cut(None, 2), RepeatedList)
    assert lists.cut(None, 2).keys.tolist() == [6, 7] * 4
    unlike = lists.where(np.arange(12) != 4)
    assert not isinstance(unlike, RepeatedList)
    assert np.diff(unlike.ends).tolist() == [3, 2, 3, 3]
