"""dlrm-check on text files whose oddities come late or in other files than the first; proposals run as they stand."""

import itertools
import json
import math
import random
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from dlrm_app.errors import ConfigError
from dlrm_app.tools.checking.raw_logs import check_raw
from tests.preprocessing.running import AUTO, run
from tests.refusals import refused
from tests.small_run import train_here


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


number = itertools.count()


def proposed(given: str | list[str]) -> dict[str, Any]:
    """The proposal for files, by which all their rows are preprocessed into the folder ``out``."""
    Path("log.yaml").unlink(missing_ok=True)
    text = check_raw(given, "log.yaml").yaml
    found: dict[str, Any] = yaml.safe_load(text)
    found["columns"] = {column.pop("name"): column for column in found["columns"]}
    found["notes"] = {
        name: next((line.partition("#")[2] for line in text.splitlines() if f"name: {name}," in line), "")
        for name in found["columns"]
    }
    return found


def vocabularies(given: str, *features: str) -> dict[str, set[Any]]:
    """The values that have ids, by feature, once the files are preprocessed as proposed."""
    output = Path(f"out{next(number)}")
    settings = [each for each in AUTO if not each.startswith("encoding=")]
    settings += ["encoding=vocab", "encoding.min_count=1", "rejects.max_fraction=0"]
    run(output, "dataset=log.yaml", f"input.train={given}", *settings)
    return {
        feature: {*pq.read_table(output / "vocab" / f"{feature}.parquet")["value"].to_pylist()} - {None}
        for feature in features
    }


def write(path: str, head: str, rows: list[str]) -> None:
    Path(path).write_text("".join(f"{line}\n" for line in [head, *rows]))


def test_every_file_tells_of_null_words_quotes_and_whole_numbers() -> None:
    for file in range(20):
        write(
            f"a{file:02d}.csv", "click,user_id,shop", [f"{r % 2},{1000 + r % 5},s{r % 4}" for r in range(60)]
        )
    odd = [f"s{r % 4},{r % 2},{1000 + r % 5}.0" for r in range(60)] + ["NULL,0,1001.0", '"",1,1002.0']
    write("a19.csv", "shop,click,user_id", odd)  # the last, in another order
    found = proposed("a*.csv")
    assert (found["quote"], found["null_values"]) == ('"', ["NULL"])
    assert found["columns"]["user_id"] == {"role": "sparse", "kind": "string", "whole": True}
    assert vocabularies("a*.csv", "user_id", "shop") == {
        "user_id": {f"{1000 + user}" for user in range(5)},
        "shop": {f"s{shop}" for shop in range(4)},
    }


def test_a_file_that_lacks_a_column_is_named() -> None:
    write("a.csv", "click,shop", [f"{r % 2},s{r % 4}" for r in range(60)])
    write("b.csv", "click,store", [f"{r % 2},s{r % 4}" for r in range(60)])
    with refused(ConfigError, "b.csv", "lacks columns that the first file has, shop"):
        check_raw("*.csv", None)


def test_a_byte_that_is_not_utf_8_is_named_with_its_file() -> None:
    write("a.csv", "click,shop,name", [f"{r % 2},s{r % 4},x{r % 3}" for r in range(60)])
    Path("b.csv").write_bytes(b"click,shop,name\n1,s1,x1\n0,s2,caf\xe9\n")
    assert "the first 0xE9 in line 3 of b.csv" in check_raw("*.csv", None).yaml


@pytest.mark.parametrize("late", ['"5"" disc"', '""', '"a, b"', '"two\nlines"'])
def test_quotes_that_begin_late_are_quotes(late: str) -> None:
    rows = [f"{r % 2},offer {r % 9},s{r % 5}" for r in range(600)]
    write("a.csv", "click,title,shop", [*rows, *[f"{r % 2},{late},s1" for r in range(20)]])
    assert proposed("a.csv")["quote"] == '"'
    value = {late[1:-1].replace('""', '"')} if len(late) > 2 else set()
    assert vocabularies("a.csv", "title")["title"] == {f"offer {r}" for r in range(9)} | value


def test_texts_that_begin_with_a_quote_by_chance_are_not_in_quotes() -> None:
    titles = ['"Great" disc', "plain", '5" disc', '"Best" of all']
    write("a.tsv", "click\ttitle\tshop", [f"{r % 2}\t{titles[r % 3 + r % 2]}\ts{r % 5}" for r in range(600)])
    assert proposed("a.tsv")["quote"] is None
    assert vocabularies("a.tsv", "title")["title"] == {*titles}


def test_a_delimiter_that_fits_the_first_lines_alone_is_not_one() -> None:
    rows = [f"{r % 2}|a;b{r % 3}|x{r % 7}" for r in range(300)] + [
        f"{r % 2}|c{r % 3}|x{r % 7}" for r in range(300)
    ]
    write("a.csv", "click|user;item|shop", rows)
    assert proposed("a.csv")["delimiter"] == "|"


LISTS: dict[str, tuple[Callable[[list[Any]], str], dict[str, Any]]] = {
    "commas": (lambda items: ", ".join(items), {"separator": ","}),
    "semicolons": (lambda items: "; ".join(items), {"separator": ";"}),
    "pipes": (lambda items: " | ".join(items), {"separator": "|"}),
    "null_words": (lambda items: "|".join([*items, "NULL"]), {"separator": "|"}),
    "json": (lambda items: json.dumps([*items, None]), {"separator": ",", "brackets": "[]"}),
    "python": (lambda items: str([*items, None, math.nan]), {"separator": ",", "brackets": "[]"}),
    "postgres": (lambda items: "{" + ",".join([*items, "NULL"]) + "}", {"separator": ",", "brackets": "{}"}),
}


@pytest.mark.parametrize("form", LISTS)
@pytest.mark.parametrize("kind", ["string", "integer"])
def test_an_element_has_one_id_and_missing_ones_have_none(form: str, kind: str) -> None:
    written, keys = LISTS[form]
    values = ["rock", "pop", "jazz", "café"] if kind == "string" else ["10", "11", "12", "13"]
    draw = random.Random(1)
    lists = [draw.sample(values, 1 + draw.randrange(3)) for _ in range(600)]
    rows = [f"{r % 2}\ts{r % 5}\t{written(items)}" for r, items in enumerate(lists)]
    write("a.tsv", "click\tshop\ttags", rows)
    assert proposed("a.tsv")["columns"]["tags"] == {"role": "sparse", "kind": kind, **keys}
    found = vocabularies("a.tsv", "tags")["tags"]
    assert {str(value) for value in found} == {*values}


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_numbers_are_read_without_their_padding(form: str) -> None:
    """As Oracle, SAS and printf write them, beside the same numbers without."""
    draw = random.Random(1)
    rows = [
        (r % 2, draw.randrange(200), round(draw.expovariate(0.01), 2), draw.randrange(30)) for r in range(600)
    ]
    names = ["click", "position", "price", "shop_id"]
    tables = []
    for widths in (("", "", "", ""), ("2d", "6d", "9.2f", "5d")):
        fields = [[format(value, width) for value, width in zip(row, widths, strict=True)] for row in rows]
        fields[7][1], fields[8][3] = " " * 6 if widths[1] else "", " NULL" if widths[1] else "NULL"
        if form == "parquet":
            columns = zip(*fields, strict=True)
            pq.write_table(pa.table(dict(zip(names, map(list, columns), strict=True))), "a.parquet")
        else:
            write("a.csv", ",".join(names), [",".join(row) for row in fields])
        found = proposed(f"a.{form}")
        assert [column["role"] for column in found["columns"].values()] == [
            "label",
            "dense",
            "dense",
            "sparse",
        ]
        assert found["columns"]["price"]["kind"] == "float"
        assert found["columns"]["shop_id"]["kind"] == "integer"
        output = Path(f"out{next(number)}")
        run(output, "dataset=log.yaml", f"input.train=a.{form}", "rejects.max_fraction=0")
        tables.append(pq.read_table(output / "train"))
    assert tables[0].equals(tables[1])


def test_padded_texts_are_named_and_fields_of_blanks_are_missing() -> None:
    users = ["u1", "u1    ", "u2", "u2    "]
    rows = [f"{r % 2},{users[r % 3 + r % 2]},{'      ' if r % 4 == 0 else f'c{r % 3}'}" for r in range(600)]
    write("a.csv", "click,user,city", rows)
    found = proposed("a.csv")
    assert found["null_values"] == [" " * 6]
    assert "blanks around values count, so 'u1    ' and 'u1' are two ids" not in found["notes"]["city"]
    assert "'u1    ' and 'u1' are two ids; write values without them: df['user']" in found["notes"]["user"]
    assert vocabularies("a.csv", "city")["city"] == {"c0", "c1", "c2"}


ROWS = [f"{r % 2},u{r % 9},{r % 50}" for r in range(300)]


@pytest.mark.parametrize(
    ("lines", "rule", "cure"),
    [
        (
            [f"{row}," for row in ROWS],
            "ends its rows, but not its header, with a delimiter ','",
            "sed '1s/$/,/'",
        ),
        ([f"{k},{row}" for k, row in enumerate(ROWS)], "has one field more...", "sed '1s/^/row,/'"),
    ],
)
def test_rows_with_one_field_more_than_the_header_are_named_with_a_cure_that_works(
    lines: list[str], rule: str, cure: str
) -> None:
    write("a.csv", "click,user,price", lines)
    with refused(ConfigError, "a.csv", rule, f"...{cure}"):
        check_raw("a.csv", None)
    command = cure.removeprefix("sed ").strip("'")
    mended = subprocess.run(["sed", command, "a.csv"], check=True, capture_output=True, text=True).stdout
    Path("a.csv").write_text(mended)
    assert {"click", "user", "price"} < {*proposed("a.csv")["columns"]}
    assert vocabularies("a.csv", "user")["user"] == {f"u{user}" for user in range(9)}


MOMENTS = [datetime(2026, 1 + r % 12, 1 + r % 28, r % 24, r % 60, r % 50, 500_000) for r in range(600)]
FORMATS = [
    "%d.%m.%Y",
    "%m/%d/%Y %I:%M %p",
    "%d-%b-%y",
    "%d-%b-%y %I.%M.%S.%f %p",
    "%b %d, %Y",
    "%Y-%m-%d %H",
    "%Y-%m-%d %H:%M:%S,%f",
    "%d/%b/%Y:%H:%M:%S %z",
    "%d %b %Y %H:%M:%S %z",
]


@pytest.mark.parametrize("form", FORMATS)
def test_times_are_proposed_with_the_one_format_that_reads_them(form: str) -> None:
    times = [moment.replace(tzinfo=UTC).strftime(form) for moment in MOMENTS]
    write(
        "a.tsv", "click\tshop\tseen", [f"{r % 2}\ts{r % 5}\t{time.upper()}" for r, time in enumerate(times)]
    )
    assert proposed("a.tsv")["columns"]["seen"] == {"role": "time", "format": form}
    shown = ["%H", "%I"]
    names = [
        name for name in ("seen_hour", "seen_weekday") if "weekday" in name or any(s in form for s in shown)
    ]
    found = vocabularies("a.tsv", *names)
    assert {int(value) for value in found["seen_weekday"]} == {moment.weekday() for moment in MOMENTS}


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("day", lambda r: f"{1 + r % 12:02d}/{1 + r % 5:02d}/2026", '"%d/%m/%Y" or "%m/%d/%Y"'),
        ("sent", lambda r: f"Mon, {1 + r % 28} Nov 2026 17:09:08 +0000", "names of days"),
        ("day", lambda r: f"November {1 + r % 28}, 2026", "whole names of months"),
    ],
)
def test_times_that_no_format_or_several_read_are_left_out_with_a_note(
    name: str, value: Callable[[int], str], word: str
) -> None:
    write("a.tsv", f"click\tshop\t{name}", [f"{r % 2}\ts{r % 5}\t{value(r)}" for r in range(600)])
    found = proposed("a.tsv")
    assert found["columns"][name] == {"role": "ignore"}
    assert word in found["notes"][name]


@pytest.mark.parametrize(
    "value", [lambda r: f"{r % 30}.{r % 12}.{r % 20}", lambda r: f"10.0.{r % 9}.{r % 99}"]
)
def test_versions_and_addresses_are_no_times(value: Callable[[int], str]) -> None:
    write("a.tsv", "click\tshop\tversion", [f"{r % 2}\ts{r % 5}\t{value(r)}" for r in range(600)])
    assert proposed("a.tsv")["columns"]["version"] == {"role": "sparse", "kind": "string"}


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["hash", "vocab"])
def test_the_proposal_for_odd_names_and_values_trains_as_it_stands(encoding: str) -> None:
    """Names that others would be made of, or that cannot name a file, beside odd values."""
    draw = random.Random(1)
    columns: dict[str, Callable[[int], str]] = {
        "ts": lambda r: f"{MOMENTS[r % 600]:%Y-%m-%d %H:%M:%S}",
        "ts_hour": lambda r: str(MOMENTS[r % 600].hour),
        "seen": lambda r: f"{MOMENTS[r % 600]:%d-%b-%y}",
        "price": lambda _: f"{draw.expovariate(0.1):9.2f}",
        "price_bucket": lambda r: f"p{r % 5}",
        "user.id": lambda r: f"u{r % 9}",
        "user_id": lambda r: f"{r % 7:5d}",
        "n" * 220: lambda r: f"a{r % 4}",
        "n" * 221: lambda r: f"a{r % 4}",
        "a\0b": lambda r: f"b{r % 4}",
        "tags": lambda _: "; ".join(draw.sample(["rock", "pop", "jazz"], 2)),
        "items": lambda r: json.dumps([r % 11, None]),
        "words": lambda r: json.dumps(["café", None, f"w{r % 5}"]),
    }
    rows = [
        "\t".join([str(draw.randrange(2)), *(value(r) for value in columns.values())]) for r in range(1200)
    ]
    write("a.tsv", "\t".join(["click", *columns]), rows)
    found = proposed("a.tsv")["columns"]
    assert [name for name in columns if found[name]["role"] == "ignore"] == ["n" * 221, "a\0b"]
    settings = [each for each in AUTO if not each.startswith("encoding=")]
    settings += [f"encoding={encoding}", "split.val=0.2", "rejects.max_fraction=0"]
    run(Path("out"), "dataset=log.yaml", "input.train=a.tsv", *settings)
    trained = train_here(Path("run"), "data.path=out")
    assert trained.best_val_auc
