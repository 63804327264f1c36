"""Many small files: the dataset of one large file with the same rows, in shards of a useful size."""

import gzip
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import DataError, Problem
from dlrm_app.logs.sources import parquet_units
from dlrm_app.preprocessing.passes import encode_pass
from tests.make_log import describe
from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import content, rejects_of, run, table_of
from tests.preprocessing.test_parquet_input import as_table
from tests.refusals import refused

ROWS, MIB = 12_000, 1 << 20
OPTIONS = (
    "encoding=vocab",
    "encoding.min_count=2",
    "dense.target_columns=all",
    "split.val=0.1",
    "layout.unit_mib=1",
)


def as_text(lines: bytes, path: Path) -> None:
    path.write_bytes(lines)


def packed(lines: bytes, path: Path) -> None:
    path.write_bytes(gzip.compress(lines, 1))


def without_last_line_end(lines: bytes, path: Path) -> None:
    path.write_bytes(lines.removesuffix(b"\n"))


def as_parquet(lines: bytes, path: Path) -> None:
    pq.write_table(as_table(lines), path)


Writer = Callable[[bytes, Path], None]
WRITERS: list[Writer] = [as_text, packed, without_last_line_end, as_parquet]


def cut(folder: Path, text: bytes, per_file: Sequence[int], write: Writer) -> Path:
    """Writes the lines of ``text`` to files in Hive folders; ``per_file``: the lines of each, then again."""
    lines, number = text.splitlines(keepends=True), 0
    while lines:
        count = per_file[number % len(per_file)]
        path = folder / f"dt={number // 7}" / f"part-{number}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        write(b"".join(lines[:count]), path)
        lines, number = lines[count:], number + 1
    return folder


def told(manifest: Manifest) -> dict[str, Any]:
    """What a dataset is, but for the places of its rows in shards and sources."""
    folder = manifest.folder
    files = {name: data for name, data in content(folder).items() if name.startswith(("vocab/", "target/"))}
    described = json.loads((folder / "manifest.json").read_text())
    for part in described["splits"].values():
        del part["shards"]
    for key in ("config", "sources", "fingerprint", "checksum"):
        described.pop(key, None)
    tables = {split: table_of(manifest, split) for split in manifest.splits}
    return {"files": files, "manifest": described, "tables": tables}


@pytest.mark.long
@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("shuffle", ["none", "full"])
def test_any_cut_into_files_gives_the_same_dataset(tmp_path: Path, write: Writer, shuffle: str) -> None:
    text = make_clicks(ROWS)
    as_text(text, tmp_path / "one.tsv") if write is not as_parquet else as_parquet(text, tmp_path / "one.tsv")
    one = run(tmp_path / "one", f"input.train={tmp_path}/one.tsv", *OPTIONS)
    many = cut(tmp_path / "many", text, [100, 3, 1, 250], write)
    made = run(tmp_path / "made", f"input.train={many}", *OPTIONS, f"shuffle={shuffle}")
    mine, theirs = told(made), told(one)
    if shuffle == "full":  # the same rows in another order
        for each in (mine, theirs):
            table = each["tables"]["train"]
            each["tables"]["train"] = table.sort_by([(name, "ascending") for name in table.column_names])
    assert mine == theirs
    assert sum(source.rows for source in made.sources) == ROWS


@pytest.mark.slow
@pytest.mark.parametrize("write", [as_text, as_parquet])
def test_shards_are_about_as_large_as_a_unit(tmp_path: Path, write: Writer) -> None:
    text = make_clicks(ROWS)
    many = cut(tmp_path / "many", text, [100], write)
    manifest = run(
        tmp_path / "made", f"input.train={many}", "layout.unit_mib=1", "split.by=content", "split.val=0.1"
    )
    sizes = {as_parquet: ROWS * 8 * 40}
    most = 2 * (sizes.get(write, len(text)) // MIB + 1)  # two in a row have more than a unit together
    assert len(manifest.sources) == ROWS // 100
    for split in manifest.splits.values():
        assert len(split.shards) <= most
    assert (tmp_path / "made/rejects.jsonl").read_bytes() == b""


@pytest.mark.parametrize("write", WRITERS)
def test_rejects_name_the_file_and_the_line_of_a_bundle(tmp_path: Path, write: Writer) -> None:
    lines = make_clicks(2_000).splitlines(keepends=True)
    wrong = {}
    for number in (0, 99, 100, 777, 1_999):
        fields = lines[number].split(b"\t")
        lines[number] = b"\t".join([*fields[:-1], b"xyz\n"])
        wrong[number] = (f"part-{number // 100}.log", number % 100 + 1)
    many = cut(tmp_path / "many", b"".join(lines), [100], write)
    manifest = run(tmp_path / "made", f"input.train={many}", "rejects.max_fraction=0.1")
    found = [(Path(each["file"]).name, each["line"]) for each in rejects_of(tmp_path / "made")]
    assert found == list(wrong.values())
    assert [source.rows for source in manifest.sources[:2]] == [98, 99]
    with refused(DataError, f"{many}/dt=0/part-0.log:1", "is malformed: cat_25 is 'xyz'..."):
        run(tmp_path / "strict", f"input.train={many}", "rejects.max_fraction=0.0001")


COLUMNS = [
    "{name: click, role: label}",
    "{name: age, role: dense, kind: integer}",
    "{name: user, role: sparse, kind: string}",
    "{name: dt, role: sparse, kind: string}",
]


def test_headers_and_folders_keys_are_each_files_own(tmp_path: Path) -> None:
    """Columns in another order, a file of a header alone, a key that some files hold and others have in the folder."""
    rows = [(number % 2, number, f"user {number % 40}", f"{number // 50}") for number in range(200)]
    describe(tmp_path, COLUMNS)
    texts, tables = tmp_path / "texts", tmp_path / "tables"
    texts.mkdir()
    for day in range(4):
        part = [row for row in rows if row[3] == f"{day}"]
        order = [0, 1, 2, 3] if day < 2 else [3, 2, 1, 0]
        names = [("click", "age", "user", "dt")[at] for at in order]
        body = [",".join(str(row[at]) for at in order) for row in part]
        (texts / f"day-{day}.csv").write_text("\n".join([",".join(names), *body]) + "\r\n" * (day == 1))
        (texts / f"day-{day}-none.csv").write_text(",".join(names))
        (tables / f"dt={day}").mkdir(parents=True)
        columns = dict(zip(("click", "age", "user", "dt"), map(list, zip(*part, strict=True)), strict=True))
        if day > 2:
            columns.pop("dt")
        table = pa.table(columns)
        pq.write_table(
            table if day else table.cast(_with(table.schema, "age", pa.int32())), tables / f"dt={day}/0"
        )
    found = []
    for name in (texts, tables):
        manifest = run(
            tmp_path / f"made-{name.name}",
            f"dataset={tmp_path}/log.yaml",
            f"input.train={name}",
            "encoding=vocab",
        )
        found.append([source.rows for source in manifest.sources if source.rows])
        found.append(table_of(manifest))
        assert rejects_of(manifest.folder) == []
    assert found[0] == found[2] == [50] * 4
    assert found[1] == found[3]


def _with(schema: pa.Schema, name: str, kind: pa.DataType) -> pa.Schema:
    return schema.set(schema.get_field_index(name), pa.field(name, kind))


@pytest.mark.parametrize(
    ("write", "is_plain"), [(as_text, True), (packed, True), (as_parquet, True), (as_parquet, False)]
)
def test_vocabularies_of_many_files_equal_one_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Writer, is_plain: bool
) -> None:
    """Texts of keys come from each file's own bytes, short and long; Parquet by polars and by Arrow."""
    monkeypatch.setattr(parquet_units, "polars_can_decode", lambda source, names: is_plain)
    rows = [(n % 2, n, f"a name of many letters {n % 77}" if n % 3 else f"u{n % 50}") for n in range(2_000)]
    describe(tmp_path, COLUMNS[:-1])
    for number in range(0, 2_000, 50):
        part, path = rows[number : number + 50], tmp_path / f"many/{number}"
        path.parent.mkdir(exist_ok=True)
        if write is as_parquet:
            labels, ages, users = map(list, zip(*part, strict=True))
            pq.write_table(pa.table({"click": labels, "age": ages, "user": users}), path)
        else:
            write("".join(f"{label},{age},{user}\n" for label, age, user in part).encode(), path)
    (tmp_path / "one.csv").write_text("".join(f"{label},{age},{user}\n" for label, age, user in rows))
    keys = f"dataset={tmp_path}/log.yaml", "dataset.header=false", "encoding=vocab"
    one = run(tmp_path / "one", f"input.train={tmp_path}/one.csv", *keys)
    many = run(tmp_path / "made", f"input.train={tmp_path}/many", *keys)
    assert told(many) == told(one)


@pytest.mark.slow
@pytest.mark.parametrize("write", [packed, as_parquet])
def test_a_stopped_run_resumes_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Writer
) -> None:
    many = cut(tmp_path / "many", make_clicks(ROWS), [100], write)
    keys = f"input.train={many}", *OPTIONS, "threads=1"
    run(tmp_path / "whole", *keys)
    encode, begun = encode_pass.EncodeUnits.__call__, list[str]()

    def stop_at_the_second(work: Any, text: Any) -> Any:
        begun.append(text.name)
        if len(begun) == 2:
            raise DataError(Problem("log", "is stopped here"))
        return encode(work, text)

    monkeypatch.setattr(encode_pass.EncodeUnits, "__call__", stop_at_the_second)
    with refused(DataError, "log", "is stopped here"):
        run(tmp_path / "stopped", *keys)
    done = [path.stem for path in (tmp_path / "stopped/.work/encode").glob("*.json")]
    assert done == begun[:1]
    run(tmp_path / "stopped", *keys)
    assert begun[2] == begun[1]
    assert begun.count(begun[0]) == 1
    assert content(tmp_path / "stopped") == content(tmp_path / "whole")


@pytest.mark.long
@pytest.mark.parametrize("write", [packed, as_parquet])
def test_a_damaged_file_is_replaced_and_the_run_continues(tmp_path: Path, write: Writer) -> None:
    """The file that comes in its place has another size, so other bundles follow it."""
    text = make_clicks(ROWS)
    many = cut(tmp_path / "many", text, [100], write)
    damaged = many / "dt=10/part-75.log"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[: len(whole) // 2] + bytes(2_000) + whole[len(whole) // 2 + 2_000 :])
    keys = f"input.train={many}", "encoding=vocab", "layout.unit_mib=1", "threads=1"
    with refused(DataError, str(damaged), "..."):
        run(tmp_path / "made", *keys)
    longer = text.splitlines(keepends=True)[7_500:7_600] * 8
    write(b"".join(longer), damaged)
    run(tmp_path / "made", *keys)
    run(tmp_path / "expected", *keys)
    assert told(run(tmp_path / "made", *keys)) == told(run(tmp_path / "expected", *keys))


def test_files_of_a_unit_and_more_stay_by_themselves(tmp_path: Path) -> None:
    """The bytes of large files' shards do not depend on small files beside them."""
    text = make_clicks(ROWS)
    (tmp_path / "b.tsv").write_bytes(text)
    alone = run(tmp_path / "alone", f"input.train={tmp_path}/b.tsv", "layout.unit_mib=1")
    for name in ("a.tsv", "c.tsv"):
        (tmp_path / name).write_bytes(make_clicks(10, seed=1))
    beside = run(tmp_path / "beside", f"input.train={tmp_path}/*.tsv", "layout.unit_mib=1")
    shards = beside.splits["train"].shards
    assert [shard.rows for shard in shards[:1] + shards[-1:]] == [10, 10]
    assert [shard.checksum for shard in shards[1:-1]] == [s.checksum for s in alone.splits["train"].shards]
    shutil.rmtree(tmp_path / "alone")
