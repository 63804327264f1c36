"""A file that the description does not fit is refused by its beginning; columns are found by the header's names."""

from dataclasses import replace
from pathlib import Path

import pytest

from dlrm_app.dataset.manifest import LearntLabel
from dlrm_app.errors import ConfigError
from dlrm_app.logs.beginning import source_spec
from dlrm_app.logs.sources.find_sources import find_files
from dlrm_app.logs.spec import OTHER_LABEL, Cures, LogColumn, Spec
from tests.preprocessing.running import content, make, rejects_of, run, table_of
from tests.refusals import find_problem, refused

NO_HEADER = Spec(
    "log",
    ",",
    None,
    False,
    (LogColumn("y", "label"), LogColumn("n", "dense", "integer"), LogColumn("s", "sparse", "string")),
)
HEADER = replace(NO_HEADER, header=True, quote='"')
LABELLED = replace(
    HEADER,
    columns=(*HEADER.columns, LogColumn("z", OTHER_LABEL)),
    labels=(LearntLabel("y"), LearntLabel("z")),
)


def looked_at(folder: Path, text: bytes, spec: Spec, labels: bool | None) -> Spec:
    (folder / "log.csv").write_bytes(text)
    (source,) = find_files("input", str(folder / "log.csv"))
    return source_spec(source, spec, labels, Cures("unlabelled=true"))


@pytest.mark.parametrize(
    ("spec", "labels", "text", "rule", "cure"),
    [
        (
            NO_HEADER,
            True,
            b"1,2\n",
            "has one column too few",
            "if it has no y column, add unlabelled=true",
        ),
        (NO_HEADER, False, b"1,2,a\n", "has a label in its first line", "leave out unlabelled=true"),
        (
            NO_HEADER,
            True,
            b"y,n,s\n1,2,a\n",
            "names the columns in its first line",
            "set dataset.header=true",
        ),
        (
            NO_HEADER,
            True,
            b"\xef\xbb\xbf1,2,a\n",
            "is text behind a byte order mark, which would be part...",
            "...must be UTF-8...",
        ),
        (
            NO_HEADER,
            True,
            b"2,2,a\n1,x,a\n1\n",
            "does not describe ..., none of its first 3 lines fits",
            "...",
        ),
        (HEADER, True, b"1,2,a\n0,3,b\n", "lacks the columns y, n, s; it has 1, 2, a", "..."),
        (
            HEADER,
            True,
            b"\ny,n,s\n1,2,a\n",
            "begins with a blank line, before...",
            "leave it out: tail -n +2",
        ),
        (HEADER, True, b"# of May\ny,n,s\n1,2,a\n", "begins with a remark, '# of May', before...", "..."),
        (HEADER, True, b"sep=,\ny,n,s\n1,2,a\n", "begins with Excel's line sep=..., before...", "..."),
        (
            HEADER,
            None,
            b"Y,n,s\n1,2,a\n",
            "lacks the columns y ('Y' is not 'y': case and spaces count)...",
            "...",
        ),
        (
            LABELLED,
            None,
            b"y,n,s\n1,2,a\n",
            "lacks the columns z...",
            "...unlabelled=true, if z is not known yet",
        ),
        (HEADER, False, b"n, s\n2,a\n", "...' s' is not 's'...", "..."),
        (HEADER, False, b"n,s,s\n2,a,b\n", "names s twice", "..."),
        (HEADER, True, b"y,n,s\n1,2\n", "does not describe ..., none of its first 1 lines fits", "..."),
    ],
)
def test_a_file_that_the_description_does_not_fit_is_refused(
    tmp_path: Path, spec: Spec, labels: bool | None, text: bytes, rule: str, cure: str
) -> None:
    key = f"dataset={spec.name}" if "none of its first" in rule else f"{tmp_path}/log.csv"
    with refused(ConfigError, key, rule, cure):
        looked_at(tmp_path, text, spec, labels)


def test_lines_that_do_not_fit_are_named_with_their_reasons(tmp_path: Path) -> None:
    for spec, text, first in ((NO_HEADER, b"2,2,a\n1,x,a\n1\n", 1), (HEADER, b"y,n,s\n2,2,a\n1,x,a\n1\n", 2)):
        with pytest.raises(ConfigError) as caught:
            looked_at(tmp_path, text, spec, True)
        assert find_problem(caught.value, f"{tmp_path}/log.csv:{first}", "is malformed: y is '2'...")
        assert find_problem(caught.value, f"{tmp_path}/log.csv:{first + 1}", "is malformed: n is 'x'...")
        assert find_problem(
            caught.value, f"{tmp_path}/log.csv:{first + 2}", "is malformed: 1 columns, expected 3"
        )


@pytest.mark.parametrize(
    ("spec", "labels", "text", "names"),
    [
        (NO_HEADER, True, b"x\n1,2,a\n", "y n s"),  # one good line is enough
        (NO_HEADER, None, b"2,a\n", "n s"),
        (NO_HEADER, None, b"", "y n s"),
        (HEADER, None, b'\xef\xbb\xbf"s",z,n\r\na,9,2\r\n', "s z n"),
        (HEADER, False, b"s,y,n\na,1,2\n", "s y n"),
        (HEADER, True, b's,"y",n\n', "s y n"),
    ],
)
def test_a_file_says_its_columns(
    tmp_path: Path, spec: Spec, labels: bool | None, text: bytes, names: str
) -> None:
    found = looked_at(tmp_path, text, spec, labels)
    assert [column.name for column in found.fields] == names.split()
    assert (found.label == "y") == ("y" in names and labels is not False)
    assert [c.name for c in found.columns if c.role != "label"] == ["n", "s"]


def test_a_messy_export_gives_the_dataset_of_the_clean_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another order, columns more, words for labels and for missing values: the same shards and vocabularies."""
    monkeypatch.chdir(tmp_path)
    columns = [
        "{name: y, role: label}",
        "{name: n, role: dense, kind: integer}",
        "{name: s, role: sparse, kind: string}",
        "{name: l, role: sparse, kind: integer, separator: '|'}",
    ]
    form = f"name: log\ndelimiter: ','\nquote: '\"'\nheader: true\ncolumns: [{', '.join(columns)}]\n"
    Path("clean.yaml").write_text(form)
    Path("messy.yaml").write_text(form + "null_values: [NULL, NA, \\N]\n")
    Path("clean.csv").write_text("y,n,s,l\n1,5,a,1|2\n0,,b,3||4\n1,7,,\n0,8,NUL,5\n")
    lines = ['b,l,"s",y,n', "x,1|2,a,True,5", ',"3|NA|4",b,false,NULL', ",NA,\\N,1.0,7", '"c,d",5,NUL,0,8']
    Path("messy.csv").write_text("\n".join(lines))
    for name in ("clean", "messy"):
        run(
            Path(name),
            f"dataset={name}.yaml",
            f"input.train={name}.csv",
            "encoding=vocab",
            "encoding.min_count=1",
        )
    assert content(Path("messy"), ["manifest.json"]) == content(Path("clean"), ["manifest.json"])


def test_a_quoted_line_break_is_named_where_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text(
        "clicked,age,price,seconds,user,shop,device,last_items,note\n" + '1,2,3,4,u,5,a,i,"x"\n' * 9
    )
    with Path("log.csv").open("a") as file:
        file.write('0,2,3,4,u,801608186555.5,a,i,x\n0,2,3,4,u,5,a,i,"two\nlines"\n')
    made = make(Path("k"), "dataset=example_csv", "input.train=log.csv", "rejects.max_fraction=0.5")
    assert [(entry["line"], entry["reason"]) for entry in rejects_of(Path("k"))] == [
        (
            11,
            "shop is '801608186555.5', must be a whole number within ±(2^63 - 1): floats with a fraction, of 2^53 or "
            "more, or with an exponent are no ids",
        ),
        (
            12,
            "note is '\"two', opens a quote that its line does not close: if values hold line breaks, set dataset.line_breaks=true",
        ),
        (13, "1 columns, expected 9"),
    ]
    assert table_of(made.manifest).num_rows == 9
    assert "warning: 1 of them opens a quote that its line does not close" in str(made)
