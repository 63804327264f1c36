"""Lists as Python writes them, ``[1, 2]``, are the lists of the same elements, in text and in Parquet."""

import csv
import json
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given

from dlrm_app.config.datasets import DatasetConfig
from dlrm_app.errors import ConfigError
from dlrm_app.inference.serve.request import JsonRows
from dlrm_app.logs.arrow_rows import ArrowCursor
from dlrm_app.logs.parser import Parser
from dlrm_app.logs.read_spec import read_spec
from dlrm_app.logs.sources.text_units import PADDING
from dlrm_app.tools.checking.raw_logs import check_raw
from tests.inference.shop import body_of
from tests.logs.test_lines import rows_of
from tests.preprocessing.running import run, table_of
from tests.refusals import refused

ROWS = [([1, 2, 2], ["a", "b c"]), ([], ["d"]), ([30], []), ([4, 5], ["ö", "a", "e"])] * 50
"""The elements of two lists."""


def write(folder: Path, name: str, lists: Callable[[list[Any]], str], **keys: str) -> list[str]:
    """A CSV file whose lists are written by ``lists``. Returns the settings that name it and its format."""
    with (folder / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["clicked", "ids", "words"])
        writer.writerows([n % 2, lists(ids), lists(words)] for n, (ids, words) in enumerate(ROWS))
    form = description(**keys)
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(form))
    return [f"dataset={folder}/{name}.yaml", f"input.train={folder}/{name}.csv"]


def description(**keys: Any) -> dict[str, Any]:
    kinds = {"ids": "integer", "words": "string"}
    lists = [{"name": name, "role": "sparse", "kind": kind, **keys} for name, kind in kinds.items()]
    columns = [{"name": "clicked", "role": "label"}, *lists]
    return {"name": "of_a_test", "delimiter": ",", "quote": '"', "header": True, "columns": columns}


BRACKETS = {"separator": ",", "brackets": "[]"}
FORMS: dict[str, Callable[[list[Any]], str]] = {
    "python": str,
    "json": lambda items: json.dumps(items, ensure_ascii=False),
    "narrow": lambda items: str(items).replace(", ", ","),
    "wide": lambda items: f" [ {str(items)[1:-1].replace(', ', ' ,  ')} ]",
    "bare": lambda items: f"[{', '.join(map(str, items))}]",
}


@pytest.mark.parametrize(("form", "encoding"), [*zip(FORMS, cycle(["hash", "vocab"]))])
def test_lists_in_brackets_equal_lists_with_a_separator(tmp_path: Path, form: str, encoding: str) -> None:
    options = [f"encoding={encoding}", *(["encoding.min_count=1"] if encoding == "vocab" else [])]
    plain = write(tmp_path, "plain", lambda items: "|".join(map(str, items)), separator="|")
    expected = run(tmp_path / "plain_out", *plain, *options)
    made = run(tmp_path / "out", *write(tmp_path, form, FORMS[form], **BRACKETS), *options)
    assert table_of(made).equals(table_of(expected))
    assert made.splits["train"].rejects == 0
    texts = {
        "clicked": [n % 2 for n in range(len(ROWS))],
        "ids": [FORMS[form](ids) for ids, _ in ROWS],
        "words": [FORMS[form](words) for _, words in ROWS],
    }
    for number, kind in enumerate((pa.string(), pa.dictionary(pa.int32(), pa.string()))):
        stored = {
            name: pa.array(each).cast(kind) if name != "clicked" else each for name, each in texts.items()
        }
        pq.write_table(pa.table(stored), tmp_path / f"{number}.parquet")
        given = [f"dataset={tmp_path}/{form}.yaml", f"input.train={tmp_path}/{number}.parquet"]
        parquet = run(tmp_path / f"parquet_{number}", *given, *options)
        assert table_of(parquet).equals(table_of(expected))


texts = st.text("[]1a ,;'\"\t-", max_size=12)
escapes = st.lists(
    st.sampled_from(["\\", '"', "'", "u00e9", "\\ud83d", "\\ude00", "\\x41", "n", ",", " ", "null", "None"]),
    max_size=9,
).map(lambda parts: '["' + "".join(parts) + '"]')


@given(lists=st.lists(texts | escapes, min_size=1, max_size=6))
@pytest.mark.parametrize("brackets", ["[]", None])
def test_any_text_is_the_same_in_text_and_parquet(lists: list[str], brackets: str | None) -> None:
    for kind in ("integer", "string"):
        column = {"name": "x", "role": "sparse", "kind": kind, **BRACKETS, "brackets": brackets}
        column |= {"separator": ","} if brackets else {"separator": ";"}
        form = read_spec(DatasetConfig(**{**description(), "header": False, "columns": [column]}))
        lines = "".join(f'"{text.replace(chr(34), 2 * chr(34))}"\n' for text in lists).encode()
        parser = Parser(form, len(lists))
        text = np.frombuffer(bytearray(lines + bytes(PADDING)), np.uint8)
        _, _, rejects = parser.parse(text, 0, len(lines), len(lists))
        cursor = ArrowCursor(pa.table({"x": lists}), form)
        rows = [row for raw in cursor.rows(len(lists), None) for row in rows_of(raw, form)]
        assert [reject.line for reject in rejects] == [reject.line for reject in cursor.take_rejects()]
        assert rows_of(parser.take(), form) == rows


ODD = [
    ["café", 'say "hi"', "it's"],
    [None, '5" disc', "a\\b"],
    ["😀", None],
    ["tab\tend", "C:\\dir"],
    ["x"],
] * 20


def quoted(items: list[Any], separator: str) -> str:
    return separator.join("" if item is None else item for item in items)


@pytest.mark.parametrize("form", ["json", "python", "blanks"])
@pytest.mark.parametrize("stored", ["csv", "parquet"])
def test_odd_elements_equal_those_of_lists_of_parquet(tmp_path: Path, form: str, stored: str) -> None:
    """Missing ones, escapes, and blanks around elements without brackets."""
    written = {"json": json.dumps, "python": str, "blanks": lambda items: quoted(items, " | ")}[form]
    keys: dict[str, Any] = {**BRACKETS} if form != "blanks" else {"separator": "|"}
    lists = {"native": ODD, stored: list(map(written, ODD))}
    numbers = [[1, None], [2, 3]] * 50
    as_text = [written([None if n is None else str(n) for n in each]) for each in numbers]
    as_text = [text.replace("'", "").replace('"', "") for text in as_text]
    tables, vocabularies = [], []
    for name, words in lists.items():
        ids = numbers if name == "native" else as_text
        table = pa.table({"clicked": [n % 2 for n in range(len(words))], "ids": ids, "words": words})
        path = tmp_path / f"{name}.{'csv' if name == 'csv' else 'parquet'}"
        if name == "csv":
            with path.open("w", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerows([table.column_names, *(row.values() for row in table.to_pylist())])
        else:
            pq.write_table(table, path)
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(description(**keys)))
        settings = [f"dataset={tmp_path}/{name}.yaml", f"input.train={path}", "encoding=vocab"]
        made = run(tmp_path / f"{name}_out", *settings, "encoding.min_count=1", "rejects.max_fraction=0")
        tables.append(table_of(made))
        vocabularies.append(pq.read_table(tmp_path / f"{name}_out/vocab/words.parquet"))
    assert tables[0].equals(tables[1])
    assert vocabularies[0].equals(vocabularies[1])


def test_a_text_without_its_brackets_is_rejected_by_name(tmp_path: Path) -> None:
    given = write(tmp_path, "log", lambda items: str(items)[1:] if items == [30] else str(items), **BRACKETS)
    run(tmp_path / "out", *given, "rejects.max_fraction=0.5")
    rejects = [json.loads(line) for line in (tmp_path / "out/rejects.jsonl").read_text().splitlines()]
    assert {each["reason"] for each in rejects} == {"ids is '30]', must be a list in []"}
    assert len(rejects) == 50


def test_served_lists_equal_the_logs() -> None:
    form = read_spec(DatasetConfig(**description(**BRACKETS)))
    given: list[dict[str, Any]] = [{"ids": ids, "words": words} for ids, words in ROWS[:4]]
    rows = JsonRows(form)
    (served,) = ArrowCursor(rows.table(rows.read(body_of(given), 10).rows), rows.spec).rows(10, None)
    logged = pa.table({name: [str(row[name]) for row in given] for name in ("ids", "words")})
    bare = form.without_label()
    (raw,) = ArrowCursor(logged, bare).rows(10, None)
    assert rows_of(served, rows.spec) == rows_of(raw, bare)


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"separator": ",", "brackets": "<>"}, "brackets"),
        ({"brackets": "[]"}, "brackets"),
        ({"separator": "\t", "brackets": "[]"}, "separator"),
        ({"separator": "]", "brackets": "[]"}, "separator"),
        ({"separator": ","}, "separator"),
    ],
)
def test_brackets_that_cannot_be_read_are_refused(keys: dict[str, str], fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_spec(DatasetConfig(**description(**keys)))
    assert all(fault in problem.key for problem in caught.value.problems)


def test_a_delimiter_needs_quotes_to_be_a_separator() -> None:
    with refused(ConfigError, "...separator", "must be one ASCII character that nothing else uses"):
        read_spec(DatasetConfig(**{**description(**BRACKETS), "quote": None}))


def test_the_proposal_for_lists_in_brackets_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "log", str, **BRACKETS)
    check_raw("log.csv", "proposed.yaml")
    columns = {each["name"]: each for each in yaml.safe_load(Path("proposed.yaml").read_text())["columns"]}
    assert columns["ids"] == {"name": "ids", "role": "sparse", "kind": "integer", **BRACKETS}
    assert columns["words"] == {"name": "words", "role": "sparse", "kind": "string", **BRACKETS}
    manifest = run(tmp_path / "out", "dataset=proposed.yaml", "input.train=log.csv", "rejects.max_fraction=0")
    assert [column.multi_hot for column in manifest.sparse] == [True, True]
