"""Delta and Iceberg tables as input: the files of one version, with the values of their partitions."""

import json
import re
import string
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import obstore.store
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore

from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.logs.sources.find_sources import find_files
from dlrm_app.logs.sources.lake import with_versions
from tests.preprocessing.running import content, run, table_of
from tests.refusals import refused

deltalake = pytest.importorskip("deltalake", reason="deltalake writes and lists Delta tables")
pytest.importorskip("pyiceberg", reason="pyiceberg writes and lists Iceberg tables")
pyroaring = pytest.importorskip("pyroaring", reason="pyiceberg brings it")
Config = pytest.importorskip("pyiceberg.utils.config").Config
pytest.importorskip("sqlalchemy", reason="pyiceberg's catalog in a file needs SQLAlchemy")

DAYS = ["2026-11-9", "2026-11-10", "2026-11-23"]
LOG = "_delta_log/{:020}.json"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prefix = "PYICEBERG_CATALOG__LOCAL__"
    monkeypatch.setenv(f"{prefix}TYPE", "sql")
    monkeypatch.setenv(f"{prefix}URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv(f"{prefix}WAREHOUSE", f"file://{tmp_path}/warehouse")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # which is read once, on import


def rows(start: int, stop: int) -> pa.Table:
    """A row for each number: it, a label, a day, and an hour that is a number."""
    numbers = list(range(start, stop))
    return pa.table(
        {
            "x": numbers,
            "label": [number * number % 7 % 2 for number in numbers],
            "dt": [DAYS[number % 3] for number in numbers],
            "hour": pa.array([None if number % 5 == 4 else number % 5 + 7 for number in numbers]),
        }
    )


def write_delta(*tables: pa.Table, keys: tuple[str, ...] = ("dt", "hour")) -> str:
    for table in tables:
        deltalake.write_deltalake("clicks", table, partition_by=list(keys) or None, mode="append")
    return "delta://clicks"


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_null_words_apply_to_keys_of_tables(kind: str) -> None:
    moments = pa.array([-1, 0, 86_400_000_000, None], pa.timestamp("us", "UTC"))
    keys = {
        "whole": (pa.array([-1, 0, 5, None], pa.int64()), "dense, kind: integer", ["-1", "0", "5", ""]),
        "number": (pa.array([-1.0, 2.5, 0.0, None]), "dense, kind: float", ["-1.0", "2.5", "0.0", ""]),
        "id": (pa.array([-1, 0, 5, None], pa.int32()), "sparse, kind: integer", ["-1", "0", "5", ""]),
        "word": (pa.array(["NA", "-1.0", "a", None]), "sparse, kind: string", ["NA", "-1.0", "a", ""]),
        "at": (moments, "time, kind: iso", [str(each or "") for each in moments.to_pylist()]),
    }
    labels, x = pa.array([0, 1, 1, 0]), pa.array([1, 2, 3, 4])
    table = pa.table({"label": labels, "x": x} | {name: column for name, (column, _, _) in keys.items()})
    name = {"delta": write_delta, "iceberg": write_iceberg}[kind](table, keys=tuple(keys))
    form = "name: t\ndelimiter: ','\nheader: true\nnull_values: [NA, '-1', '1970-01-02']\ncolumns:\n"
    form += "- {name: label, role: label}\n- {name: x, role: dense, kind: integer}\n"
    form += "".join(f"- {{name: {name}, role: {role}}}\n" for name, (_, role, _) in keys.items())
    Path("t.yaml").write_text(f"{form}derived:\n- {{name: hour, kind: hour, of: at}}\n", encoding="utf-8")
    fields = [labels.to_pylist(), x.to_pylist(), *(texts for _, _, texts in keys.values())]
    lines = [["label", "x", *keys], *zip(*fields, strict=True)]
    Path("t.csv").write_text("".join(",".join(map(str, line)) + "\n" for line in lines), encoding="utf-8")
    found = []
    for number, path in enumerate(("t.csv", name)):
        made = run(Path(f"of{number}"), "dataset=t.yaml", f"input.train={path}", "dense.transform=none")
        rows_made = sorted(table_of(made).to_pylist(), key=lambda row: row["x"])
        found.append((rows_made, [column.missing_rate for column in (*made.dense, *made.sparse)]))
    assert found[0] == found[1]
    assert found[0][1] == [0.0, 0.5, 0.5, 0.5, 0.5, 0.5]


def write_iceberg(*tables: pa.Table, keys: tuple[str, ...] = ("dt", "hour"), version: str = "2") -> str:
    from pyiceberg.transforms import IdentityTransform

    table = iceberg_table("clicks", tables[0].schema, version)
    with table.update_spec() as spec:
        for key in keys:
            spec.add_field(key, IdentityTransform(), key)
    for each in tables:
        table.append(each)
    return "iceberg://local/db.clicks"


def iceberg_table(name: str, schema: Any = None, version: str = "2") -> Any:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("local")
    catalog.create_namespace_if_not_exists("db")
    if schema is None:
        return catalog.load_table(f"db.{name}")
    return catalog.create_table(f"db.{name}", schema, properties={"format-version": version})


def numbers_of(name: str) -> list[int]:
    """The numbers of the rows that ``name`` gives, in order, each with the values that it was written with."""
    numbers = []
    for source in find_files("input", name):
        table = pq.ParquetFile(source.path).read()
        for number in table["x"].to_pylist():
            (row,) = rows(number, number + 1).to_pylist()
            assert source.partition == {"dt": row["dt"], "hour": row["hour"] and str(row["hour"])}
            numbers.append(number)
    return numbers


@pytest.mark.parametrize("write", [write_delta, write_iceberg])
def test_a_table_gives_its_files_by_partition_then_by_time(write: Callable[..., str]) -> None:
    name = write(rows(0, 15), rows(15, 60), rows(60, 90))
    numbers = numbers_of(name)
    assert sorted(numbers) == [*range(90)]
    assert numbers == sorted(
        numbers,
        key=lambda n: (n % 3, (n % 5 + 1) % 5, n),  # days as numbers count; missing before others
    )


FILTERS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "dt=2026-11-23": lambda row: row["dt"] == DAYS[2],
    "dt=2026-11-23&dt=2026-11-10": lambda row: row["dt"] in DAYS[1:],
    "dt=2026%2D11-9&hour=07": lambda row: row["dt"] == DAYS[0] and row["hour"] == 7,
    "hour=": lambda row: row["hour"] is None,
    "hour>=8&hour<10": lambda row: row["hour"] in (8, 9),
    "dt>2026-11-10&dt<=2026-11-23": lambda row: row["dt"] == DAYS[2],
}


@pytest.mark.parametrize("write", [write_delta, write_iceberg, partial(write_iceberg, version="1")])
def test_filters_leave_the_files_of_partitions(write: Callable[..., str]) -> None:
    name = write(rows(0, 30))
    for query, is_wanted in FILTERS.items():
        expected = [row["x"] for row in rows(0, 30).to_pylist() if is_wanted(row)]
        assert sorted(numbers_of(f"{name}?{query}")) == expected, query


def test_partition_values_come_from_the_log_not_the_path() -> None:
    table = pa.table({"x": [1, 2, 3], "kind": ["a b", "é/=?%&", "a=b"]})
    deltalake.write_deltalake("clicks", table, partition_by=["kind"])
    found = {
        pq.ParquetFile(s.path).read()["x"][0].as_py(): s.partition
        for s in find_files("input", "delta://clicks")
    }
    assert found == {1: {"kind": "a b"}, 2: {"kind": "é/=?%&"}, 3: {"kind": "a=b"}}
    (source,) = find_files("input", "delta://clicks?kind=é/%3D?%25%26")
    assert source.partition == {"kind": "é/=?%&"}


@pytest.mark.parametrize(("write", "word"), [(write_delta, "version"), (write_iceberg, "snapshot")])
def test_a_version_stays_as_it_was_begun_with(write: Callable[..., str], word: str) -> None:
    name = write(rows(0, 10))
    first = with_versions("input.train", [name, "other.tsv"], None)
    assert first[1] == "other.tsv"
    assert first[0].startswith(f"{name}?{word}=")
    append = iceberg_table("clicks").append if word == "snapshot" else partial(write_delta, keys=())
    append(rows(10, 20))
    assert sorted(numbers_of(first[0])) == [*range(10)]
    assert sorted(numbers_of(name)) == [*range(20)]
    assert with_versions("input.train", name, first) == first[0]
    assert with_versions("input.train", first[0], None) == first[0]
    newest = with_versions("input.train", name, None)
    assert newest != first[0]
    assert sorted(numbers_of(newest)) == [*range(20)]
    filtered = with_versions("input.train", f"{name}?dt=2026-11-23", first)
    assert filtered == newest.replace("?", "?dt=2026-11-23&")  # begun with other names
    assert with_versions("input.train", None, first) is None


def test_a_folder_of_a_table_is_refused_with_the_name_to_type() -> None:
    write_delta(rows(0, 10), rows(10, 20))
    deltalake.DeltaTable("clicks").delete("x < 10")
    here = Path.cwd()
    partitions = {
        "clicks/dt=2026-11-9": "?dt=2026-11-9",
        "clicks/dt=2026-11-9/hour=7": "?dt=2026-11-9&hour=7",
    }
    partitions["clicks/dt=2026-11-9/hour=7/*.parquet"] = "?dt=2026-11-9&hour=7"
    globs = ("clicks/**", "clicks/*/*/*.parquet", "clicks/dt=*", "cl*", "clicks/dt=2026-11-[12]*")
    names = {
        **dict.fromkeys(("clicks", "./clicks/", f"{here}/clicks", f"file://{here}/clicks", *globs), ""),
        **partitions,
    }
    Path("lake").symlink_to(".")
    for name, words in {**names, "lake/clicks": ""}.items():
        with pytest.raises(ConfigError) as error:
            find_files("input.train", name)
        typed = re.search(r"type 'input.train=\"(.*)\"'|type input.train=(.*)", error.value.problems[0].cure)
        assert typed is not None, error.value
        place = "lake/clicks" if name == "lake/clicks" else "clicks"
        assert (typed[1] or typed[2]) == f"delta://{place}{words}", name
        find_files("input.train", typed[1] or typed[2])
    assert sorted(numbers_of("delta://clicks")) == [*range(10, 20)]
    path = find_files("input.train", "delta://clicks")[0].path
    assert [source.path for source in find_files("input.train", path)] == [path]  # one file, by its name


def test_a_folder_within_the_current_one_of_a_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    write_delta(rows(0, 10))
    table = Path.cwd() / "clicks"
    monkeypatch.chdir(table)
    for name in (".", "dt=*", "dt=2026-11-9"):
        with refused(
            ConfigError,
            f"input.train={name}",
            "names files of the Delta table ...",
            f"type ...delta://{table}...",
        ):
            find_files("input.train", name)


def test_a_folder_of_iceberg_is_refused_with_the_name_to_type() -> None:
    write_iceberg(rows(0, 10))
    (folder,) = Path("warehouse").glob("**/clicks")
    for name in (
        f"{folder}",
        f"{folder}/data",
        f"{folder}/data/dt=*",
        "warehouse",
        f"{folder}/data/**/*.parquet",
    ):
        rule = "names files of the Iceberg table ..."
        cure = "type input.train=iceberg://local/db.clicks, with the catalog..."
        with refused(ConfigError, f"input.train={name}", rule, cure):
            find_files("input.train", name)
    with refused(
        ConfigError,
        "input.train=warehouse/db/clicks/data/dt=2026-11-9",
        "names files of the Iceberg table warehouse/db/clicks, which may have dropped some...",
        cure="type 'input.train=\"iceberg://local/db.clicks?dt=2026-11-9\"', with the catalog and...",
    ):
        find_files("input.train", f"{folder}/data/dt=2026-11-9")


def test_folders_that_only_resemble_a_table_are_read() -> None:
    for name in (
        "data/part-0",
        "data/metadata/about.json",
        "data/metadata.json",
        "log/_delta_logs/x",
        "log/part-0",
    ):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("0\n")
    assert len(find_files("input", "data")) == 3
    assert len(find_files("input", "log")) == 1


def test_a_table_of_a_store_is_refused_with_the_name_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = MemoryStore()
    monkeypatch.setattr(obstore.store, "from_url", lambda root, **_: memory)
    for name in ("dt=1/part-0.parquet", "dt=2/part-0.parquet", "_delta_log/00000000000000000000.json"):
        memory.put(f"clicks/{name}", b"PAR1")
    for name in ("lake/clicks", "lake/clicks/dt=*", "lake", "lake/**/*.parquet", "lake/clicks/dt=1"):
        with refused(
            ConfigError,
            f"input.train=s3://{name}",
            "names files of the Delta table ...",
            "type ...delta://s3://lake/clicks...",
        ):
            find_files("input.train", f"s3://{name}")


NO_ROWS = {
    "delta://clicks?version=7": "cannot be read as a table (...",
    "delta://": "names no table",
    "delta://clicks?version>=1": "names no table",
    "delta://clicks?day=1": "has the file ..., which has the keys dt, hour, it lacks day",
    "delta://clicks?dt=2026-11-1": "has no rows of these keys, only dt=2026-11-9/hour=, dt=2026-11-9/hour=7, ...",
    "iceberg://local/db.clicks?snapshot=7": "cannot be read as a table (it has no such snapshot; the last are: ...",
    "iceberg://local/db.none": "cannot be read as a table (Table does not exist...",
    "iceberg://clicks": "names no table",
}


def test_addresses_without_rows_are_refused() -> None:
    write_delta(rows(0, 10))
    write_iceberg(rows(0, 10))
    for name, rule in NO_ROWS.items():
        with refused(ConfigError, f"input={name}", rule) as caught:
            find_files("input", name)
        assert len(caught.value.problems) == 1


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlrm_app.logs.sources.lake.find_spec", lambda name: None)
    with refused(ConfigError, "input=delta://clicks", "needs the package deltalake"):
        find_files("input", "delta://clicks")


def append_to_log(folder: str, version: int, *actions: dict[str, Any]) -> None:
    Path(folder, LOG.format(version)).write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def z85(data: bytes) -> str:
    """The text that Delta has of bytes within its log: five characters for each four bytes."""
    digits = string.digits + string.ascii_lowercase + string.ascii_uppercase + ".-:+=^!/*?&<>()[]{}@%$#"
    words = struct.unpack(f">{len(data) // 4}I", data)
    return "".join(digits[word // 85**place % 85] for word in words for place in (4, 3, 2, 1, 0))


def test_deletion_vectors_are_refused_only_where_they_are_read() -> None:
    write_delta(rows(0, 6), keys=("dt",))
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    append_to_log("clicks", 1, {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}})
    assert len(find_files("input", "delta://clicks")) == 3  # the feature alone deletes nothing
    lines = Path("clicks", LOG.format(0)).read_text().splitlines()
    add = next(json.loads(line)["add"] for line in lines if f'"dt":"{DAYS[2]}"' in line)
    bitmap = struct.pack("<IQI", 1681511377, 1, 0) + pyroaring.BitMap([0, 1]).serialize()
    vector = {"storageType": "i", "pathOrInlineDv": z85(bitmap), "sizeInBytes": len(bitmap), "cardinality": 2}
    remove = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}
    append_to_log("clicks", 2, {"remove": remove}, {"add": {**add, "deletionVector": vector}})
    with refused(
        ConfigError,
        "input=delta://clicks",
        "has the file ..., which has rows deleted by a deletion vector",
        cure="run REORG TABLE...",
    ) as caught:
        find_files("input", "delta://clicks")
    assert f"dt={DAYS[2]}/" in str(caught.value)
    assert len(find_files("input", "delta://clicks?dt<2026-11-2")) == 1
    append_to_log(
        "clicks", 3, {"remove": remove}, {"add": {**add, "deletionVector": vector | {"storageType": "u"}}}
    )
    with refused(
        ConfigError,
        "input=delta://clicks",
        "cannot be read as a table (External error: Kernel error: File not found:...",
    ):
        find_files("input", "delta://clicks")


def test_mapped_columns_of_delta_are_refused() -> None:
    write_delta(rows(0, 3), keys=())
    actions = [json.loads(line) for line in Path("clicks", LOG.format(0)).read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            for number, field in enumerate(schema["fields"]):
                names = {"id": number, "physicalName": f"col-{number}"}
                field["metadata"] = {f"delta.columnMapping.{name}": value for name, value in names.items()}
            mode = {"delta.columnMapping.mode": "name"}
            action["metaData"] |= {"schemaString": json.dumps(schema), "configuration": mode}
    append_to_log("clicks", 0, *actions)
    with refused(
        ConfigError,
        "input=delta://clicks",
        "...other names of columns (column mapping, mode name): write a copy...",
    ):
        find_files("input", "delta://clicks")


def test_delete_files_are_refused_only_where_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """pyiceberg writes none: a delete file is put into a manifest of deletes as another engine would do."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestWriterV2
    from pyiceberg.typedef import Record

    name = write_iceberg(rows(0, 6), keys=("dt",))
    table = iceberg_table("clicks")
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path="file:///somewhere/deletes.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(DAYS[2]),
        record_count=1,
        file_size_in_bytes=1,
    )
    deletes.spec_id = table.spec().spec_id
    with (
        monkeypatch.context() as context,
        table.transaction() as transaction,
        transaction.update_snapshot().fast_append() as update,
    ):
        context.setattr(ManifestWriterV2, "content", lambda self: ManifestContent.DELETES)
        update.append_data_file(deletes)
    assert len(find_files("input", f"{name}?dt=2026-11-9&dt=2026-11-10")) == 2
    with refused(
        ConfigError,
        "input=iceberg://local/db.clicks?dt=2026-11-23",
        "has the file /somewhere/deletes.parquet, which deletes rows (position deletes)",
    ):
        find_files("input", f"{name}?dt=2026-11-23")


def test_an_iceberg_column_with_a_reused_name_is_refused() -> None:
    write_iceberg(rows(0, 6), keys=())
    from pyiceberg.types import LongType

    table = iceberg_table("clicks")
    with table.update_schema() as update:
        update.rename_column("x", "y")
    with table.update_schema() as update:
        update.add_column("x", LongType())
    table.append(pa.table({"y": [1], "label": [0], "dt": ["a"], "hour": [1], "x": [5]}))
    with refused(
        ConfigError, "input=iceberg://local/db.clicks", "...has other columns as x, since renamed or dropped"
    ):
        find_files("input", "iceberg://local/db.clicks")
    table.overwrite(pa.table({"y": [1], "label": [0], "dt": ["a"], "hour": [1], "x": [5]}))
    assert len(find_files("input", "iceberg://local/db.clicks")) == 1


def test_files_older_than_a_key_are_refused_by_its_filter() -> None:
    from pyiceberg.transforms import IdentityTransform

    name = write_iceberg(rows(0, 6), keys=())
    table = iceberg_table("clicks")
    with table.update_spec() as spec:
        spec.add_field("dt", IdentityTransform(), "dt")
    table.append(rows(6, 9))
    assert len(find_files("input", name)) == 4
    with refused(
        ConfigError,
        "input=iceberg://local/db.clicks?dt=2026-11-9",
        "has the file ..., which has no keys, it lacks dt",
    ):
        find_files("input", f"{name}?dt=2026-11-9")


DATASET = """name: small
columns:
- {name: x, role: dense, kind: integer}
- {name: label, role: label}
- {name: dt, role: sparse, kind: string}
- {name: hour, role: sparse, kind: integer}
"""


def dataset_of(output: str, given: str, *options: str) -> Manifest:
    Path("small.yaml").write_text(DATASET, encoding="utf-8")
    quoted = f'input.train="{given}"'
    return run(Path(output), "dataset=small.yaml", "encoding=vocab", "split.val=0.2", quoted, *options)


def test_the_same_rows_give_the_same_dataset_whatever_holds_them() -> None:
    table = rows(0, 600).filter(pc.field("dt") != DAYS[0])
    in_order = sorted(table.to_pylist(), key=lambda row: (row["dt"], row["hour"] or 0, row["x"]))
    table = pa.Table.from_pylist(in_order, table.schema)
    lines = ("\t".join("" if v is None else str(v) for v in row.values()) for row in table.to_pylist())
    Path("clicks.tsv").write_text("\n".join([*lines, ""]), encoding="utf-8")
    pq.write_table(table, "clicks.parquet")
    given = ["clicks.parquet", write_delta(rows(0, 600)), write_iceberg(rows(0, 600))]
    expected = dataset_of("text", "clicks.tsv")
    assert expected.splits["val"].rows == 80
    for number, name in enumerate(given):
        manifest = dataset_of(f"out{number}", f"{name}?dt>2026-11-0&dt<2026-11-3" if "://" in name else name)
        for split in ("train", "val"):
            assert table_of(manifest, split).equals(table_of(expected, split)), name
        assert content(Path(f"out{number}", "vocab")) == content(Path("text", "vocab"))


def test_a_dataset_continues_with_the_version_it_began_with(
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = write_delta(rows(0, 60), keys=())
    bad = pa.table({"x": [0], "label": [7], "dt": ["a"], "hour": [1]})
    deltalake.write_deltalake("clicks", bad, mode="append")
    with refused(DataError, "rejects.max_fraction=...", "allows fewer malformed lines than 1 of ..."):
        dataset_of("out", name)
    deltalake.write_deltalake("clicks", rows(60, 90), mode="append")
    with caplog.at_level("INFO"):
        manifest = dataset_of("out", name, "rejects.max_fraction=0.5")
    assert "continuing where it stopped" in caplog.text
    assert manifest.config["input"]["train"] == f"{name}?version=1"
    assert sum(split.rows for split in manifest.splits.values()) == 60
    caplog.clear()
    with caplog.at_level("INFO"):
        again = dataset_of("out", name, "rejects.max_fraction=0.5")
    assert "nothing to do" in caplog.text
    assert again.fingerprint() == manifest.fingerprint()
