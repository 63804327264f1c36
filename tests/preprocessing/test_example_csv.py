"""A CSV with a header, quotes and a list column, by the example spec that users copy."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dlrm_app.errors import ConfigError
from tests.preprocessing import reference
from tests.preprocessing.running import rejects_of, run, spec_of, table_of

SHARED = "1,u1,i1,i2|i3\n0,u2,i2,i1\n0,u1,i4,i2|i2|i5\n"
COLUMNS = (
    "[{name: clicked, role: label}, {name: user, role: sparse, kind: string}, "
    "{name: item, role: sparse, kind: string}, {name: last_items, role: sparse, kind: string, separator: '|'}]"
)
SHOP = ("dataset.delimiter=','", "dataset.name=shop", "dense.transform=none")
EXAMPLE = Path(__file__).parent / "example.csv"


def test_every_value_is_the_reference_s(tmp_path: Path) -> None:
    manifest = run(
        tmp_path / "out",
        "dataset=example_csv",
        f"input.train={EXAMPLE}",
        "encoding.num_embeddings=50",
        "rejects.max_fraction=0.6",
    )
    rows, rejects = reference.parse_file(EXAMPLE.read_bytes(), spec_of("example_csv"))
    table = table_of(manifest)
    assert table["clicked"].to_pylist() == [row.label for row in rows]
    for place, name in enumerate(["age", "price", "seconds"]):
        assert table[name].to_pylist() == [reference.dense_value(row.dense[place], "log1p") for row in rows]
    for place, name in enumerate(["user", "shop", "device"]):
        assert table[name].to_pylist() == [reference.hash_id(row.sparse[place], 50) for row in rows]
    lists = [[reference.hash_id(value, 50) for value in row.sparse[3]] for row in rows]
    assert table["last_items"].to_pylist() == lists
    assert [(entry["line"], entry["file"]) for entry in rejects_of(tmp_path / "out")] == [
        (number, str(EXAMPLE)) for number, _ in rejects
    ]
    assert [column.multi_hot for column in manifest.sparse] == [False, False, False, True]


def test_a_vocabulary_keeps_the_strings(tmp_path: Path) -> None:
    run(
        tmp_path / "out",
        "dataset=example_csv",
        f"input.train={EXAMPLE}",
        "encoding=vocab",
        "rejects.max_fraction=0.6",
    )
    rows, _ = reference.parse_file(EXAMPLE.read_bytes(), spec_of("example_csv"))
    for name, values in (
        ("user", [row.sparse[0] for row in rows]),
        ("shop", [row.sparse[1] for row in rows]),
        ("last_items", [value for row in rows for value in row.sparse[3]]),
    ):
        table = pq.read_table(tmp_path / "out" / "vocab" / f"{name}.parquet")
        kept = dict(zip(table["value"].to_pylist(), table["id"].to_pylist(), strict=True))
        assert kept == reference.make_vocabulary(values)


def test_columns_share_a_vocabulary_that_is_the_reference_s(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(SHARED)
    given = [*SHOP, f"dataset.columns={COLUMNS}", f"input.train={tmp_path}/log.csv", "threads=2"]
    shared = "encoding.shared=[[item, last_items]]"
    made = run(tmp_path / "shared", *given, "encoding=vocab", shared)
    rows = [line.split(",") for line in SHARED.splitlines()]
    values = [value for row in rows for value in (row[2], *row[3].split("|"))]
    known = reference.make_vocabulary(list(values))
    user, item, last_items = made.sparse
    assert item.encoding == last_items.encoding != user.encoding
    assert item.num_embeddings == last_items.num_embeddings == len(known) + 2
    assert [column.multi_hot for column in made.sparse] == [False, False, True]
    table = table_of(made)
    assert table.column("item").to_pylist() == [reference.vocab_id(row[2], known) for row in rows]
    assert table.column("last_items").to_pylist() == [
        [reference.vocab_id(value, known) for value in row[3].split("|")] for row in rows
    ]
    assert not (tmp_path / "shared/vocab/last_items.parquet").exists()
    again = run(tmp_path / "again", *given, "encoding=from_dataset", f"encoding.path={tmp_path}/shared")
    assert again.sparse[1].encoding == item.encoding
    assert table_of(again).equals(table)


@pytest.mark.parametrize(
    ("shared", "problem"),
    [
        ("[item, last_items]", "encoding.shared must hold lists of columns"),
        ("[[item, shop]]", "encoding.shared names 'shop'"),
        ("[[item, item]]", "encoding.shared names 'item' twice"),
        ("[[user, item]]", "user, item together, which differ in kind or encoding.top_k"),
    ],
)
def test_columns_that_cannot_share_a_vocabulary_are_refused(
    tmp_path: Path, shared: str, problem: str
) -> None:
    columns = COLUMNS.replace("user, role: sparse, kind: string", "user, role: sparse, kind: integer")
    (tmp_path / "log.csv").write_text(SHARED)
    given = [*SHOP, f"dataset.columns={columns}", f"input.train={tmp_path}/log.csv", "encoding=vocab"]
    with pytest.raises(ConfigError) as refused:
        run(tmp_path / "x", *given, f"encoding.shared={shared}")
    assert problem in str(refused.value)
