"""Parquet as input: the same dataset as from text, whoever wrote it; what cannot be read is refused by name."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from dlrm_app.errors import ConfigError, DataError
from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import content, rejects_of, run, spec_of, table_of
from tests.refusals import refused

ROWS = 3_000
OPTIONS = (
    "dataset=criteo_kaggle",
    "split.val=0.2",
    "encoding=vocab",
    "encoding.min_count=2",
    "dense.target_columns=all",
)


def as_table(text: bytes) -> pa.Table:
    """The rows of a Criteo log, read by pyarrow: integers, and strings of hex digits."""
    columns = spec_of("criteo_kaggle").columns
    kinds = {c.name: pa.string() if c.kind == "hex" else pa.int64() for c in columns}
    options = csv.ConvertOptions(column_types=kinds, strings_can_be_null=True, null_values=[""])
    names = csv.ReadOptions(column_names=[c.name for c in columns])
    return csv.read_csv(pa.BufferReader(text), names, csv.ParseOptions(delimiter="\t"), options)


def by_pyarrow(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, row_group_size=700, compression="snappy")


def like_spark(table: pa.Table, path: Path) -> None:
    pq.write_table(
        table, path, flavor="spark", use_dictionary=False, data_page_version="1.0", compression="gzip"
    )


def by_pandas(table: pa.Table, path: Path) -> None:
    pytest.importorskip("pandas", reason="pandas writes its own Parquet")
    table.to_pandas().to_parquet(path)  # integers with nulls become floats


def by_polars(table: pa.Table, path: Path) -> None:
    polars = pytest.importorskip("polars", reason="polars writes its own Parquet")
    polars.from_arrow(table).write_parquet(path)


def by_duckdb(table: pa.Table, path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="DuckDB writes its own Parquet")
    duckdb.register("clicks", table)
    duckdb.sql(f"COPY clicks TO '{path}' (FORMAT parquet)")


@pytest.fixture(scope="module")
def from_text(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """(The dataset made of the text, the text)."""
    folder = tmp_path_factory.mktemp("text")
    text = make_clicks(ROWS)
    (folder / "clicks.tsv").write_bytes(text)
    run(folder / "out", *OPTIONS, f"input.train={folder}/clicks.tsv")
    return folder / "out", text


@pytest.mark.parametrize("write", [by_pyarrow, like_spark, by_pandas, by_polars, by_duckdb])
def test_every_writer_gives_the_dataset_of_the_text(
    from_text: tuple[Path, bytes], write: Callable[[pa.Table, Path], None], tmp_path: Path
) -> None:
    expected, text = from_text
    write(as_table(text), tmp_path / "clicks.any")  # known by its bytes, not its name
    run(tmp_path / "out", *OPTIONS, f"input.train={tmp_path}/clicks.any")
    # one unit, as the text is: the same bytes but for what names the source
    assert content(tmp_path / "out", ["manifest.json"]) == content(expected, ["manifest.json"])


def test_slices_and_threads_give_the_same_rows(from_text: tuple[Path, bytes], tmp_path: Path) -> None:
    wide = pa.concat_tables([as_table(from_text[1])] * 4)  # a unit of 1 MiB holds some 3,000 rows
    pq.write_table(wide, tmp_path / "wide.parquet", row_group_size=5_000)
    options = ("dataset=criteo_kaggle", "layout.unit_mib=1", "encoding=vocab")
    one = run(tmp_path / "one", *options, f"input.train={tmp_path}/wide.parquet", "threads=1")
    run(tmp_path / "many", *options, f"input.train={tmp_path}/wide.parquet", "threads=4")
    assert len(one.splits["train"].shards) > 2
    assert content(tmp_path / "one") == content(tmp_path / "many")
    again = run(tmp_path / "text", *options, f"input.train={_text_of(wide, tmp_path)}")
    assert table_of(one).equals(table_of(again))


def _text_of(table: pa.Table, folder: Path) -> Path:
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    lines = ("\t".join("" if value is None else str(value) for value in row) for row in rows)
    path = folder / "wide.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_bad_row_is_a_reject_with_its_number(tmp_path: Path) -> None:
    table = as_table(make_clicks(50))
    labels = table["label"].to_pylist()
    labels[6] = 2
    ids = table["cat_3"].to_pylist()
    ids[40] = "xyz"
    table = table.set_column(0, "label", pa.array(labels)).set_column(
        table.schema.get_field_index("cat_3"), "cat_3", pa.array(ids)
    )
    pq.write_table(table, tmp_path / "clicks.parquet", row_group_size=20)
    manifest = run(
        tmp_path / "out",
        "dataset=criteo_kaggle",
        f"input.train={tmp_path}/clicks.parquet",
        "rejects.max_fraction=0.1",
    )
    assert manifest.splits["train"].rows == 48
    assert [(each["line"], each["column"]) for each in rejects_of(tmp_path / "out")] == [
        (7, "label"),
        (41, "cat_3"),
    ]


def test_other_names_are_taken_by_position_if_that_is_typed(
    from_text: tuple[Path, bytes], tmp_path: Path
) -> None:
    expected, text = from_text
    table = as_table(text)
    pq.write_table(table.rename_columns([f"c{n}" for n in range(40)]), tmp_path / "clicks.parquet")
    given = [*OPTIONS, f"input.train={tmp_path}/clicks.parquet"]
    with refused(ConfigError, ".../clicks.parquet", "lacks the columns ...", "...input.by_position=true..."):
        run(tmp_path / "out", *given)
    run(tmp_path / "out", *given, "input.by_position=true")
    assert content(tmp_path / "out", ["manifest.json"]) == content(expected, ["manifest.json"])


def test_names_of_other_case_are_refused_not_taken_by_position(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"X": ["1"], "LABEL": ["0"]}), tmp_path / "a.parquet"
    )  # each could be read as the other
    with refused(
        ConfigError,
        ".../a.parquet",
        "lacks the columns label, x ('LABEL' is not 'label', 'X' is not 'x': case and spaces...",
    ):
        run_small(tmp_path, "a.parquet")


def test_shards_of_a_dataset_are_refused_as_raw_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": [0, 1], "x": ["a", "b"]}), tmp_path / "a.parquet")
    run_small(tmp_path, "a.parquet")  # into a folder below that of the rows
    form = f"dataset={tmp_path}/small.yaml"
    with refused(
        ConfigError,
        ".../out/train/part-00000.parquet",
        "is a shard of a dataset, which has ids in place of raw values",
    ):
        run(tmp_path / "again", form, f'input.train="{tmp_path}/**/*.parquet"', "encoding=vocab")


ITEMS = pa.array([["a"], ["b", None]])


@pytest.mark.parametrize(
    ("column", "kind", "cure"),
    [
        (pa.array([[[1]], [[2]]]), "list<element: list", "..."),
        (pa.array([{"a": 1}, {"a": 2}]), "struct", "..."),
        (pa.array([b"\1\2\3\4", b"abcd"], pa.binary(4)), "fixed_size_binary", "..."),
        (ITEMS, "list<", "...separator..."),
    ],
)
def test_a_type_that_has_no_text_is_refused_by_name(
    column: pa.Array, kind: str, cure: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"label": [0, 1], "x": column}), tmp_path / "clicks.parquet")
    with refused(ConfigError, "...clicks.parquet: column x", f"is {kind}...", cure):
        run_small(tmp_path, "clicks.parquet")


def run_small(folder: Path, *files: str, separator: str = "") -> Any:
    of_list = f", separator: '{separator}'" if separator else ""
    (folder / "small.yaml").write_text(
        "name: small\ncolumns:\n- {name: label, role: label}\n"
        f"- {{name: x, role: sparse, kind: string{of_list}}}\n",
        encoding="utf-8",
    )
    names = ",".join(str(folder / file) for file in files)
    return run(folder / "out", f"dataset={folder}/small.yaml", f"input.train=[{names}]", "encoding=vocab")


def test_ids_beyond_63_bits_are_rejected_with_the_kind_to_take(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"label": [0, 1], "x": pa.array([2**63, 1], pa.uint64())}), tmp_path / "a.parquet"
    )
    (tmp_path / "a.yaml").write_text(
        "name: a\ncolumns:\n- {name: label, role: label}\n- {name: x, role: sparse, kind: integer}\n"
    )
    given = [f"dataset={tmp_path}/a.yaml", f"input.train={tmp_path}/a.parquet", "rejects.max_fraction=0.5"]
    run(tmp_path / "out", *given, "encoding=vocab")
    (reject,) = rejects_of(tmp_path / "out")
    assert reject["reason"].endswith("take kind: string")


@pytest.mark.parametrize(("kind", "limit"), [(pa.float16(), 11), (pa.float32(), 24), (pa.float64(), 53)])
def test_ids_rounded_by_floats_are_rejected(tmp_path: Path, kind: pa.DataType, limit: int) -> None:
    values = pa.array([1.0, 2.0**limit - 1, 2.0**limit, 2.5]).cast(kind)
    for column in (values, pa.array([[value.as_py()] for value in values], pa.list_(kind))):
        pq.write_table(pa.table({"label": [0, 1, 0, 1], "x": column}), tmp_path / "log.parquet")
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        separator = "|" if column is not values else ""
        with refused(DataError, "rejects.max_fraction=0.001", "allows fewer malformed lines than 2 of 4"):
            run_small(tmp_path, "log.parquet", separator=separator)


def test_lists_of_every_kind_are_read(tmp_path: Path) -> None:
    text = pa.string()
    kinds = [pa.list_(text), pa.large_list(text), pa.list_view(text), pa.large_list_view(text)]
    for number, kind in enumerate([*kinds, pa.list_(text, 2)]):
        rows = [["a", "b"], ["b", None], None, ["b", "a"]]
        table = pa.table({"label": [0, 1, 0, 1], "x": pa.array(rows, kind)})
        pq.write_table(table, tmp_path / f"{number}.parquet")
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        manifest = run_small(tmp_path, f"{number}.parquet", separator="|")
        values = pq.read_table(tmp_path / "out" / "vocab" / "x.parquet")
        ids = dict(zip(values["value"].to_pylist(), values["id"].to_pylist(), strict=True))
        a, b = ids["a"], ids["b"]
        assert table_of(manifest)["x"].to_pylist() == [[a, b], [b, 0], [], [b, a]]


KEYS: list[tuple[str, pa.Array, str | None]] = [
    ("a", pa.array(["a", "b"]), "values are a to b"),
    ("a", pa.array(["a", "a"]), None),
    ("a", pa.array(["a", "a"]).dictionary_encode(), None),
    ("a", pa.array(["a", None]), "values are null"),
    ("7", pa.array([7, 7]), None),
    ("7", pa.array([7, 8]), "values are 7 to 8"),
    ("a", pa.array([7, 7]), "values are 7 to 7"),
    ("c%20d", pa.array(["c d", "c d"]), None),
    ("__HIVE_DEFAULT_PARTITION__", pa.array([None, None], pa.string()), None),
    ("__HIVE_DEFAULT_PARTITION__", pa.array([None, "a"]), "values are not null"),
]


@pytest.mark.parametrize("in_all", [True, False])
@pytest.mark.parametrize(("value", "column", "fault"), KEYS)
def test_a_key_of_folders_that_files_have_too_has_their_values(
    value: str, column: pa.Array, fault: str | None, in_all: bool, tmp_path: Path
) -> None:
    for number in range(2):
        folder = tmp_path / "log" / f"x={value}" / f"{number}.parquet"
        folder.parent.mkdir(parents=True, exist_ok=True)
        columns = {"label": pa.array([0, 1])} | ({"x": column} if in_all or number else {})
        pq.write_table(pa.table(columns), folder)
    if fault is None and not in_all and pa.types.is_integer(column.type):
        fault = "holds numbers"  # the key of the others is a string
    if fault is None:
        manifest = run_small(tmp_path, "log")
        assert len({*table_of(manifest)["x"].to_pylist()}) == 1
        return
    with refused(ConfigError, f"...{value}/1.parquet...", f"...{fault}..."):
        run_small(tmp_path, "log")


def test_a_key_of_folders_whose_values_nobody_knows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log" / "x=a").mkdir(parents=True)
    table = pa.table({"label": [0, 1], "x": ["a", "a"]})
    pq.write_table(table, tmp_path / "log" / "x=a" / "0.parquet", write_statistics=False)
    with refused(
        ConfigError,
        ".../log/x=a/0.parquet",
        "has the column x, where the footer does not say which values it has, and x=a in its...",
    ):
        run_small(tmp_path, "log")
    (tmp_path / "small.yaml").write_text(
        "name: small\ncolumns:\n- {name: label, role: label}\n- {name: x, role: ignore}\n"
        "- {name: label2, role: dense, kind: integer}\n"
    )
    pq.write_table(
        table.append_column("label2", pa.array([3, 4])),
        tmp_path / "log" / "x=a" / "0.parquet",
        write_statistics=False,
    )
    keys = (f"dataset={tmp_path}/small.yaml", f"input.train={tmp_path}/log", "dense.bucket_columns=all")
    assert run(tmp_path / "unread", *keys).splits["train"].rows == 2  # a column that is not read


def test_numbers_in_one_file_and_strings_in_another_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": [0], "x": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"label": [0], "x": ["1"]}), tmp_path / "b.parquet")
    with refused(ConfigError, ".../b.parquet: column x", "holds strings, that of .../a.parquet numbers"):
        run_small(tmp_path, "a.parquet", "b.parquet")


def test_a_column_that_is_missing_in_one_file_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": [0], "x": ["1"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"label": [0], "y": ["1"]}), tmp_path / "b.parquet")
    with refused(ConfigError, ".../b.parquet", "lacks the columns x; it has label, y"):
        run_small(tmp_path, "a.parquet", "b.parquet")


@pytest.mark.parametrize("damage", ["cut", "page"])
def test_a_damaged_file_is_named(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"label": [0, 1] * 5_000, "x": [str(n) for n in range(10_000)]}), path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    else:
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            file.write(os.urandom(2_000))
    with refused(DataError, f"{tmp_path}/a.parquet", "cannot be read as Parquet: ..."):
        run_small(tmp_path, "a.parquet")
