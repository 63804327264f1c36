"""Vectors in each row are the same from text, Parquet of any list type, and frames; others are rejects with a reason."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm_app.dataset.arrow import pack_vectors, unpack_vectors
from dlrm_app.dataset.manifest import Manifest, read_manifest
from dlrm_app.dataset.vector_columns import VectorColumn
from dlrm_app.encoding.row_hash import content_hashes
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.loader.reader import SplitReader
from dlrm_app.logs.arrow_rows import ArrowCursor
from dlrm_app.logs.parser import Parser
from dlrm_app.logs.read_spec import read_spec
from dlrm_app.logs.rejects import read_rejects
from tests.make_log import describe, write_csv
from tests.preprocessing.running import configure, run
from tests.refusals import refused

SIZE, ROWS = 5, 300
COLUMNS = [
    "{name: clicked, role: label}",
    "{name: age, role: dense, kind: integer}",
    "{name: item, role: sparse, kind: integer}",
    '{name: text, role: vector, size: 5, separator: "|"}',
]


def draw_rows(rows: int = ROWS, seed: int = 0) -> pa.Table:
    """Every seventh vector is missing."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(rows, SIZE)).astype(np.float32)
    lists = [None if row % 7 == 0 else vector for row, vector in enumerate(vectors.tolist())]
    return pa.table(
        {
            "clicked": random.integers(0, 2, rows),
            "age": random.integers(0, 80, rows),
            "item": random.integers(0, 9, rows),
            "text": pa.array(lists, pa.list_(pa.float32())),
        }
    )


def preprocess(folder: Path, log: str, output: str, *more: str) -> Manifest:
    given = [f"dataset={folder}/log.yaml", f"input.train={folder}/{log}", "encoding=vocab"]
    return run(folder / output, *given, *more)


def vectors_of(manifest: Manifest) -> np.ndarray:
    """Those of the train split, as the loader reads them."""
    rows = SplitReader(manifest, "train", ["item"]).decode(0)
    return rows.dense[:, len(manifest.dense) :]


def expected(table: pa.Table) -> np.ndarray:
    return np.array([each or [0] * SIZE for each in table["text"].to_pylist()], np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    describe(tmp_path, COLUMNS)
    return tmp_path


TYPES = {
    "list": pa.list_(pa.float32()),
    "fixed": pa.list_(pa.float32(), SIZE),
    "large": pa.large_list(pa.float64()),
    "texts": pa.list_(pa.string()),
}


def test_every_form_of_a_log_gives_the_same_vectors(folder: Path) -> None:
    table = draw_rows()
    write_csv(folder / "log.csv", table)
    found = {"text": vectors_of(preprocess(folder, "log.csv", "text", "vectors.dtype=fp32"))}
    for name, kind in TYPES.items():
        stored = table.set_column(
            3, "text", pa.array(table["text"].to_pylist(), pa.list_(pa.float64())).cast(kind)
        )
        pq.write_table(stored, folder / f"{name}.parquet")
        manifest = preprocess(folder, f"{name}.parquet", name, "vectors.dtype=fp32")
        assert manifest.vectors == [VectorColumn("text", SIZE, "fp32", pytest.approx(43 / ROWS))]
        found[name] = vectors_of(manifest)
    for name, vectors in found.items():
        assert np.array_equal(vectors, expected(table)), name


def test_halves_are_kept_in_half_the_bytes(folder: Path) -> None:
    """The numbers are those of float16, whose Parquet is read too."""
    table = draw_rows()
    halves = expected(table).astype(np.float16)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(halves.reshape(-1)), SIZE)
    pq.write_table(table.set_column(3, "text", lists), folder / "half.parquet")
    manifest = preprocess(folder, "half.parquet", "half")
    assert manifest.vectors[0].dtype == "fp16"
    assert np.array_equal(vectors_of(manifest), halves.astype(np.float32))
    column = VectorColumn("text", SIZE, "fp16")
    packed = pack_vectors(halves.astype(np.float32), column)
    assert packed.nbytes == ROWS * 3 * 4
    assert np.array_equal(unpack_vectors(packed.reshape(-1), column), halves.astype(np.float32))


def test_brackets_and_blanks_are_read_as_numpy_writes_them(folder: Path) -> None:
    describe(folder, [*COLUMNS[:3], '{name: text, role: vector, size: 3, brackets: "[]"}'])
    vectors = [[0.5, -1.25, 3], [1e-3, 2e5, 0.0]]
    lines = [f"1,3,4,{np.array(vector)}" for vector in vectors] + ["0,1,2,[]", "0,1,2,"]
    (folder / "log.csv").write_text("clicked,age,item,text\n" + "\n".join(lines) + "\n")
    manifest = preprocess(folder, "log.csv", "data", "vectors.dtype=fp32")
    assert np.allclose(vectors_of(manifest), [*vectors, [0, 0, 0], [0, 0, 0]])


def test_blanks_stand_between_numbers_where_columns_have_another_delimiter(folder: Path) -> None:
    """A tab is one, which is the delimiter where none is given, as for Parquet; a blank is refused."""
    vectors = [[0.5, -1.25, 3], [1e-3, 2e5, 0.0]]
    rows = ["\t".join(["1", "3", "4", " ".join(map(str, vector))]) for vector in vectors]
    (folder / "log.tsv").write_text("clicked\tage\titem\ttext\n" + "\n".join(rows) + "\n")
    described = describe(folder, [*COLUMNS[:3], "{name: text, role: vector, size: 3}"])
    text = described.read_text()
    described.write_text(text.replace('delimiter: ","', r'delimiter: "\t"'))
    assert np.allclose(vectors_of(preprocess(folder, "log.tsv", "data", "vectors.dtype=fp32")), vectors)
    described.write_text(text.replace('delimiter: ","', 'delimiter: " "'))
    key, cure = "dataset.columns[3] (text): separator", "give another character"
    with refused(ConfigError, key, "is needed where columns are delimited by a blank", cure):
        preprocess(folder, "log.tsv", "refused")


WRONG = {
    "another length": ("1|2|3", [1.0, 2.0, 3.0], "text has 3 numbers, its size is 5"),
    "no number": ("1|2|x|4|5", None, "each element must be a number within the range of float32"),
    "nan": ("1|2|nan|4|5", [1.0, 2.0, float("nan"), 4.0, 5.0], "each element must be a number"),
    "inf": ("1|2|inf|4|5", [1.0, 2.0, float("inf"), 4.0, 5.0], "each element must be a number"),
    "a gap": ("1|2||4|5", [1.0, 2.0, None, 4.0, 5.0], "each element must be a number"),
}


@pytest.mark.parametrize("what", WRONG)
def test_other_vectors_are_rejects_with_their_reason(folder: Path, what: str) -> None:
    """In text and in Parquet alike; the other rows are kept."""
    text, numbers, reason = WRONG[what]
    table = draw_rows(20)
    write_csv(folder / "log.csv", table)
    lines = (folder / "log.csv").read_text().splitlines()
    lines[4] = f"1,2,3,{text}"
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    logs = ["log.csv"]
    if numbers is not None:
        lists = table["text"].to_pylist()
        lists[3] = numbers
        stored = table.set_column(3, "text", pa.array(lists, pa.list_(pa.float64())))
        pq.write_table(stored, folder / "log.parquet")
        logs.append("log.parquet")
    for log in logs:
        manifest = preprocess(folder, log, f"of_{log}", "rejects.max_fraction=0.5", "vectors.dtype=fp32")
        (reject,) = read_rejects(manifest.folder / "rejects.jsonl")
        assert reason in reject.reason
        assert np.array_equal(vectors_of(manifest), np.delete(expected(table), 3, axis=0))


def test_null_words_stand_for_a_missing_vector(folder: Path) -> None:
    describe(folder, COLUMNS, "null_values: [none]")
    (folder / "log.csv").write_text("clicked,age,item,text\n1,2,3,none\n0,2,3,1|2|3|4|5\n")
    manifest = preprocess(folder, "log.csv", "data")
    assert vectors_of(manifest).tolist() == [[0] * 5, [1, 2, 3, 4, 5]]
    assert manifest.vectors[0].missing_rate == 0.5


def test_content_is_the_same_in_text_and_parquet(folder: Path) -> None:
    table = draw_rows(50)
    spec = read_spec(configure(f"dataset={folder}/log.yaml", "input.train=x", "output=x").dataset)
    (from_arrow,) = ArrowCursor(table, spec).rows(100, None)
    hashes = content_hashes(from_arrow, spec).copy()
    text = np.frombuffer(bytearray("".join(_lines(table)).encode() + b"\0" * 128), np.uint8)
    parser = Parser(spec, 100)
    parser.parse(text, 0, len(text) - 128, 50)
    assert np.array_equal(content_hashes(parser.take(), spec), hashes)
    assert len({*hashes.tolist()}) == 50


def _lines(table: pa.Table) -> list[str]:
    return [
        f"{row['clicked']},{row['age']},{row['item']},{'|'.join(map(repr, row['text'] or []))}\n"
        for row in table.to_pylist()
    ]


def test_a_number_that_halves_cannot_hold_is_refused(folder: Path) -> None:
    (folder / "log.csv").write_text("clicked,age,item,text\n0,2,3,1|2|3|4|70000\n1,2,3,1|2|3|4|5\n")
    with refused(
        DataError, "column text", "has the number 70000, and fp16 holds numbers up to 65504", "...fp32"
    ):
        preprocess(folder, "log.csv", "half")
    assert vectors_of(preprocess(folder, "log.csv", "full", "vectors.dtype=fp32"))[0, 4] == 70000


@pytest.mark.parametrize(
    ("entry", "key", "rule"),
    [
        ("{name: text, role: vector}", "size", "must be the numbers of each vector..."),
        ("{name: text, role: vector, size: 0}", "size", "must be the numbers of each vector..."),
        ("{name: text, role: dense, kind: float, size: 3}", "size", "is for columns with role: vector"),
        (
            "{name: text, role: vector, size: 3, kind: float}",
            "kind",
            "is not a key of a column with role: vector",
        ),
    ],
)
def test_a_description_that_cannot_be_is_refused(folder: Path, entry: str, key: str, rule: str) -> None:
    describe(folder, [*COLUMNS[:3], entry])
    with refused(ConfigError, f"dataset.columns[3] (text): {key}", rule):
        preprocess(folder, "log.csv", "data")


def test_a_size_that_differs_from_the_files_is_refused_before_work(folder: Path) -> None:
    table = draw_rows(20)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(60, np.float32)), 3)
    pq.write_table(table.set_column(3, "text", lists), folder / "log.parquet")
    with refused(ConfigError, "...column text", "...the vectors' size is 5", "give size: 3..."):
        preprocess(folder, "log.parquet", "data")


def test_rows_of_another_dataset_keep_its_type(folder: Path) -> None:
    """A dataset with the encodings of another one keeps vectors as that one does; another size is another column."""
    write_csv(folder / "log.csv", draw_rows())
    preprocess(folder, "log.csv", "first", "vectors.dtype=fp32")
    given = [f"dataset={folder}/log.yaml", f"input.train={folder}/log.csv", "encoding=from_dataset"]
    again = run(folder / "again", *given, f"encoding.path={folder}/first")
    assert again.vectors[0].dtype == "fp32"
    assert np.array_equal(vectors_of(again), vectors_of(read_manifest(folder / "first")))
    describe(folder, [*COLUMNS[:3], '{name: text, role: vector, size: 4, separator: "|"}'])
    with refused(ConfigError, f"encoding.path={folder}/first", "has other columns than dataset=log (text)"):
        run(folder / "other", *given, f"encoding.path={folder}/first")
