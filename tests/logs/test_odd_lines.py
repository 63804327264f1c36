"""Lines that other programs leave in a text are named for what they are."""

from pathlib import Path

import pytest

from dlrm_app.errors import ConfigError
from tests.preprocessing.running import make, rejects_of, table_of
from tests.refusals import refused

COLUMNS = "columns:\n- {name: y, role: label}\n- {name: a, role: sparse, kind: string}\n- {name: b, role: sparse, kind: string}\n"
UNLABELLED = ["input.unlabelled=[train]"]


def made(folder: Path, text: str | bytes, *settings: str) -> list[str]:
    """The reasons of the rejects of a log of 40 more good lines."""
    (folder / "a.yaml").write_text(f"name: a\ndelimiter: ','\nquote: '\"'\nheader: true\n{COLUMNS}")
    content = text.encode() if isinstance(text, str) else text
    more = b"u,v\n" if settings else b"1,u,v\n"
    (folder / "log.csv").write_bytes(content + more * 40)
    given = [
        f"dataset={folder}/a.yaml",
        f"input.train={folder}/log.csv",
        "rejects.max_fraction=0.5",
        *settings,
    ]
    dataset = make(folder / "out", *given)
    rejects = rejects_of(folder / "out")
    assert table_of(dataset.manifest).num_rows + len(rejects) == len((content + more * 40).splitlines()) - 1
    return [each["reason"] for each in rejects]


@pytest.mark.parametrize("settings", [[], UNLABELLED])
@pytest.mark.parametrize("quote", ["", '"'])
def test_a_repeated_header_is_no_row(tmp_path: Path, settings: list[str], quote: str) -> None:
    header = ",".join(f"{quote}{name}{quote}" for name in (["a", "b"] if settings else ["y", "a", "b"]))
    row = "a,x" if settings else "1,a,x"
    (reason,) = made(tmp_path, f"{header}\n{row}\n{header}\n{row}\n", *settings)
    assert reason.startswith("repeats the header")


@pytest.mark.parametrize("line", ['1,"say \\"hi\\"",v', '1,"say \\"hi\\", he",v', '1,"it\\"s",v'])
def test_quotes_behind_a_backslash_are_named(tmp_path: Path, line: str) -> None:
    (reason,) = made(tmp_path, f"y,a,b\n{line}\n")
    assert "as MySQL writes" in reason


def test_quotes_that_the_description_lacks_are_no_part_of_values(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"name: a\ndelimiter: ','\nheader: true\n{COLUMNS}")
    keys = [f"dataset={tmp_path}/a.yaml", f"input.train={tmp_path}/log.csv"]
    (tmp_path / "log.csv").write_text("y,a,b\n" + '1,"u",v\n0,,w\n' * 20)
    rule = "has quotes around the values of a, and its description has none"
    with refused(ConfigError, f"{tmp_path}/log.csv", rule, "set dataset.quote='\"'"):
        make(tmp_path / "out", *keys)
    assert make(tmp_path / "out", *keys, "dataset.quote='\"'").manifest.splits["train"].rows == 40
    (tmp_path / "log.csv").write_text("y,a,b\n" + '1,"u",v\n0,5" disk,w\n' * 20)
    assert make(tmp_path / "inches", *keys).manifest.splits["train"].rows == 40


@pytest.mark.parametrize("quote", ["null", "'\"'"])
def test_lists_over_several_lines_are_refused_with_what_to_set(tmp_path: Path, quote: str) -> None:
    lists = "columns:\n- {name: y, role: label}\n- {name: l, role: sparse, kind: integer, separator: ' ', brackets: '[]'}\n"
    (tmp_path / "a.yaml").write_text(f"name: a\ndelimiter: ','\nquote: {quote}\nheader: true\n{lists}")
    (tmp_path / "log.csv").write_text("y,l\n" + '1,"[1 2\n 3]"\n' * 20)
    cure = "set dataset.quote='\"'" if quote == "null" else "set dataset.line_breaks=true"
    with refused(ConfigError, f"{tmp_path}/log.csv:2", f"is malformed: l is ...{cure}..."):
        make(tmp_path / "out", f"dataset={tmp_path}/a.yaml", f"input.train={tmp_path}/log.csv")


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    (reason,) = made(tmp_path, "y,a,b\n1,caf\xe9,v\n".encode("latin1"))
    assert "the byte e9 is not UTF-8" in reason


@pytest.mark.parametrize(
    ("first", "what"),
    [
        ("sep=;", "Excel's line sep=;"),
        ("# exported today", "a remark, '# exported today'"),
        ("", "a blank line"),
        ("-- a query, of two tables", "a remark, '-- a query'"),
    ],
)
def test_a_line_before_the_header_is_named(tmp_path: Path, first: str, what: str) -> None:
    with refused(ConfigError, "...", f"begins with {what}, before its header", "leave it out: tail -n +2..."):
        made(tmp_path, f"{first}\ny,a,b\n")
