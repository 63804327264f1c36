"""Values in quotes that hold line breaks: the same dataset as from Parquet, however a text is cut and read."""

import csv
import gzip
import io
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.inference.predict.parts import raw_spec
from dlrm_app.logs.sources.quoted_breaks import HIDDEN, MAX_FIELD, Quoting, TextWithoutBreaks
from tests.make_log import describe
from tests.preprocessing.interruptions import run_in_pieces
from tests.preprocessing.running import configure, content, make, rejects_of, run, table_of

ROWS = 3000
COLUMNS = [
    "{name: clicked, role: label}",
    "{name: title, role: sparse, kind: string}",
    "{name: price, role: dense, kind: float}",
    '{name: seen, role: sparse, kind: integer, separator: " ", brackets: "[]"}',
    "{name: note, role: ignore}",
]
WITH_BREAKS = ["quote: '\"'", "line_breaks: true"]
TEXTS = ["a\nb", 'say "x"\n', "\n", "plain", "a,b", "Ünö\r\nzwei", '5" pipe', "", "a\n\n\nb", '"\n"']
VOCABULARIES = ["encoding=vocab", "encoding.min_count=1"]


def draw() -> pa.Table:
    """Rows whose texts and lists hold line breaks, as NumPy prints them."""
    pick = random.Random(3)
    lists = [np.array([pick.randrange(9000) for _ in range(pick.randrange(60))]) for _ in range(ROWS)]
    return pa.table(
        {
            "clicked": [pick.randrange(2) for _ in range(ROWS)],
            "title": [pick.choice(TEXTS) for _ in range(ROWS)],
            "price": [float(pick.randrange(99)) for _ in range(ROWS)],
            "seen": [np.array2string(each) for each in lists],
            "note": [pick.choice(TEXTS) for _ in range(ROWS)],
        }
    )


def as_csv(rows: pa.Table) -> str:
    with Path("made.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows.column_names)
        writer.writerows(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    return Path("made.csv").read_text()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("breaks")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        rows = draw()
        Path("log.csv").write_bytes((text := as_csv(rows)).encode())
        with gzip.open("log.csv.gz", "wb") as file:
            file.write(text.encode())
        pq.write_table(rows, "log.parquet")
        for place in range(0, ROWS, 500):
            Path(f"piece-{place:05}.csv").write_bytes(as_csv(rows.slice(place, 500)).encode())
    describe(folder, COLUMNS, *WITH_BREAKS)
    return folder


def dataset(log: Path, name: str, source: str, *more: str) -> Manifest:
    keys = [f"dataset={log}/log.yaml", f"input.train={log}/{source}", *VOCABULARIES, *more]
    return run(log / name, *keys)


def test_lists_and_texts_hold_line_breaks(log: Path) -> None:
    rows = draw()
    assert sum("\n" in each for each in rows["seen"].to_pylist()) > ROWS / 5
    assert (log / "log.csv").read_text().count("\n") > 2 * ROWS


@pytest.mark.parametrize(
    ("source", "more"),
    [
        ("log.csv", []),
        ("log.csv", ["layout.unit_mib=1"]),
        ("log.csv.gz", []),
        ("piece-*.csv", []),
    ],
)
def test_text_gives_the_rows_of_parquet(log: Path, source: str, more: list[str]) -> None:
    """Whole, in units, compressed, and in small files that are read as one."""
    plain = table_of(dataset(log, "parquet", "log.parquet"))
    assert plain.num_rows == ROWS
    made = dataset(log, f"text-{source.replace('*', 'all')}-{len(more)}", source, *more)
    assert table_of(made).equals(plain)


def test_without_the_key_such_rows_are_rejected_with_the_cure(log: Path) -> None:
    describe(log, COLUMNS, *WITH_BREAKS[:1], name="without")
    run_keys = [f"dataset={log}/without.yaml", f"input.train={log}/log.csv", "rejects.max_fraction=1"]
    run(log / "rejected", *run_keys, *VOCABULARIES)
    assert any("set dataset.line_breaks=true" in each["reason"] for each in rejects_of(log / "rejected"))


def test_interrupted_runs_make_the_same_bytes(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset(log, "whole", "log.csv", "split.val=0.1")
    with monkeypatch.context() as patch:
        pieces = run_in_pieces(lambda: dataset(log, "pieces", "log.csv", "split.val=0.1"), patch, 1)
    assert pieces > 2
    assert content(log / "pieces") == content(log / "whole")


def test_a_rejected_row_is_shown_with_its_breaks_and_the_next_one_is_read(tmp_path: Path) -> None:
    describe(tmp_path, COLUMNS, *WITH_BREAKS)
    rows = [
        '1,"a\nb",x,"[1\n 2]",""',
        '0,"c\nd",2,"[3\n 4]","e\nf"',
        '1,"c\nd",2,"[3\n [4]","e\nf"',
        '0,a,1,"[1\n]"',
    ]
    (tmp_path / "log.csv").write_text("clicked,title,price,seen,note\n" + "\n".join(rows) + "\n")
    keys = [f"dataset={tmp_path}/log.yaml", f"input.train={tmp_path}/log.csv", "rejects.max_fraction=1"]
    made = run(tmp_path / "out", *keys, *VOCABULARIES)
    assert table_of(made)["clicked"].to_pylist() == [0]
    rejected = rejects_of(tmp_path / "out")
    assert [(each["line"], each["excerpt"]) for each in rejected] == [
        (2, rows[0]),
        (4, rows[2]),
        (5, rows[3]),
    ]
    assert rejected[2]["reason"] == "4 columns, expected 5"


def test_a_name_of_the_header_may_hold_a_break(tmp_path: Path) -> None:
    describe(
        tmp_path,
        ["{name: clicked, role: label}", r'{name: "the\nshop", role: sparse, kind: string}'],
        *WITH_BREAKS,
    )
    (tmp_path / "log.csv").write_text('clicked,"the\nshop"\n1,a\n0,b\n')
    keys = [f"dataset={tmp_path}/log.yaml", f"input.train={tmp_path}/log.csv", *VOCABULARIES]
    assert table_of(run(tmp_path / "out", *keys)).num_rows == 2


@pytest.mark.parametrize("size", [1, 3, 64, 4096])
def test_each_line_is_a_record_of_the_csv_module(size: int) -> None:
    """The text is read in pieces of any size; a byte that is no UTF-8 does not become a line break."""
    pick = random.Random(size)
    records = [["".join(pick.choices('ab,"\nü', k=pick.randrange(5))) for _ in range(3)] for _ in range(500)]
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator="\n").writerows(records)
    text = file.getvalue().encode() + bytes([HIDDEN, ord("\n")])
    reader = TextWithoutBreaks(io.BytesIO(text), Quoting(ord(","), ord('"')), "text")
    *lines, last, end = b"".join(iter(lambda: reader.read(size), b"")).split(b"\n")
    shown = [line.replace(bytes([HIDDEN]), b"\n").decode() for line in lines]
    assert [next(csv.reader(io.StringIO(each, newline=""))) for each in shown] == records
    assert (len(last), end) == (1, b"")
    assert HIDDEN not in last


@pytest.mark.parametrize("end", ["", "x" * (MAX_FIELD + 1) + '"\n'])
def test_an_open_quote_is_refused_with_its_line(tmp_path: Path, end: str) -> None:
    """All rows behind it would be lost without a word."""
    describe(tmp_path, COLUMNS, *WITH_BREAKS)
    good = '1,"a\nb",1,"[1]",x\n' * 5
    (tmp_path / "log.csv").write_text(
        f'clicked,title,price,seen,note\n{good}0,"open,1,[2],y\n{good.replace(chr(34), "")}{end}'
    )
    keys = [f"dataset={tmp_path}/log.yaml", f"input.train={tmp_path}/log.csv", *VOCABULARIES]
    with pytest.raises(DataError, match=r"log\.csv:12 opens a quote that is n.* closed"):
        make(tmp_path / "out", *keys)


def test_needs_a_quote(tmp_path: Path) -> None:
    path = describe(tmp_path, COLUMNS, "line_breaks: true")
    with pytest.raises(ConfigError, match=r"dataset\.line_breaks"):
        configure(f"dataset={path}", "input.train=x", "output=x")


@pytest.mark.slow
def test_scored_rows_are_read_alike(log: Path) -> None:
    assert raw_spec(dataset(log, "known", "log.csv")).quoting == Quoting(ord(","), ord('"'))
