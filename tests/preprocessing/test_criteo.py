"""The real Criteo rows, where they are at hand, against the slow reference."""

import math
from pathlib import Path

import pytest

from tests.preprocessing import reference
from tests.preprocessing.running import CRITEO, NO_CRITEO, run, spec_of, table_of

pytestmark = pytest.mark.skipif(not CRITEO.is_dir(), reason=NO_CRITEO)


def first_lines(name: str, folder: Path) -> Path:
    lines = (CRITEO / f"{name}_first_10000.tsv").read_bytes().splitlines(keepends=True)
    (folder / "log.tsv").write_bytes(b"".join(lines[:3000]))
    return folder / "log.tsv"


def test_hashed_ids_and_dense_values_are_the_reference_s(tmp_path: Path) -> None:
    sizes = list(range(10, 270, 10))
    log = first_lines("day_0", tmp_path)
    keys = ["dataset=criteo_1tb", f"input.train={log}", f"encoding.num_embeddings={sizes}"]
    manifest = run(tmp_path / "out", *keys)
    rows, rejects = reference.parse_file(log.read_bytes(), spec_of("criteo_1tb"))
    table = table_of(manifest)
    assert rejects == []
    assert table["label"].to_pylist() == [row.label for row in rows]
    for place in range(13):
        expected = [reference.dense_value(row.dense[place], "log1p") for row in rows]
        assert table[f"int_{place}"].to_pylist() == expected
        missing = sum(row.dense[place] is None for row in rows) / len(rows)
        assert manifest.dense[place].missing_rate == missing
    for place, size in enumerate(sizes):
        expected = [reference.hash_id(row.sparse[place], size) for row in rows]
        assert table[f"cat_{place}"].to_pylist() == expected


def test_vocabularies_are_the_reference_s(tmp_path: Path) -> None:
    log = first_lines("kaggle", tmp_path)
    keys = ["dataset=criteo_kaggle", f"input.train={log}", "split.val=0.2", "split.test=0.1"]
    manifest = run(tmp_path / "out", *keys, "encoding=vocab", "encoding.min_count=2")
    rows, _ = reference.parse_file(log.read_bytes(), spec_of("criteo_kaggle"))
    assert [split.rows for split in manifest.splits.values()] == [2100, 600, 300]
    for place in range(26):
        values = [row.sparse[place] for row in rows]
        vocabulary = reference.make_vocabulary(values[:2100], min_count=2)
        ids = [reference.vocab_id(value, vocabulary) for value in values]
        for split, part in (("train", ids[:2100]), ("val", ids[2100:2700]), ("test", ids[2700:])):
            assert table_of(manifest, split)[f"cat_{place}"].to_pylist() == part
        column = manifest.sparse[place]
        assert column.num_embeddings == len(vocabulary) + 2
        assert column.distinct == len({value for value in values[:2100] if value is not None})
    assert math.isclose(
        manifest.sparse[0].missing_rate, sum(row.sparse[0] is None for row in rows[:2100]) / 2100
    )
