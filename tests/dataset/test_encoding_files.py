"""Files that encoding takes are read only if they are as they were written."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm_app.checksums import checksum
from dlrm_app.dataset.encoding_files import copy_encoding_files, read_clicks, read_vocabulary
from dlrm_app.dataset.manifest import Manifest, read_manifest
from dlrm_app.encoding.encoder import Encoder
from dlrm_app.errors import DataError
from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import run, spec_of
from tests.refusals import refused

VOCAB, TARGET = "vocab/cat_3.parquet", "target/cat_3.parquet"


@pytest.fixture(scope="module")
def as_written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    (folder / "clicks.tsv").write_bytes(make_clicks(400))
    given = [f"input.train={folder}/clicks.tsv", "encoding=vocab", "dense.target_columns=[cat_3]"]
    return run(folder / "dataset", *given).folder


@pytest.fixture
def dataset(as_written: Path, tmp_path: Path) -> Manifest:
    """One to spoil."""
    return read_manifest(Path(shutil.copytree(as_written, tmp_path / "dataset")))


def alter(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path)), path, compression="zstd")


def reversed_values(table: pa.Table) -> pa.Table:
    return table.set_column(0, "value", table.column("value").take(pa.array(range(len(table) - 1, -1, -1))))


def with_nan(table: pa.Table) -> pa.Table:
    return table.set_column(2, "log_odds", pa.array([float("nan")] * len(table), pa.float32()))


DAMAGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "missing": (VOCAB, Path.unlink, "is missing"),
    "reversed": (
        VOCAB,
        lambda path: alter(path, reversed_values),
        "has other bytes than were written (checksum)",
    ),
    "short": (
        TARGET,
        lambda path: alter(path, lambda table: table.slice(0, 2)),
        "has other bytes than were written (checksum)",
    ),
    "not a number": (
        TARGET,
        lambda path: alter(path, with_nan),
        "has other bytes than were written (checksum)",
    ),
    "no Parquet": (
        TARGET,
        lambda path: path.write_bytes(b"text"),
        "has other bytes than were written (checksum)",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_changed_encoding_file_is_not_used_or_copied(
    dataset: Manifest, tmp_path: Path, damage: str
) -> None:
    file, spoil, reason = DAMAGES[damage]
    Encoder(spec_of("criteo_kaggle"), dataset.dense, dataset.sparse, dataset.folder)  # what it loads is kept
    spoil(dataset.folder / file)
    with refused(DataError, str(dataset.folder / file), reason):
        Encoder(spec_of("criteo_kaggle"), dataset.dense, dataset.sparse, dataset.folder)
    with refused(DataError, str(dataset.folder / file), reason):
        copy_encoding_files(dataset, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_the_fingerprint_covers_vocabularies_and_targets(dataset: Manifest) -> None:
    described = {column.encoding["checksum"] for column in dataset.sparse}
    assert described == {checksum(dataset.folder / f"vocab/{c.name}.parquet") for c in dataset.sparse}
    column = dataset.sparse[3]
    other = replace(column, encoding={**column.encoding, "checksum": "sha256:0"})
    sparse = [*dataset.sparse[:3], other, *dataset.sparse[4:]]
    assert replace(dataset, sparse=sparse).fingerprint() != dataset.fingerprint()


def test_a_table_that_does_not_fit_its_column_is_refused(dataset: Manifest) -> None:
    column, vocab, target = dataset.sparse[3], dataset.folder / VOCAB, dataset.folder / TARGET

    def given(file: str) -> dict[str, Any]:
        return {"file": file, "checksum": checksum(dataset.folder / file), "rare_id": 1}

    table = pq.read_table(vocab)
    alter(vocab, lambda table: table.slice(1))
    with refused(
        DataError, ".../dataset/vocab/cat_3.parquet", "has 57 lines, the manifest says 58, all with values"
    ):
        read_vocabulary(dataset.folder, replace(column, encoding=given(VOCAB)))
    pq.write_table(table.take(pa.array([1, 0, *range(2, len(table))])), vocab)
    with refused(
        DataError, ".../dataset/vocab/cat_3.parquet", "does not give the ids from 2 on in their order"
    ):
        read_vocabulary(dataset.folder, replace(column, encoding=given(VOCAB)))
    alter(target, with_nan)
    with refused(
        DataError,
        ".../dataset/target/cat_3.parquet",
        "has more clicks than rows, or values that are not finite",
    ):
        read_clicks(dataset.folder, given(TARGET), column.num_embeddings)


def test_written_rows_are_read_back(dataset: Manifest) -> None:
    column = dataset.sparse[3]
    rows, clicks, log_odds = read_clicks(dataset.folder, dataset.dense[-1].transform, column.num_embeddings)
    assert rows.sum() == dataset.splits["train"].rows
    assert clicks.sum() == dataset.splits["train"].positives
    assert np.isfinite(log_odds).all()
    assert len(read_vocabulary(dataset.folder, column)) == column.num_embeddings - 2
