"""dlrm-check on odd logs: KIND of column or text → what is proposed, or why nothing is; proposals run as they stand."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from dlrm_app.api.command import Call
from dlrm_app.cli.next_lines import next_lines
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.tools.checking.raw_logs import check_raw
from tests.preprocessing.running import AUTO, run
from tests.refusals import refused
from tests.small_run import train_here

ROWS = 1200
Draw = random.Random
Entry = dict[str, Any]


def in_brackets(items: list[int], form: str = "[{}]", between: str = ", ") -> str:
    return form.format(between.join(map(str, items)))


def some(draw: Draw, most: int = 5) -> list[int]:
    return [draw.randrange(10, 90) for _ in range(1 + draw.randrange(most))]


def padded(items: list[int], fill: int = 0, size: int = 6) -> list[int]:
    return [fill] * (size - len(items)) + items


SPARSE_TEXT: Entry = {"role": "sparse", "kind": "string"}
IGNORED: Entry = {"role": "ignore"}
SECONDS = 1_772_000_000
TIME: Callable[[str], Entry] = lambda kind: {"role": "time", "kind": kind}  # noqa: E731

COLUMNS: dict[str, tuple[str, Callable[[Draw], Any], Entry, str]] = {
    # name of the column, its values, what is proposed, a word of its note
    "leading_zeros": ("area", lambda d: f"{d.randrange(40):05d}", SPARSE_TEXT, "zeros in front"),
    "zip": ("zip", lambda d: f"{10000 + d.randrange(400)}", SPARSE_TEXT, "zeros in front"),
    "account": ("account", lambda d: f"{10**9 + d.randrange(400)}", SPARSE_TEXT, "zeros in front"),
    "ean_8": ("product", lambda d: f"{d.randrange(40):08d}", SPARSE_TEXT, "zeros in front"),
    "ean_13": (
        "product",
        lambda d: (
            ["4006381333931", "5901234123457", "9780201379624"][d.randrange(3)]
            if d.random() < 0.9
            else "0012345678905"
        ),
        SPARSE_TEXT,
        "zeros in front",
    ),
    "zeros_in_lists": (
        "seen",
        lambda d: "|".join(f"{item:04d}" for item in some(d)),
        {**SPARSE_TEXT, "separator": "|"},
        "list",
    ),
    "hex": (
        "h",
        lambda d: f"{d.randrange(90) * 2654435761 % 2**32:08x}",
        {"role": "sparse", "kind": "hex"},
        "",
    ),
    "excel_ids": ("user", lambda d: f"{1 + d.randrange(90) / 100:.5f}E+18", IGNORED, "digits are lost"),
    "excel_ids_short": ("number", lambda d: f"{1 + d.randrange(90) / 100}e+12", IGNORED, "digits are lost"),
    "gaps": (
        "city_id",
        lambda d: f"{1000 + d.randrange(40)}.0" if d.random() < 0.9 else None,
        {**SPARSE_TEXT, "whole": True},
        "whole",
    ),
    "gaps_by_size": (
        "city",
        lambda d: f"{1000 + d.randrange(40)}.0",
        {**SPARSE_TEXT, "whole": True},
        "whole",
    ),
    "weighted": (
        "tags",
        lambda d: "|".join(f"t{item}:{d.random():.2f}" for item in {*some(d)}),
        {**SPARSE_TEXT, "separator": "|", "weights": ":"},
        "list",
    ),
    "weighted_counts": (
        "tags",
        lambda d: ";".join(f"{item}:{1 + d.randrange(9)}" for item in {*some(d)}),
        {"role": "sparse", "kind": "integer", "separator": ";", "weights": ":"},
        "list",
    ),
    "hive_lists": (
        "seen",
        lambda d: "\x02".join(map(str, some(d))),
        {"role": "sparse", "kind": "integer", "separator": "\x02"},
        "list",
    ),
    "hive_maps": (
        "tags",
        lambda d: "\x02".join(f"t{item}\x03{d.random():.2f}" for item in {*some(d)}),
        {**SPARSE_TEXT, "separator": "\x02", "weights": "\x03"},
        "list",
    ),
    "named_ids": (
        "tags",
        lambda d: "|".join(f"{d.choice(['cat', 'shop'])}:{item}" for item in some(d)),
        {**SPARSE_TEXT, "separator": "|"},
        "list",
    ),
    "padded": (
        "seen",
        lambda d: "|".join(map(str, padded(some(d)))),
        {"role": "sparse", "kind": "integer", "separator": "|", "padding": "0"},
        "list",
    ),
    "padded_behind": (
        "seen",
        lambda d: "|".join(map(str, padded(some(d), -1)[::-1])),
        {"role": "sparse", "kind": "integer", "separator": "|", "padding": "-1"},
        "list",
    ),
    "padded_words": (
        "seen",
        lambda d: "|".join(["<pad>"] * d.randrange(4) + [f"w{i}" for i in some(d, 1)] * 9)[-999:],
        {**SPARSE_TEXT, "separator": "|"},  # of many lengths
        "list",
    ),
    "padded_json": (
        "seen",
        lambda d: str(padded(some(d))),
        {"role": "sparse", "kind": "integer", "separator": ",", "brackets": "[]", "padding": "0"},
        "Python",
    ),
    "not_padded": (
        "seen",
        lambda d: "|".join(str(d.randrange(9)) for _ in range(6)),
        {"role": "sparse", "kind": "integer", "separator": "|"},
        "list",
    ),
    "python_lists": (
        "seen",
        lambda d: in_brackets(some(d)),
        {"role": "sparse", "kind": "integer", "separator": ",", "brackets": "[]"},
        "Python",
    ),
    "tuples": (
        "seen",
        lambda d: in_brackets(some(d), "({})"),
        {"role": "sparse", "kind": "integer", "separator": ",", "brackets": "()"},
        "Python",
    ),
    "postgres": (
        "seen",
        lambda d: in_brackets(some(d), "{{{}}}", ","),
        {"role": "sparse", "kind": "integer", "separator": ",", "brackets": "{}"},
        "Python",
    ),
    "numpy": (
        "seen",
        lambda d: in_brackets([*some(d), *some(d)], "[ {}]", "  "),
        {"role": "sparse", "kind": "integer", "separator": " ", "brackets": "[]"},
        "NumPy",
    ),
    "numpy_lines": (
        "seen",
        lambda d: "[{}\n {}]".format(" ".join(map(str, some(d))), "  ".join(map(str, some(d)))),
        {"role": "sparse", "kind": "integer", "separator": " ", "brackets": "[]"},
        "NumPy",
    ),
    "numpy_cut": ("seen", lambda d: f"[{d.randrange(9)} 5 ... 7 {d.randrange(9)}]", IGNORED, "lost"),
    "numpy_floats": ("emb", lambda d: f"[{d.random():.3f} {d.random():.3f}]", IGNORED, "another model"),
    "nested": ("seen", lambda d: f"[[{d.randrange(9)}, 2], [{d.randrange(9)}]]", IGNORED, "within lists"),
    "objects": ("seen", lambda d: f'[{{"id": {d.randrange(9)}}}]', IGNORED, "within lists"),
    "object": ("seen", lambda d: f'{{"id": {d.randrange(9)}, "n": 2}}', IGNORED, "objects of JSON"),
    "thousands": ("price", lambda d: f"{d.gammavariate(2, 900):,.2f}", IGNORED, "thousands"),
    "thousands_whole": ("price", lambda d: f"{int(d.gammavariate(2, 900)):,}", IGNORED, "thousands"),
    "european": (
        "price",
        lambda d: f"{d.gammavariate(2, 900):,.2f}".translate(str.maketrans(",.", ".,")),
        IGNORED,
        "thousands",
    ),
    "european_whole": (
        "price",
        lambda d: f"{int(d.gammavariate(2, 900)):,}".replace(",", "."),
        IGNORED,
        "thousands",
    ),
    "swiss": ("price", lambda d: f"{d.gammavariate(2, 9000):,.2f}".replace(",", "'"), IGNORED, "thousands"),
    "french": (
        "price",
        lambda d: f"{d.gammavariate(2, 9000):,.0f}".replace(",", "\u202f"),
        IGNORED,
        "thousands",
    ),
    "indian": (
        "price",
        lambda d: f"{1 + d.randrange(9)},{10 + d.randrange(80)},{100 + d.randrange(800)}.50",
        IGNORED,
        "thousands",
    ),
    "dollars": ("price", lambda d: f"${d.gammavariate(2, 9):.2f}", IGNORED, "money"),
    "euros": ("price", lambda d: f"{d.gammavariate(2, 9):.2f} €".replace(".", ","), IGNORED, "money"),
    "rupees": (
        "price",
        lambda d: f"₹{d.randrange(9)},{10 + d.randrange(80)},{100 + d.randrange(800)}",
        IGNORED,
        "money",
    ),
    "yen": ("price", lambda d: f"￥{d.randrange(9000):,}", IGNORED, "money"),
    "codes": ("price", lambda d: f"USD {d.randrange(9000)}", IGNORED, "money"),
    "reals": ("price", lambda d: f"R$ {d.randrange(900)},{d.randrange(10, 99)}", IGNORED, "money"),
    "accounts": (
        "price",
        lambda d: f"({d.randrange(900)}.25)" if d.random() < 0.3 else f"${d.randrange(900)}.25",
        IGNORED,
        "money",
    ),
    "percent": ("share", lambda d: f"{d.randrange(99)}%", IGNORED, "percentages"),
    "percent_blank": ("share", lambda d: f"{d.random() * 99:.1f} %", IGNORED, "percentages"),
    "decimal_commas": (
        "price",
        lambda d: f"{d.randrange(99)},{d.randrange(10, 99)}",
        IGNORED,
        "decimal commas",
    ),
    "lists_of_three_digits": (
        "seen",
        lambda d: ",".join(str(d.randrange(100, 999)) for _ in range(1 + d.randrange(4))),
        {"role": "sparse", "kind": "integer", "separator": ","},
        "list",
    ),
    "floats": ("price", lambda d: f"{d.random() * 99:.3f}", {"role": "dense", "kind": "float"}, ""),
    "codes_of_letters": ("size", lambda d: f"XL {d.randrange(9)}", SPARSE_TEXT, ""),
    "seconds": ("at", lambda d: SECONDS + d.randrange(10**6), TIME("seconds"), "guess"),
    "seconds_of_floats": (
        "at",
        lambda d: f"{SECONDS + d.randrange(10**6)}.{d.randrange(100)}",
        TIME("seconds"),
        "guess",
    ),
    "milliseconds": ("at", lambda d: SECONDS * 1000 + d.randrange(10**9), TIME("milliseconds"), "guess"),
    "microseconds": ("at", lambda d: SECONDS * 10**6 + d.randrange(10**12), TIME("microseconds"), "guess"),
    "nanoseconds": ("at", lambda d: SECONDS * 10**9 + d.randrange(10**15), TIME("nanoseconds"), "guess"),
    "bigquery_times": (
        "at",
        lambda d: f"2026-01-{1 + d.randrange(28):02d} 05:{d.randrange(60):02d}:00.25 UTC",
        TIME("iso"),
        "guess",
    ),
    "no_date": (
        "at",
        lambda d: (
            "0000-00-00 00:00:00" if d.random() < 0.03 else f"2026-01-{1 + d.randrange(28):02d} 05:00:00"
        ),
        TIME("iso"),
        "guess",
    ),
    "days_since_1970": ("date", lambda d: 20_000 + d.randrange(600), IGNORED, "days since 1970"),
    "spreadsheet_days": (
        "date",
        lambda d: f"{45_000 + d.randrange(600)}.5",
        IGNORED,
        "days of a spreadsheet",
    ),
    "january_1970": ("at", lambda d: f"1970-01-21 {d.randrange(24):02d}:00:00", IGNORED, "January 1970"),
    "far_future": ("at", lambda d: f"{2200 + d.randrange(99)}-01-21 10:00:00", IGNORED, "beyond 2100"),
    "rating": ("rating", lambda d: 1 + d.randrange(5), IGNORED, ">= 4"),
}


def name_of(kind: str) -> str:
    """A name of its own for the column of a kind, with the word that counts."""
    first, second = divmod([*COLUMNS].index(kind), 26)
    return f"q{chr(97 + first)}{chr(97 + second)}_{COLUMNS[kind][0]}"


def log_of_all_kinds() -> dict[str, list[Any]]:
    draw = Draw(1)
    shops = [draw.randrange(40) for _ in range(ROWS)]
    columns: dict[str, list[Any]] = {
        "click": [int(draw.random() < 0.1 + 0.02 * shop) for shop in shops],
        "shop": [f"s{shop}" for shop in shops],
    }
    return columns | {
        name_of(kind): [value(draw) for _ in range(ROWS)] for kind, (_, value, *_) in COLUMNS.items()
    }


def write_csv(path: str, columns: dict[str, list[Any]], delimiter: str = ",") -> None:
    def field(value: Any) -> str:
        text = "" if value is None else str(value)
        return (
            '"{}"'.format(text.replace('"', '""'))
            if delimiter in text or "\n" in text or '"' in text
            else text
        )

    lines = [columns, *zip(*columns.values(), strict=True)]
    Path(path).write_text(
        "".join(delimiter.join(map(field, line)) + "\n" for line in lines), encoding="utf-8"
    )


def write(form: str, columns: dict[str, list[Any]]) -> str:
    if form == "parquet":
        pq.write_table(pa.table(columns), "log.parquet")
    else:
        write_csv(f"log.{form}", columns, {"csv": ",", "tsv": "\t"}[form])
    return f"log.{form}"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("form", ["csv", "tsv", "parquet"])
def test_the_proposal_for_a_column_of_each_kind_and_it_preprocesses(form: str) -> None:
    path = write(form, log_of_all_kinds())
    text = check_raw(path, "log.yaml").yaml
    found = {column.pop("name"): column for column in yaml.safe_load(text)["columns"]}
    notes = {name: next(line for line in text.splitlines() if f"name: {name}," in line) for name in found}
    for kind, (_, _, wanted, word) in COLUMNS.items():
        if name_of(kind) not in found:
            continue
        if form == "csv" and wanted.get("separator") == "," and "brackets" not in wanted:
            wanted, word = SPARSE_TEXT, "write another mark"  # the delimiter separates no elements
        assert (kind, found[name_of(kind)]) == (kind, wanted)
        assert word in notes[name_of(kind)].partition("#")[2]
    manifest = run(Path("out"), "dataset=log.yaml", f"input.train={path}", "rejects.max_fraction=0", *AUTO)
    assert manifest.splits["train"].rows == ROWS


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_the_proposal_trains_as_it_stands(form: str) -> None:
    path = write(form, log_of_all_kinds())
    check_raw(path, "log.yaml")
    run(
        Path("out"),
        "dataset=log.yaml",
        f"input.train={path}",
        "split.val=0.2",
        "rejects.max_fraction=0",
        *AUTO,
    )
    assert train_here(Path("run"), "data.path=out").best_val_auc


def test_rows_that_a_proposal_rejects_are_allowed_by_the_next_command_or_nothing_is_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Empty rows at the end, as of Excel; and a label that is empty where there was no click."""
    rows = [f"{row % 2},{row % 7}" for row in range(1000)]
    Path("few.csv").write_text("\n".join(["click,shop", *rows, ",", ",", ""]))
    found = check_raw("few.csv", "few.yaml")
    assert found.rejected == 2 / 1002
    assert "0.20% of the rows of few.csv are rejected: click is '', must be 0 or 1" in caplog.text
    (_, line) = next_lines("check", found, Call())
    assert "rejects.max_fraction=0.004" in line
    shares = [f"rejects.max_fraction={2 * found.rejected:.2g}", *AUTO]
    assert run(Path("out"), "dataset=few.yaml", "input.train=few.csv", *shares).splits["train"].rows == 1000
    Path("many.csv").write_text(
        "\n".join(["click,shop", *(f"{row % 2 or ''},{row % 7}" for row in range(1000)), ""])
    )
    rule = "has values that a description of its columns rejects, in 50% of its rows"
    with refused(DataError, "many.csv", rule, "correct them, and check again"):
        check_raw("many.csv", "many.yaml")
    assert not Path("many.yaml").exists()


def test_apostrophes_around_fields_are_quotes() -> None:
    Path("log.csv").write_text(
        "click,size,shop\n" + "".join(f"{r % 2},'a,b{r % 7}',x{r % 9}\n" for r in range(90))
    )
    check_raw("log.csv", "log.yaml")
    assert yaml.safe_load(Path("log.yaml").read_text())["quote"] == "'"
    manifest = run(Path("out"), "dataset=log.yaml", "input.train=log.csv", "rejects.max_fraction=0", *AUTO)
    assert manifest.splits["train"].rows == 90


HEAD = "click,shop,price,seen\n"


def lines(count: int = 60) -> list[str]:
    return [f"{row % 2},s{row % 7},{row % 11}.5,{row % 5}|{row % 3}\n" for row in range(count)]


BODY = "".join(lines())
TEXTS: dict[str, tuple[str | bytes, str, str]] = {
    "blank_line": (
        f"\n{HEAD}{BODY}",
        "begins with a blank line, before its header",
        "leave it out: tail -n +2",
    ),
    "blank_lines": (
        f"\n\n{HEAD}{BODY}",
        "begins with a blank line, before its header",
        "leave it out: tail -n +3",
    ),
    "remark": (f"# exported 2026\n{HEAD}{BODY}", "begins with a remark, '# exported 2026', before...", "..."),
    "title": (
        f"Report, May\n{HEAD}{BODY}",
        "begins with a line that is no part of the table, 'Report, May'...",
        "...",
    ),
    "sep": (
        "sep=;\n" + (HEAD + BODY).replace(",", ";"),
        "begins with Excel's line sep=;, before its header",
        "leave it out: tail -n +2",
    ),
    "sep_two": (
        "sep=;\na;b\n" + "1;x\n0;y\n" * 9,
        "begins with Excel's line sep=;, before its header",
        "...",
    ),
    "header_again": (HEAD + BODY + HEAD + BODY, "has its header again in line 62...", "leave it out: awk..."),
    "header_again_late": (HEAD + BODY * 9 + HEAD, "has its header again in line 542...", "..."),
    "mysql": (
        HEAD.replace("shop", "title") + '1,"a \\"b\\" c",2,3\n' * 9,
        "writes a quote within quotes as...",
        "...",
    ),
    "header_bytes": (
        b"click,caf\xe9,x\n" + b"1,a,5\n0,b,6\n" * 9,
        "has names of columns that are not UTF-8...",
        "...",
    ),
    "brackets": (
        "".join(f"{r % 2},{r},[{r},{r % 9}],[{r}]\n" for r in range(60)),
        "has ',' within brackets in line 1...",
        "...",
    ),
    "brackets_uneven": (
        "".join(f"{r % 2},[{','.join(['7'] * (1 + r % 3))}]\n" for r in range(60)),
        "has ',' within brackets...",
        "...",
    ),
    "brackets_of_tabs": (
        "".join(f"{r % 2}\t[{r}\t{r % 9}]\n" for r in range(60)),
        "has '\\t' within brackets...",
        "...",
    ),
    "braces": ("".join(f"{r % 2},{{{r},{r % 9}}}\n" for r in range(60)), "has ',' within brackets...", "..."),
    "libsvm": ("".join(f"{r % 2} 3:0.5 {9 + r}:1\n" for r in range(60)), "has libsvm's lines...", "..."),
    "libsvm_signs": (
        "".join(f"{'+-'[r % 2]}1 qid:3 3:0.5 {9 + r}:1 # x\n" for r in range(60)),
        "has libsvm's lines...",
        "...",
    ),
    "libffm": ("".join(f"{r % 2} 0:3:0.5 1:{9 + r}:1\n" for r in range(60)), "has libffm's lines...", "..."),
    "vw": (
        "".join(f"{1 - 2 * (r % 2)} |u a{r} b:2 |i c{r} d\n" for r in range(60)),
        "has the lines of Vowpal Wabbit...",
        "...",
    ),
    "vw_tags": (
        "".join(f"1 2.0 'tag{r}|user id={r} x:0.5\n" for r in range(60)),
        "has the lines of Vowpal Wabbit...",
        "...",
    ),
    "summed_up": (
        "impressions,clicks,shop\n" + "".join(f"{1 + r % 9},{r % 2},s{r % 7}\n" for r in range(90)),
        "are counts of what was shown...",
        "write two weighted rows...",
    ),
    "summed_up_shows": (
        "n_shows,num_conversions,shop\n" + "".join(f"{5 + r % 9},{r % 4},s{r % 7}\n" for r in range(90)),
        "are counts...",
        "...",
    ),
    "two_units": (
        "click,at\n" + "".join(f"{r % 2},{(SECONDS + r) * 1000 ** (r % 2)}\n" for r in range(90)),
        "has times in seconds in 45 rows and milliseconds in 45 rows",
        "write all of them in one unit",
    ),
    "amounts_alone": (
        "click\tprice\n" + "".join(f"{r % 2}\t${r % 9}.50\n" for r in range(90)),
        "has no column that can be a feature",
        "...",
    ),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_text_of_another_form_is_refused_by_name_and_nothing_is_written(kind: str) -> None:
    content, rule, cure = TEXTS[kind]
    Path("log.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with refused(ConfigError, "...log.csv...", rule, cure):
        check_raw("log.csv", "log.yaml")
    assert not Path("log.yaml").exists()


GOOD_TEXTS: dict[str, tuple[str, list[str]]] = {
    "number_as_name": (HEAD.replace("price", "2024") + BODY, ["click", "shop", "2024", "seen"]),
    "no_name": (HEAD.replace("price", "") + BODY, ["click", "shop", "", "seen"]),
    "two_without_names": (
        "click,,,seen\n".replace(",,,", ",,,shop,user,")
        + "".join(f"{r % 2},{r % 3},{r % 5},s{r % 7},u{r % 9},{r % 4}\n" for r in range(60)),
        ["click", "", "", "shop", "user", "seen"],
    ),
    "words_of_yaml": (
        "click,no,on,1e3,12:30,null,yes\n"
        + "".join(f"{r % 2},{r % 5},{r % 7},{r % 3}x,{r % 9},{r % 4},{r % 3}\n" for r in range(60)),
        ["click", "no", "on", "1e3", "12:30", "null", "yes"],
    ),
    "hash_name": (f"#{HEAD}{BODY}", ["#click", "shop", "price", "seen"]),
    "no_header": (BODY, ["column_0", "column_1", "column_2", "column_3"]),
    "backslashes": ("click,path,x\n" + '1,"C:\\a\\",5\n0,"D:\\b\\",6\n' * 9, ["click", "path", "x"]),
    "quoted_brackets": (
        "click,seen,title\n" + '1,"[1,2]","a,[b,c],d"\n0,"[3]","e"\n' * 20,
        ["click", "seen", "title"],
    ),
    "history_counts": (
        "click,impressions,clicks\n" + "".join(f"{r % 2},{5 + r % 9},{r % 4}\n" for r in range(90)),
        ["click", "impressions", "clicks"],
    ),
    "pipes": (
        "click | a | b\n" + "".join(f"{r % 2} | {r % 9} | x{r % 4}\n" for r in range(90)),
        ["click ", " a ", " b"],
    ),
}


@pytest.mark.parametrize("kind", GOOD_TEXTS)
def test_texts_that_look_odd_and_are_read(kind: str) -> None:
    content, names = GOOD_TEXTS[kind]
    Path("log.csv").write_text(content)
    check_raw("log.csv", "log.yaml")
    found = yaml.safe_load(Path("log.yaml").read_text())["columns"]
    assert [column["name"] for column in found] == names
    made = run(Path("out"), "dataset=log.yaml", "input.train=log.csv", "rejects.max_fraction=0", *AUTO)
    assert made.splits["train"].rows == content.count("\n") - (kind != "no_header")


def test_bytes_that_are_not_utf_8_are_named_with_their_line() -> None:
    Path("log.csv").write_bytes(b"click,shop,name\n" + b"1,a,x\n0,b,y\n1,c,caf\xe9\n" * 9)
    text = check_raw("log.csv", "log.yaml").yaml
    assert (
        "{name: name, role: ignore}  # has bytes that are not UTF-8, the first 0xE9 in line 4; write UTF-8"
        in text
    )
    run(Path("out"), "dataset=log.yaml", "input.train=log.csv", "rejects.max_fraction=0", *AUTO)


def labelled(draw: Draw, rows: int = 4000) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for _ in range(rows):
        shop = draw.randrange(40)
        click = int(draw.random() < 0.1 + 0.02 * shop)
        order = int(click and draw.random() < 0.3)
        item = draw.randrange(200)
        row = {
            "click": click,
            "order": order,
            "returned_order": int(order and draw.random() < 0.5),
            "like": int(draw.random() < 0.3),
            "shop": f"s{shop}",
            "item": item,
            "gmv": round(draw.gammavariate(2, 20), 2) if order else 0,
            "landed": f"p{draw.randrange(9)}" if click else "",
            "last": [draw.randrange(200) for _ in range(4)][: 4 - click] + [item] * click,
            "before": [draw.randrange(200) for _ in range(4)],
        }
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return columns


@pytest.mark.parametrize("form", ["tsv", "parquet"])
def test_each_column_is_measured_against_each_label(form: str) -> None:
    """Also a list with the column whose values it shares; and labels that no row has without another are given it."""
    columns = labelled(Draw(3))
    if form == "tsv":
        columns |= {name: ["|".join(map(str, one)) for one in columns[name]] for name in ("last", "before")}
    path = write(form, columns)
    text = check_raw(path, "log.yaml").yaml
    notes = {line.split("name: ")[1].split(",")[0]: line for line in text.splitlines() if "{name: " in line}
    told = {name: note.partition("tells ")[2].split(" ")[0] for name, note in notes.items() if "AUC" in note}
    assert told == {"gmv": "order", "landed": "click", "last": "click"}
    assert "whether it holds item, or ends with it, tells click" in notes["last"]
    assert "# labels: [click, like, {order: {given: click}}, {returned_order: {given: order}}]" in text
    several = [line for line in text.splitlines() if not line.startswith("label: ")]
    Path("several.yaml").write_text("\n".join(several).replace("# labels: ", "labels: ") + "\n")
    manifest = run(
        Path("out"), "dataset=several.yaml", f"input.train={path}", "rejects.max_fraction=0", *AUTO
    )
    assert [label.given for label in manifest.labels] == [None, None, "click", "order"]


def test_floats_of_parquet_are_times_or_ids_by_their_size() -> None:
    draw = Draw(5)
    moments = [SECONDS + draw.randrange(10**6) for _ in range(ROWS)]
    columns = {
        "click": [draw.randrange(2) for _ in moments],
        "at": [float(moment) for moment in moments],
        "ts": [moment * 1e6 for moment in moments],
        "created": [moment * 1e9 for moment in moments],
        "member": [1e18 + draw.randrange(90) * 1e6 for _ in moments],
        "city_id": [draw.choice([1e3, 1001.0, None]) for _ in moments],
        "price": [draw.gammavariate(2, 9) for _ in moments],
    }
    check_raw(write("parquet", columns), "log.yaml")
    found = yaml.safe_load(Path("log.yaml").read_text())["columns"]
    wanted = ["seconds", "microseconds", "nanoseconds", None, "integer", "float"]
    assert [column.get("kind") for column in found[1:]] == wanted
    made = run(Path("out"), "dataset=log.yaml", "input.train=log.parquet", "rejects.max_fraction=0", *AUTO)
    assert made.splits["train"].rows == ROWS


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_counts_as_label_are_refused_without_the_advice_to_leave_them_out(form: str) -> None:
    path = write(form, {"clicks": [row % 4 for row in range(300)], "shop": [f"s{r % 7}" for r in range(300)]})
    Path("log.yaml").write_text(
        "name: log\ndelimiter: ','\nheader: true\ncolumns:\n- {name: clicks, role: label}\n"
        "- {name: shop, role: sparse, kind: string}\n"
    )
    with refused(
        DataError,
        "rejects.max_fraction=...",
        "allows fewer...",
        "a label is 0 or 1, so make one of clicks before...of counts, two weighted rows...",
    ) as caught:
        run(Path("out"), "dataset=log.yaml", f"input.train={path}")
    assert "raise it" not in str(caught.value)
