"""A CSV with a header, quotes and a list column, by the example spec that users copy."""

import gzip
from pathlib import Path

import pyarrow.parquet as pq

from tests.preprocess import reference
from tests.preprocess.running import rejects_of, run, spec_of, table_of

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


def test_a_gz_file_gives_the_same_shards(tmp_path: Path) -> None:
    (tmp_path / "example.csv.gz").write_bytes(gzip.compress(EXAMPLE.read_bytes()))
    options = ("dataset=example_csv", "rejects.max_fraction=0.6")
    plain = run(tmp_path / "plain", *options, f"input.train={EXAMPLE}")
    zipped = run(tmp_path / "zipped", *options, f"input.train={tmp_path}/*.gz")
    assert plain.splits == zipped.splits
    assert plain.sources[0].checksum == zipped.sources[0].checksum
