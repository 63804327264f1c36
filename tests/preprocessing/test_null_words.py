"""Null words mean missing values: CSV and Parquet of the same rows give the same dataset, whatever words and types."""

import datetime
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from dlrm_app.config.datasets import PreprocessConfig
from dlrm_app.preprocessing.preprocess import preprocess
from tests.preprocessing.running import configure, content, rejects_of, run, table_of

WORDS = [
    "NA",
    "\\N",
    "-1",
    "-1.0",
    "-1e0",
    "0",
    "2.5",
    "ff",
    "0FF",
    "a",
    'a"b',
    "1970-01-02",
    "86400",
    "1",
    "1e39",
]
DERIVED = [
    *(
        {"name": f"{kind}_{of}", "kind": kind, "of": of}
        for kind in ("hour", "weekday")
        for of in ("at", "at_seconds")
    ),
    {"name": "between", "kind": "seconds_since", "of": ["at", "at_milliseconds"]},
    {"name": "cross", "kind": "cross", "of": ["id", "word"]},
    {"name": "in", "kind": "in_list", "of": ["id", "ids"]},
]
ZONES = [None, "UTC", "Asia/Tokyo", "America/St_Johns"]
TEXTS = [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
MOMENTS = (0, 86_400, 86_399, 1_772_395_200, -1)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Case(NamedTuple):
    """A column: its description, its type in Parquet, and values with their texts, from which its rows are drawn."""

    column: dict[str, str]
    stored: Sequence[pa.DataType]
    values: Sequence[tuple[Any, str]]


def numbers(*values: float) -> list[tuple[Any, str]]:
    """Numbers, each with some texts of it: writers differ."""
    return [(value, text) for value in values for text in {str(value), f"{value:g}", repr(float(value))}]


def whole(*values: int) -> list[tuple[Any, str]]:
    return [(value, str(value)) for value in values]


def texts(*values: str) -> list[tuple[Any, str]]:
    return [(value, value) for value in values]


def moments(text: Callable[[int], str]) -> list[tuple[Any, str]]:
    return [(EPOCH + datetime.timedelta(seconds=each), text(each)) for each in MOMENTS]


def iso(seconds: int) -> str:
    return (EPOCH + datetime.timedelta(seconds=seconds)).isoformat()


STAMPS = [pa.timestamp(unit, zone) for unit in ("ms", "us") for zone in ZONES]
INTS, FLOATS = [pa.int16(), pa.int32(), pa.int64(), pa.float64()], [pa.float32(), pa.float64()]
CASES = {
    "whole": Case({"role": "dense", "kind": "integer"}, INTS, whole(-1, 0, 1, 7, 86400 // 4)),
    "number": Case({"role": "dense", "kind": "float"}, FLOATS, numbers(-1.0, 0.0, 2.5, 7.25, 86_400.0)),
    "tenth": Case({"role": "dense", "kind": "float"}, [pa.float64()], numbers(-0.1, 0.3, 1e-7)),
    "written": Case(
        {"role": "dense", "kind": "float"}, TEXTS, texts("-1", "-1.00", "NA", "2.5", "\\N", "1e39", "-1e0")
    ),
    "score": Case({"role": "dense", "kind": "score"}, FLOATS, numbers(-1.0, 0.0, 0.25, 1.0)),
    "id": Case({"role": "sparse", "kind": "integer"}, [*INTS, pa.uint64()][:4], whole(-1, 0, 1, 5)),
    "large": Case({"role": "sparse", "kind": "integer"}, [pa.int64()], whole(-1, 2**62 + 1, 2**62)),
    "id_text": Case(
        {"role": "sparse", "kind": "integer"}, TEXTS, texts("-1", "NA", "\\N", "0", "5", "-1.0", "-1e0", "x")
    ),
    "code": Case({"role": "sparse", "kind": "string"}, INTS[:3], whole(-1, 0, 1)),
    "word": Case(
        {"role": "sparse", "kind": "string"}, TEXTS, texts("NA", "a", 'a"b', "-1", "-1.0", "\\N", "b", "")
    ),
    "hex": Case({"role": "sparse", "kind": "hex"}, TEXTS, texts("ff", "0fF", "0", "00", "a", "NA")),
    "ids": Case(
        {"role": "sparse", "kind": "integer", "separator": "|"},
        [pa.list_(pa.int64()), pa.large_list(pa.int32()), pa.list_(pa.float64()), pa.string()],
        whole(-1, 0, 5, 6),
    ),
    "words": Case(
        {"role": "sparse", "kind": "string", "separator": "|"},
        [
            pa.list_(pa.string()),
            pa.list_(pa.dictionary(pa.int32(), pa.string())),
            pa.list_(pa.large_string()),
            pa.string(),
        ],
        texts("NA", "a", "b", "-1", "", "\\N"),
    ),
    "hexes": Case(
        {"role": "sparse", "kind": "hex", "separator": "|"},
        [pa.list_(pa.string())],
        texts("ff", "FF", "0", "1"),
    ),
    "at": Case({"role": "time", "kind": "iso"}, STAMPS, moments(iso)),
    "at_seconds": Case({"role": "time", "kind": "seconds"}, STAMPS, moments(str)),
    "at_milliseconds": Case(
        {"role": "time", "kind": "milliseconds"}, INTS[2:], whole(-1, 0, 86_400_000, 86_400)
    ),
    "since": Case({"role": "dense", "kind": "integer"}, STAMPS, moments(str)),
    "day": Case(
        {"role": "sparse", "kind": "integer"}, STAMPS, moments(lambda seconds: str(seconds // 86_400))
    ),
    "key": Case({"role": "sparse", "kind": "string"}, [], texts("NA", "a", "-1", "b")),
    "key_number": Case({"role": "dense", "kind": "float"}, [], texts("-1", "-1.0", "7")),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[Any]], list[list[str]], list[pa.DataType]]:
    """(null words; values and texts of each column of CASES and of the times; types)."""
    rows = draw(st.integers(1, 8))
    words = draw(st.lists(st.sampled_from(WORDS), unique=True, max_size=4))
    values, written, kinds = [], [], []
    for case in CASES.values():
        pool = [(None, ""), *case.values]
        stored = draw(st.sampled_from(case.stored)) if case.stored else pa.string()
        if case.column.get("separator"):
            drawn = draw(st.lists(st.lists(st.sampled_from(pool), max_size=3), min_size=rows, max_size=rows))
            written.append(["|".join(text for _, text in row) for row in drawn])
            items = [[value for value, _ in row] for row in drawn]
            values.append(written[-1] if pa.types.is_string(stored) else items)
        else:
            size = 1 if not case.stored else rows  # a key of the folder
            drawn = draw(st.lists(st.sampled_from(pool), min_size=size, max_size=size)) * (rows // size)
            values.append([value for value, _ in drawn])
            written.append([text for _, text in drawn])
        kinds.append(stored)
    return words, values, written, kinds


def write_form(
    folder: Path, words: Sequence[str], columns: dict[str, dict[str, str]], derived: Any = ()
) -> str:
    form = {"name": "small", "delimiter": ",", "quote": '"', "header": False, "null_values": list(words)}
    form |= {
        "columns": [{"name": name, **column} for name, column in columns.items()],
        "derived": list(derived),
    }
    (folder / "small.yaml").write_text(json.dumps(form), encoding="utf-8")
    return f"dataset={folder}/small.yaml"


def write_csv(path: Path, columns: Sequence[Sequence[str]]) -> None:
    quoted = [[text.replace('"', '""') for text in row] for row in zip(*columns, strict=True)]
    path.write_text("".join(",".join(f'"{text}"' for text in row) + "\n" for row in quoted), encoding="utf-8")


def dataset_of(
    config: PreprocessConfig, path: Path, output: Path
) -> tuple[dict[str, bytes], list[tuple[Any, Any]]]:
    """(files of the dataset made of ``path``, but for those that name the source; rows and columns of rejects)"""
    preprocess(replace(config, input=replace(config.input, train=str(path)), output=str(output)))
    rejects = [(reject["line"], reject["column"]) for reject in rejects_of(output)]
    return content(output, ["manifest.json", "rejects.jsonl"]), rejects


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> PreprocessConfig:
    """Settings for the columns of CASES, without null words."""
    columns = {"y": {"role": "label"}} | {name: case.column for name, case in CASES.items()}
    form = write_form(tmp_path_factory.mktemp("form"), [], columns, DERIVED)
    return configure(form, "rejects.max_fraction=0.99", "encoding=vocab", "input.train=x", "output=x")


@pytest.mark.long
@settings(max_examples=40, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(tables())
def test_csv_and_parquet_agree_on_any_null_words(config: PreprocessConfig, table: Any) -> None:
    words, values, written, kinds = table
    labels = [0, *(row % 2 for row in range(len(values[0])))]
    keys = [name for name, case in CASES.items() if not case.stored]
    places = {name: place for place, name in enumerate(CASES)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # a first row without values, but for the keys of the folder, is never rejected
        first = [text[0] if name in keys else "" for name, text in zip(CASES, written, strict=True)]
        rows = [[begin, *text] for begin, text in zip(first, written, strict=True)]
        write_csv(folder / "rows.csv", [list(map(str, labels)), *rows])
        stored = {
            name: pa.array([None, *values[place]], kinds[place])
            for name, place in places.items()
            if name not in keys
        }
        parts = [f"{key}={written[places[key]][0] or '__HIVE_DEFAULT_PARTITION__'}" for key in keys]
        (inside := folder.joinpath("lake", *parts)).mkdir(parents=True)
        pq.write_table(pa.table({"y": pa.array(labels), **stored}), inside / "rows.parquet", row_group_size=3)
        wanted = replace(config, dataset=replace(config.dataset, null_values=words))
        of_csv = dataset_of(wanted, folder / "rows.csv", folder / "of_csv")
        assert dataset_of(wanted, folder / "lake", folder / "of_parquet") == of_csv


@pytest.mark.parametrize(
    ("column", "word", "array", "written"),
    [
        ({"role": "dense", "kind": "float"}, "-0.1", pa.array([-0.1, 2.0], pa.float32()), ["-0.1", "2"]),
        ({"role": "dense", "kind": "float"}, "-1", pa.array([-1.0, 2.0]), ["-1.0", "2.0"]),
        ({"role": "dense", "kind": "integer"}, "-1.0", pa.array([-1, 2]), ["-1", "2"]),
        ({"role": "sparse", "kind": "integer"}, "-1", pa.array([-1.0, 2.0]), ["-1.0", "2"]),
        ({"role": "sparse", "kind": "integer"}, str(2**62), pa.array([2**62, 2**62 + 1]), None),
        ({"role": "sparse", "kind": "hex"}, "ff", pa.array(["0FF", "fe"]), ["0FF", "fe"]),
        ({"role": "sparse", "kind": "string"}, "-1", pa.array(["-1.0", "-1"]), ["-1.0", "-1"]),
        ({"role": "dense", "kind": "score"}, "-1", pa.array([-1.0, 0.5]), ["-1.0", "0.5"]),
        ({"role": "dense", "kind": "float"}, "-inf", pa.array([-float("inf"), 2.0]), None),
        ({"role": "sparse", "kind": "integer"}, "0", pa.array([False, True]), ["0", "1"]),
    ],
)
def test_null_words_are_compared_by_value(
    column: dict[str, str], word: str, array: Any, written: list[str] | None, tmp_path: Path
) -> None:
    columns = {"y": {"role": "label"}, "x": column, "k": {"role": "sparse", "kind": "string"}}
    form, written = (
        write_form(tmp_path, [word], columns),
        written or [str(each) for each in array.to_pylist()],
    )
    write_csv(tmp_path / "rows.csv", [["0", "1"], written, ["u", "v"]])
    pq.write_table(pa.table({"y": [0, 1], "x": array, "k": ["u", "v"]}), tmp_path / "rows.parquet")
    found = []
    for name in ("rows.csv", "rows.parquet"):
        manifest = run(
            tmp_path / f"of_{name}", form, f"input.train={tmp_path}/{name}", "dense.transform=none"
        )
        rates = {column.name: column.missing_rate for column in (*manifest.dense, *manifest.sparse)}
        assert (manifest.splits["train"].rows, rates["x"]) == (2, 0.5)
        found.append(table_of(manifest).to_pydict())
    assert found[0] == found[1]


def test_labels_are_never_missing(tmp_path: Path) -> None:
    form = write_form(
        tmp_path, ["0", "NA"], {"y": {"role": "label"}, "x": {"role": "sparse", "kind": "integer"}}
    )
    write_csv(tmp_path / "rows.csv", [["0", "1", "NA"], ["0", "1", "2"]])
    pq.write_table(pa.table({"y": [0, 1, None], "x": [0, 1, 2]}), tmp_path / "rows.parquet")
    for name in ("rows.csv", "rows.parquet"):
        keys = (form, f"input.train={tmp_path}/{name}", "rejects.max_fraction=0.5")
        manifest = run(tmp_path / f"of_{name}", *keys, "encoding=vocab")
        assert [(r["line"], r["column"]) for r in rejects_of(tmp_path / f"of_{name}")] == [(3, "y")]
        assert table_of(manifest).to_pydict() == {"y": [0, 1], "x": [0, 2]}
