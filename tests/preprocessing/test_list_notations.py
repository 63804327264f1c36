"""Lists that are filled up, that hold their own weights, or that numpy printed are the plain lists of their elements."""

import csv
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm_app.config.datasets import DatasetConfig
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.inference.predict.python_rows import to_table
from dlrm_app.inference.serve.request import JsonRows
from dlrm_app.logs.arrow_rows import ArrowCursor
from dlrm_app.logs.raw_columns import RawColumns
from dlrm_app.logs.read_spec import read_spec
from tests.preprocessing.running import content, rejects_of, run
from tests.refusals import refused

draw = np.random.default_rng(7)
LISTS = [[int(i) for i in draw.integers(1, 60, draw.integers(0, 6))] for _ in range(300)]
WEIGHTS = [[float(w) for w in draw.integers(1, 9, len(each)) / 4] for each in LISTS]
CLICKS, ITEMS = draw.integers(0, 2, len(LISTS)).tolist(), draw.integers(1, 60, len(LISTS)).tolist()
COLUMNS: list[dict[str, Any]] = [
    {"name": "click", "role": "label"},
    {"name": "item", "role": "sparse", "kind": "integer"},
    {"name": "hist", "role": "sparse", "kind": "integer", "separator": "|", "last": 3},
    {"name": "w", "role": "element_weights", "weights_of": "hist"},
]
DERIVED = [{"name": "seen", "kind": "in_list", "of": ["item", "hist"]}]


def description(*columns: dict[str, Any], **settings: Any) -> dict[str, Any]:
    marks = {"name": "a", "delimiter": ",", "quote": '"', "header": True}
    return {**marks, "columns": list(columns), "derived": DERIVED, **settings}


def made(
    folder: Path, name: str, form: dict[str, Any], table: dict[str, Any], kinds: Any = None
) -> dict[str, bytes]:
    """The files of a dataset made of ``table``, written as text, or as Parquet if there are ``kinds`` of its columns."""
    (folder / f"{name}.yaml").write_text(json.dumps(form))
    path = folder / f"{name}.{'csv' if kinds is None else 'parquet'}"
    if kinds is None:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([list(table), *zip(*table.values(), strict=True)])
    else:
        pq.write_table(pa.table({key: pa.array(v, kinds.get(key)) for key, v in table.items()}), path)
    settings = [
        f"dataset={folder}/{name}.yaml",
        f"input.train={path}",
        "rejects.max_fraction=0",
        "encoding=vocab",
    ]
    run(folder / name, *settings)
    return content(folder / name, ["manifest.json"])


def filled(lists: list[list[Any]], fill: Any, front: bool) -> list[list[Any]]:
    return [[fill] * (6 - len(e)) + e if front else e + [fill] * (6 - len(e)) for e in lists]


def joined(lists: list[list[Any]], form: Callable[[Any], str] = str) -> list[str]:
    return ["|".join(map(form, each)) for each in lists]


@pytest.mark.parametrize("front", [True, False])
def test_padded_lists_are_the_lists_without_padding(tmp_path: Path, front: bool) -> None:
    table = {"click": CLICKS, "item": ITEMS, "hist": LISTS, "w": WEIGHTS}
    lists = {"hist": pa.list_(pa.int64()), "w": pa.list_(pa.float64())}
    plain = made(tmp_path, "plain", description(*COLUMNS), table, lists)
    hist, weights = filled(LISTS, 0, front), filled(WEIGHTS, 0.5, front)
    with_padding = [{**each, **({"padding": "0"} if each["name"] == "hist" else {})} for each in COLUMNS]
    padded = table | {"hist": hist, "w": weights}
    for number, kind in enumerate(
        [pa.list_(pa.int64()), pa.list_(pa.int32(), 6), pa.large_list(pa.float64())]
    ):
        found = made(tmp_path, f"p{number}", description(*with_padding), padded, lists | {"hist": kind})
        assert found == plain
    of_text = padded | {"hist": joined(hist), "w": joined(weights)}
    for nulls in ([], ["0", "NA"]):
        form = description(*with_padding, null_values=nulls)
        assert made(tmp_path, f"text{len(nulls)}", form, of_text) == plain
    numbered = table | {"hist": [list(map(float, each)) for each in hist], "w": weights}
    as_floats = numbered | {"hist": joined(numbered["hist"]), "w": joined(weights)}
    assert made(tmp_path, "floats", description(*with_padding), as_floats) == plain


def keys(raw: RawColumns) -> list[list[int]]:
    ends, items, _ = raw.lists[0]
    return [items[a:b].tolist() for a, b in pairwise(ends)]


def test_padding_in_frames_and_json_is_left_out() -> None:
    column = {
        "name": "hist",
        "role": "sparse",
        "kind": "string",
        "separator": "|",
        "padding": "PAD",
        "first": 2,
    }
    spec = read_spec(DatasetConfig(name="a", columns=[column]))
    plain = [["a", "b", "c"], [], ["d"]]
    rows = [{"hist": each} for each in filled(plain, "PAD", front=True)]
    bare = pa.table({"hist": [each[:2] for each in plain]})
    wanted = keys(next(ArrowCursor(bare, spec).rows(9, None)))
    served = JsonRows(spec)
    tables = [
        (served.table(served.read(json.dumps({"rows": rows}).encode(), 9).rows), served.spec),
        *(
            (to_table(each, spec).combine_chunks(), spec)
            for each in (rows, pd.DataFrame(rows), pl.DataFrame(rows))
        ),
    ]
    for table, form in tables:
        assert keys(next(ArrowCursor(table, form).rows(9, None))) == wanted


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"separator": "|", "padding": 0}, "padding"),
        ({"separator": "|", "padding": "PAD"}, "padding"),
        ({"padding": "0"}, "padding"),
        ({"whole": True}, "whole"),
        ({"separator": "|", "weights": "|"}, "weights"),
        ({"separator": "|", "weights": "5"}, "weights"),
        ({"weights": ":"}, "weights"),
    ],
)
def test_keys_that_cannot_be_read_are_refused(keys: dict[str, Any], fault: str) -> None:
    column = {"name": "x", "role": "sparse", "kind": "integer", **keys}
    with pytest.raises(ConfigError) as caught:
        read_spec(DatasetConfig(name="a", columns=[column]))
    assert all(fault in problem.key for problem in caught.value.problems)


def test_weights_within_lists_are_element_weights(tmp_path: Path) -> None:
    table = {"click": CLICKS, "item": ITEMS, "hist": LISTS, "hist_weights": WEIGHTS}
    named = [{**each, **({"name": "hist_weights"} if each["name"] == "w" else {})} for each in COLUMNS]
    kinds = {"hist": pa.list_(pa.int64()), "hist_weights": pa.list_(pa.float64())}
    plain = made(tmp_path, "plain", description(*named), table, kinds)
    pairs = [[f"{i}:{w}" for i, w in zip(*each, strict=True)] for each in zip(LISTS, WEIGHTS, strict=True)]
    within = description(*COLUMNS[:2], {**COLUMNS[2], "weights": ":"})
    rows = {"click": CLICKS, "item": ITEMS, "hist": pairs}
    assert made(tmp_path, "lists", within, rows, {"hist": pa.list_(pa.string())}) == plain
    assert made(tmp_path, "texts", within, rows | {"hist": joined(pairs)}) == plain
    assert made(tmp_path, "strings", within, rows | {"hist": joined(pairs)}, {"hist": pa.string()}) == plain
    padded = description(*COLUMNS[:2], {**COLUMNS[2], "weights": ":", "padding": "0"})
    filled_up = rows | {"hist": joined(filled(pairs, "0:0.0", front=True))}
    assert made(tmp_path, "padded", padded, filled_up) == plain


def test_elements_without_a_weight_are_rejected(tmp_path: Path) -> None:
    bad = ["a", "a:", ":1", "a:x", "a:-1", "a:1e-39", "a:1e39", "a:1|b"]
    column = {"name": "x", "role": "sparse", "kind": "string", "separator": "|", "weights": ":"}
    form = {"name": "a", "delimiter": ",", "columns": [{"name": "y", "role": "label"}, column]}
    (tmp_path / "a.yaml").write_text(json.dumps(form))
    (tmp_path / "a.csv").write_text(
        "".join(f"{row % 2},{text}\n" for row, text in enumerate(["a:b:1", "", *bad]))
    )
    run(
        tmp_path / "out",
        f"dataset={tmp_path}/a.yaml",
        f"input.train={tmp_path}/a.csv",
        "rejects.max_fraction=0.9",
        "encoding=vocab",
    )
    assert [each["line"] for each in rejects_of(tmp_path / "out")] == [*range(3, 3 + len(bad))]
    values = pq.read_table(tmp_path / "out/vocab/x.parquet")["value"].to_pylist()
    assert values == ["a:b"]


def test_lists_as_numpy_prints_them(tmp_path: Path) -> None:
    lists = [*LISTS, list(range(40))]
    table = {"click": [*CLICKS, 1], "item": [*ITEMS, 5]}
    plain = made(
        tmp_path, "plain", description(*COLUMNS[:3]), table | {"hist": lists}, {"hist": pa.list_(pa.int32())}
    )
    printed = [str(np.array(each, np.int64)) for each in lists]
    assert "\n" in printed[-1]
    column = {**COLUMNS[2], "separator": " ", "brackets": "[]"}
    assert (
        made(tmp_path, "parquet", description(*COLUMNS[:2], column), table | {"hist": printed}, {}) == plain
    )
    one_line = [" \t".join(each.split("\n")) for each in printed]
    assert made(tmp_path, "text", description(*COLUMNS[:2], column), table | {"hist": one_line}) == plain
    of_floats = [str(np.array(each, np.float64)).replace("\n", " ") for each in lists]
    assert made(tmp_path, "floats", description(*COLUMNS[:2], column), table | {"hist": of_floats}) == plain


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (str(np.arange(2000)).replace("\n", " "), "has ... in place of elements"),
        ("[1 2 … 3]", "has ... in place of elements"),
        ("[[1 2] [3 4]]", "holds lists in lists"),
        ("['a b' 'c']", "quotes around it may not hold the separator"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_lists_that_are_not_whole_are_refused(tmp_path: Path, text: str, reason: str, kind: str) -> None:
    column = {"name": "x", "role": "sparse", "kind": "string", "separator": " ", "brackets": "[]"}
    form = description({"name": "click", "role": "label"}, column, derived=[])
    table = {"click": [0, 1], "x": ["[a b]", text]}
    with refused(DataError, "...:...", f"...{reason}..."):
        made(tmp_path, "log", form, table, None if kind == "csv" else {})
