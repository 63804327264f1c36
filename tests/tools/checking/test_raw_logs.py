"""dlrm-check input=FILES: what it proposes for raw logs finds their columns, and dlrm-preprocess runs with it."""

import gzip
import io
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from dlrm_app.config.check import CheckConfig
from dlrm_app.errors import ConfigError, Problem
from dlrm_app.logs.sources.find_sources import find_files
from dlrm_app.tools.checking.description import Proposed
from dlrm_app.tools.checking.propose import propose
from dlrm_app.tools.checking.raw_logs import check_raw
from dlrm_app.tools.checking.sample import sample_rows
from tests.composed import compose_config
from tests.preprocessing.running import AUTO, CRITEO, NO_CRITEO, run
from tests.refusals import refused

ROWS = 600
ROLES = {
    "session": ("ignore", None, None),
    "clicked": ("label", None, None),
    "position": ("dense", "integer", None),
    "price": ("dense", "float", None),
    "user_id": ("sparse", "integer", None),
    "campaign": ("sparse", "integer", None),
    "device": ("sparse", "string", None),
    "hashed": ("sparse", "hex", None),
    "items": ("sparse", "integer", "|"),
    "tags": ("sparse", "string", "|"),
    "nothing": ("ignore", None, None),
    "version": ("ignore", None, None),
}


def values(seed: int = 0) -> dict[str, list[Any]]:
    """Column → values, None where missing."""
    draw = random.Random(seed)

    def some(value: Any) -> Any:
        return None if draw.random() < 0.1 else value

    rows = [
        {
            "session": f"s{seed}-{row}",
            "clicked": draw.randrange(2),
            "position": some(draw.randrange(1, 9)),
            "price": some(round(draw.expovariate(0.1), 2)),
            "user_id": some(draw.randrange(90)),
            "campaign": draw.randrange(1000, 1050),
            "device": some(draw.choice(["phone", "tablet", "desk, top"])),
            "hashed": some(f"{draw.randrange(200) * 2654435761 % 2**32:08x}"),
            "items": [draw.randrange(50) for _ in range(draw.randrange(4))],
            "tags": [draw.choice(["new", "old", "hot"]) for _ in range(draw.randrange(4))],
            "nothing": None,
            "version": "7",
        }
        for row in range(ROWS)
    ]
    return {name: [row[name] for row in rows] for name in ROLES}


def text_of(
    columns: dict[str, list[Any]],
    delimiter: str,
    *,
    header: bool = True,
    end: str = "\n",
    null: str = "",
    flag: tuple[str, str] = ("0", "1"),
    separator: str = "|",
) -> bytes:
    def field(name: str, value: Any) -> str:
        if isinstance(value, list):
            text = separator.join(map(str, value))
        else:
            text = null if value is None else flag[value] if name == "clicked" else str(value)
        return f'"{text}"' if delimiter in text else text

    lines = [delimiter.join(columns)] * header
    lines += [delimiter.join(map(field, columns, row)) for row in zip(*columns.values(), strict=True)]
    return "".join(f"{line}{end}" for line in lines).encode()


def read_yaml(path: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(Path(path).read_text())
    return loaded


SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "csv": (",", {}),
    "tsv": ("\t", {}),
    "pipes": ("|", {"separator": ";"}),
    "semicolons": (";", {"null": "NULL"}),
    "hive": ("\x01", {"null": "\\N"}),
    "crlf": (",", {"end": "\r\n", "flag": ("False", "True")}),
    "words": ("\t", {"null": "None", "flag": ("0.0", "1.0"), "separator": ","}),
    "bare": ("\t", {"header": False}),
    "bare_csv": (",", {"header": False, "null": "NULL"}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_proposal_for_text_finds_roles_and_preprocesses(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    delimiter, form = SHAPES[shape]
    Path("log.txt").write_bytes(text_of(values(), delimiter, **form))
    check_raw("log.txt", "log.yaml")
    found = read_yaml("log.yaml")
    assert (found["delimiter"], found["header"]) == (delimiter, form.get("header", True))
    assert found.get("null_values", []) == ([form["null"]] if "null" in form else [])
    sep = form.get("separator", "|")
    wanted = [(role, kind, mark and sep) for role, kind, mark in ROLES.values()]
    if not found["header"]:
        wanted[4] = ("dense", "integer", None)  # no name says that small numbers are ids
    assert [(c["role"], c.get("kind"), c.get("separator")) for c in found["columns"]] == wanted
    manifest = run(Path("out"), "dataset=log.yaml", "input.train=log.txt", "rejects.max_fraction=0")
    assert manifest.splits["train"].rows == ROWS
    assert manifest.splits["train"].positives == sum(values()["clicked"])


@pytest.mark.parametrize("is_plain", [True, False])
def test_the_proposal_for_parquet_finds_roles_and_preprocesses(
    is_plain: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Python's values are stored, and as other writers store them, beside other columns."""
    monkeypatch.chdir(tmp_path)
    for day in (1, 2):
        table = pa.table(values(day))
        if not is_plain:
            changed = {
                "clicked": table["clicked"].cast(pa.bool_()),
                "user_id": table["user_id"].cast(pa.float64()),  # has gaps
                "device": table["device"].dictionary_encode(),
                "tags": table["tags"].cast(pa.large_list(pa.large_string())),
                "at": pa.array(range(1_772_000_000, 1_772_000_000 + ROWS), pa.timestamp("s")),
                "odd": pa.array([{"a": 1}] * ROWS),
            }
            columns = {name: table[name] for name in table.column_names}
            table = pa.table({**columns, **changed})
        Path(f"log/dt=2026-01-0{day}").mkdir(parents=True)
        pq.write_table(table, f"log/dt=2026-01-0{day}/part-0.parquet", row_group_size=100)
    check_raw("log", "log.yaml")
    found = {column["name"]: column for column in read_yaml("log.yaml")["columns"]}
    times = {"dt": ["weekday"]} if is_plain else {"at": ["hour", "weekday"], "dt": ["weekday"]}
    assert {
        name: (c["role"], c.get("kind"), c.get("separator")) for name, c in found.items()
    } == ROLES | dict.fromkeys(times, ("time", "iso", None))
    assert read_yaml("log.yaml")["derived"] == [
        {"name": f"{name}_{made}", "kind": made, "of": name} for name in times for made in times[name]
    ]
    manifest = run(Path("out"), "dataset=log.yaml", "input.train=log", "rejects.max_fraction=0")
    assert manifest.splits["train"].rows == 2 * ROWS


def test_compression_and_a_byte_order_mark_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = text_of(values(), ",")
    zstd = pa.Codec("zstd").compress(plain, asbytes=True)
    texts = set()
    for number, form in enumerate(
        (plain, gzip.compress(plain), zstd, b"\xef\xbb\xbf" + plain, plain.removesuffix(b"\n"))
    ):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        Path("log").write_bytes(form)
        check_raw("log", "log.yaml")
        texts.add(Path("log.yaml").read_text())
    assert len(texts) == 1


def test_figures_match_a_plain_count(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(text_of(columns := values(), ","))
    for column in sample_rows(find_files("input", str(path))).columns:
        given = [value for value in columns[column.name] if value not in (None, [])]
        assert column.missing == pytest.approx(1 - len(given) / ROWS)
        shown = ("|".join(map(str, value)) if isinstance(value, list) else str(value) for value in given)
        assert column.counts == Counter(shown)


def proposed(tmp_path: Path, text: str) -> tuple[dict[str, Proposed], list[str]]:
    """(column → what is proposed, the null values)"""
    path = tmp_path / "log.csv"
    path.write_text(text)
    sample = sample_rows(find_files("input", str(path)))
    return {each.name: each for each in propose(sample)}, sample.nulls


def test_guesses_are_marked(tmp_path: Path) -> None:
    rows = "".join(f"{1000 + row % 7}.0,{row % 2},{row % 3 % 2},-,{row % 5}\n" for row in range(200))
    found, nulls = proposed(
        tmp_path, f"campaign_id,clicked,purchased,note,number\n{rows}5,1,0,-,?\n1,1,,-,4\n"
    )
    assert nulls == ["?"]
    assert (found["campaign_id"].kind, found["campaign_id"].whole) == ("string", True)
    assert (found["clicked"].role, found["purchased"].role) == ("label", "label")
    assert "teach nothing" in found["purchased"].note
    assert found["note"].role == "ignore"
    assert "sparse if" in found["number"].note


@pytest.mark.parametrize("header", ["user;price;weight;sizes\n", ""])
def test_decimal_commas_are_not_taken_for_lists(tmp_path: Path, header: str) -> None:
    """They are not read either, so the column is left out, with what to do. Lists have a third element somewhere."""
    rows = "".join(
        f"u{row % 9};{row % 7},{row % 50:02d};{row % 4}{',5' * (row % 2)};{','.join('123'[: 1 + row % 3])}\n"
        for row in range(120)
    )
    user, price, weight, sizes = proposed(tmp_path, header + rows)[0].values()
    assert (user.role, sizes[1:4]) == ("sparse", ("sparse", "integer", ","))
    for column in (price, weight):
        assert (column.role, "decimal commas" in column.note) == ("ignore", True)


@pytest.mark.parametrize("words", ["yes no", "Y N", "t f"])
def test_a_label_of_words_is_left_out_with_what_to_write(tmp_path: Path, words: str) -> None:
    """It is no feature: it would tell the clicks. Other columns of such words are features, where there is a label."""
    yes, no = words.split()
    rows = "".join(f"{(yes, no)[row % 3 % 2]},u{row % 9},{row % 2}\n" for row in range(90))
    for name in ("bought", "member"):
        found, _ = proposed(tmp_path, f"{name},user,weekend\n{rows}")
        assert found[name].role == ("ignore" if name == "bought" else "sparse")
        assert (f"its {min(words.split())} and {max(words.split())}" in found[name].note) == (
            name == "bought"
        )
        assert found["weekend"].role == ("dense" if name == "bought" else "label")
    found, _ = proposed(tmp_path, f"member,user,age\n{rows.replace(',0', ',7')}")
    assert (found["member"].role, "written as 0 and 1" in found["member"].note) == ("ignore", True)


def test_columns_with_unusable_names_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is the index that pandas writes."""
    monkeypatch.chdir(tmp_path)
    rows = "".join(
        f"{row},{row % 2},u{row % 9},{row % 5},{row % 4},{2**63 + row % 7}\n" for row in range(300)
    )
    Path("log.csv").write_text(f",clicked,user,../a,.b,number\n{rows}")
    check_raw("log.csv", "log.yaml")
    roles = {column["name"]: column["role"] for column in read_yaml("log.yaml")["columns"]}
    left_out = dict.fromkeys(["", "../a", ".b"], "ignore")
    assert roles == {**left_out, "clicked": "label", "user": "sparse", "number": "sparse"}
    manifest = run(Path("out"), "dataset=log.yaml", "input.train=log.csv", "rejects.max_fraction=0")
    assert [column.distinct for column in manifest.sparse] == [9, 7]


def test_a_log_of_numbers_alone_has_tables_of_their_buckets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{row % 2},{row % 8}\n" for row in range(300))
    Path("log.csv").write_text(f"clicked,position\n{rows}")
    check_raw("log.csv", "log.yaml")
    manifest = run(Path("out"), "dataset=log.yaml", "input.train=log.csv", *AUTO)
    assert [column.name for column in manifest.sparse] == ["position_bucket"]
    with refused(ConfigError, "dataset.columns", "has no column that would have a table"):
        run(Path("out2"), "dataset=log.yaml", "input.train=log.csv", "dense.bucket_columns=null")


def test_bytes_that_are_not_text_are_left_out(tmp_path: Path) -> None:
    columns = {"clicked": [0, 1] * 150, "user": ["a", "b", "c"] * 100, "key": [b"\xff\x01", b"\xfe"] * 150}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    found = propose(sample_rows(find_files("input", str(tmp_path / "log.parquet"))))
    assert [each.role for each in found] == ["label", "sparse", "ignore"]


@pytest.mark.parametrize(
    ("time", "makes"),
    [
        ("2026-11-{day}", ("weekday",)),
        ("2026-11-{day} 17:09", ("hour", "weekday")),
        ("2026-11-{day}T17:09:08.25+01:00", ("hour", "weekday")),
        ("2026-11-{day} late", ()),
    ],
)
def test_texts_that_are_times_are_proposed_to_be_read_as_such(
    tmp_path: Path, time: str, makes: tuple[str, ...]
) -> None:
    rows = "".join(f"{row % 2},u{row % 9},{time.format(day=10 + row % 20)}\n" for row in range(90))
    found = proposed(tmp_path, f"clicked,user,shown\n{rows}")[0]["shown"]
    assert (found.role, found.makes) == ("time" if makes else "sparse", makes)


def test_a_text_with_line_breaks_is_read(tmp_path: Path) -> None:
    rows = "".join(f'{row % 2},u{row % 9},"a {row % 4}\nb"\n' for row in range(90))
    (tmp_path / "log.csv").write_text(f"clicked,user,title\n{rows}")
    proposal = check_raw(str(tmp_path / "log.csv"), None)
    read = yaml.safe_load(proposal.yaml)
    assert (read["line_breaks"], read["quote"]) == (True, '"')
    assert {"name": "title", "role": "sparse", "kind": "string"} in read["columns"]
    assert proposal.rejected == 0


def parquet(*names: str) -> bytes:
    pq.write_table(pa.Table.from_arrays([pa.array([1, 2])] * len(names), names), file := io.BytesIO())
    return file.getvalue()


@pytest.mark.parametrize(
    ("files", "key", "rule"),
    [
        ({"a": b""}, "a", "has no rows"),
        ({"a": b"only\nwords\n"}, "a", "has one column in its first line by any of the delimiters..."),
        ({"a": b"\xef\xbb\xbf1,2\n3,4\n"}, "a", "is text behind a byte order mark..."),
        ({"a": b"x,y\n1,u\n", "b": b"PAR1"}, "input", "names Parquet and text"),
        ({"a": parquet("x", "y", "x")}, "a", "names x twice"),
        ({"a": b"x,y,x\n1,u,2\n"}, "a", "names x twice"),
        ({"a": parquet("x", "y"), "b": parquet("x")}, "b", "lacks columns that the first file has, y"),
    ],
)
def test_files_that_are_not_logs_are_refused(
    tmp_path: Path, files: dict[str, bytes], key: str, rule: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with refused(ConfigError, key if key == "input" else str(tmp_path / key), rule):
        sample_rows(find_files("input", [str(tmp_path / name) for name in files]))


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ([], ["data.path"]),
        (["data.path=x", "input=y"], ["data.path"]),
        (["data.path=x", "output=y.yaml"], ["output"]),
        (["input=x", "output=y.txt"], ["output"]),
        (["input=[]"], ["input"]),
        (["input=x", "output=y.yaml"], []),
    ],
)
def test_a_dataset_or_raw_logs_are_checked(settings: list[str], keys: list[str]) -> None:
    problems = compose_config("check", CheckConfig, settings).problems()
    assert [problem.key for problem in problems if isinstance(problem, Problem)] == keys


@pytest.mark.slow
@pytest.mark.skipif(not CRITEO.exists(), reason=NO_CRITEO)
@pytest.mark.parametrize("name", ["kaggle_first_10000", "day_0_first_10000"])
def test_criteo_is_recognized(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_raw(str(CRITEO / f"{name}.tsv"), "log.yaml")
    found = read_yaml("log.yaml")
    kinds = [(column["role"], column.get("kind")) for column in found["columns"]]
    assert kinds[0] == ("label", None)
    assert kinds[14:] == [("sparse", "hex")] * 26
    assert {role for role, _ in kinds[1:14]} == {"dense"}
    one = run(Path("one"), "dataset=log.yaml", f"input.train={CRITEO / name}.tsv", "rejects.max_fraction=0")
    assert one.splits["train"].rejects == 0


def outcomes_log(rows: int = 2000, seed: int = 3) -> dict[str, list[Any]]:
    """A log whose clicks have consequences, and columns that only look like consequences."""
    draw = random.Random(seed)
    columns: dict[str, list[Any]] = {}
    for row in range(rows):
        age = draw.randrange(18, 90)
        click = int(draw.random() < age / 120)
        values = {
            "click": click,
            "like": int(click and draw.random() < 0.3),
            "watch_time": draw.randrange(1, 60) if click else 0,
            "dwell": draw.randrange(9),
            "rating": draw.randrange(1, 6),
            "clicks_7d": draw.randrange(30),
            "last_view_minutes": draw.randrange(500),
            "display_area": draw.randrange(5),
            "landed": "page" if click else "",  # its name does not tell
            "score_after": age / 90 + 2 * click,
            "age": age,
            "user": f"u{draw.randrange(300)}",
            "sample_weight": round(draw.random(), 3),
            "request": f"{2**63 + 7919 * row}",
            "ts": 1_750_000_000_000 + 60_000 * row,
            "day": 20260301 + row // 500,
            "hours": f"{2026030100 + row // 100}",
            "joined": 1_500_000_000 + 86_400 * draw.randrange(500),
            "tags": f"[{draw.randrange(4)}, {draw.randrange(4)}]",
            "noise": "inf" if draw.random() < 0.01 else round(draw.gauss(0, 1), 4),
        }
        for name, value in values.items():
            columns.setdefault(name, []).append(value)
    return columns


def as_csv(columns: dict[str, list[Any]]) -> str:
    def field(value: Any) -> str:
        return f'"{value}"' if "," in str(value) else str(value)

    lines = (",".join(map(field, row)) for row in zip(*columns.values(), strict=True))
    return "\n".join([",".join(columns), *lines, ""])


def test_columns_known_only_after_the_click_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By names, and by how well a column alone tells the clicks; the proposal
    as it stands gives a dataset without it.
    """
    monkeypatch.chdir(tmp_path)
    found, nulls = proposed(tmp_path, as_csv(outcomes_log()))
    roles = {name: each.role for name, each in found.items()}
    outcomes = ["watch_time", "dwell", "rating", "landed", "score_after"]
    assert [name for name, role in roles.items() if role == "label"] == ["click", "like"]
    left_out = [name for name, role in roles.items() if role == "ignore"]
    assert left_out == [*outcomes, "sample_weight", "request"]
    assert found["tags"][1:5] == ("sparse", "integer", ",", "[]")
    assert all("afterwards" in found[name].note for name in outcomes)
    assert "AUC 1.00" in found["score_after"].note
    assert nulls == ["inf"]
    assert found["noise"][1:3] == ("dense", "float")
    times = {name: (each.kind, each.makes) for name, each in found.items() if each.role == "time"}
    hourly = ("hour", "weekday")
    assert times == {
        "ts": ("milliseconds", hourly),
        "day": ("iso", ("weekday",)),
        "hours": ("iso", hourly),
    }
    assert roles["joined"] == "sparse"  # neither its name nor its order says that it is a time
    check_raw("log.csv", "log.yaml")
    manifest = run(Path("out"), "dataset=log.yaml", "input.train=log.csv", "rejects.max_fraction=0")
    assert not {*outcomes, "like"} & {column.name for column in (*manifest.dense, *manifest.sparse)}


def test_a_comment_says_how_to_learn_several_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With it in place of the line of one label, both are learnt."""
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text(as_csv(outcomes_log()))
    check_raw("log.csv", "log.yaml")
    text = Path("log.yaml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("label: ")]
    Path("several.yaml").write_text("\n".join(lines).replace("# labels: ", "labels: ") + "\n")
    manifest = run(Path("out"), "dataset=several.yaml", "input.train=log.csv", "rejects.max_fraction=0")
    assert [label.name for label in manifest.labels] == ["click", "like"]


@pytest.mark.parametrize(("no", "yes"), [("-1", "1"), ("1", "2"), ("-1.0", "1.0")])
def test_labels_of_other_numbers_are_named_with_the_line(tmp_path: Path, no: str, yes: str) -> None:
    rows = "".join(f"{(no, yes)[row % 3 % 2]},{row % 7},u{row % 9}\n" for row in range(200))
    found, _ = proposed(tmp_path, f"label,x,u\n{rows}")
    assert found["label"].role == "ignore"
    assert f"its {no} and {yes} are written as 0 and 1" in found["label"].note
    assert "{name: label, role: label}" in found["label"].note


@pytest.mark.parametrize(
    ("content", "rule", "cure"),
    [
        (b"click,user\r0,a\r1,b\r", "ends its lines in CR alone", "write LF, as tr ..."),
        (
            b"1::1193::5::9783\n1::661::3::9783\n",
            "separates its fields by two characters, ::",
            "write one, as sed ...",
        ),
    ],
)
def test_forms_that_are_not_read_are_named_with_a_cure(
    tmp_path: Path, content: bytes, rule: str, cure: str
) -> None:
    (tmp_path / "log.dat").write_bytes(content)
    with refused(ConfigError, str(tmp_path / "log.dat"), rule, cure):
        sample_rows(find_files("input", str(tmp_path / "log.dat")))


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_list_of_another_columns_values_names_it(tmp_path: Path, form: str) -> None:
    draw = random.Random(0)
    items = [f"v{draw.randrange(80)}" for _ in range(1000)]
    lists = [[f"v{draw.randrange(80)}" for _ in range(draw.randrange(6))] for _ in items]
    clicks = [draw.randrange(2) for _ in items]
    shops = [f"s{draw.randrange(80)}" for _ in items]
    table = pa.table({"clicked": clicks, "item": items, "shop": shops, "seen": lists})
    if form == "csv":
        lines = ["clicked,item,shop,seen"]
        lines += [
            f"{c},{i},{s},{'|'.join(seen)}" for c, i, s, seen in zip(clicks, items, shops, lists, strict=True)
        ]
        (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    else:
        pq.write_table(table, tmp_path / "log.parquet")
    found = {
        each.name: each for each in propose(sample_rows(find_files("input", str(tmp_path / f"log.{form}"))))
    }
    assert found["seen"].note.startswith(
        "its values are those of item: encoding=auto, or encoding.shared=[[item,seen]]"
    )
