"""Columns of kind ``score``, another model's predictions, are logits for the model, from text and Parquet."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.errors import ConfigError
from tests.inference.conftest import predicted
from tests.make_log import make_log
from tests.preprocessing.running import AUTO, rejects_of, run, table_of
from tests.refusals import refused
from tests.small_run import train_here

COLUMNS = [
    "{name: clicked, role: label}",
    "{name: age, role: dense, kind: float}",
    "{name: boosted, role: dense, kind: score}",
    "{name: shop, role: sparse, kind: integer}",
]
ROWS = 400
COMMON = ["split.test=0.25", "threads=1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log as text and as Parquet; some scores are missing, 0 and 1."""
    folder, chance = tmp_path_factory.mktemp("scored"), random.Random(0)
    scores = [None, 0.0, 1.0, *(round(chance.random(), 4) for _ in range(ROWS - 3))]
    columns = {
        "clicked": [int(chance.random() < (score or 0.5)) for score in scores],
        "age": [round(chance.gauss(40, 10), 1) for _ in scores],
        "boosted": scores,
        "shop": [chance.randrange(9) for _ in scores],
    }
    pq.write_table(pa.table(columns), folder / "log.parquet")
    run(folder / "data", *make_log(folder, COLUMNS, columns), *COMMON, *AUTO)
    return folder


def test_a_score_becomes_its_logit_and_nothing_else(folder: Path) -> None:
    """It has no bucket and no transform to be chosen; missing is 0, and 0 and 1 are finite."""
    manifest = run(
        folder / "again", f"dataset={folder}/log.yaml", f"input.train={folder}/log.parquet", *COMMON, *AUTO
    )
    (column,) = [column for column in manifest.dense if column.name == "boosted"]
    assert column.transform == {"kind": "logit"}
    assert column.missing_rate == pytest.approx(1 / (0.75 * ROWS))
    assert [column.name for column in manifest.sparse] == ["shop", "age_bucket"]
    given = np.array(pq.read_table(folder / "log.parquet")["boosted"].to_pylist(), float)[
        : len(table_of(manifest))
    ]
    p = np.clip(np.nan_to_num(given, nan=0.5), 1e-7, 1 - 1e-7)
    np.testing.assert_allclose(
        table_of(manifest)["boosted"].to_numpy(), np.log(p / (1 - p)), rtol=1e-6, atol=1e-6
    )
    for split in ("train", "test"):
        assert table_of(manifest, split) == table_of(read_manifest(folder / "data"), split)


def test_scores_outside_0_to_1_are_rejected(folder: Path, tmp_path: Path) -> None:
    text = "clicked,age,boosted,shop\n" + "1,30,0.5,1\n" * 8 + "1,30,-2.5,1\n0,31,1.01,1\n"
    (tmp_path / "wrong.csv").write_text(text)
    table = pa.table({"clicked": [1] * 9, "age": [30.0] * 9, "boosted": [0.5] * 8 + [1.5], "shop": [1] * 9})
    pq.write_table(table, tmp_path / "wrong.parquet")
    for name, bad in (("wrong.csv", 2), ("wrong.parquet", 1)):
        words = [
            f"dataset={folder}/log.yaml",
            f"input.train={tmp_path}/{name}",
            "rejects.max_fraction=0.5",
        ]
        manifest = run(tmp_path / name.replace(".", "_"), *words, "threads=1")
        assert manifest.splits["train"].rejects == bad
        assert "a probability, from 0 to 1" in rejects_of(tmp_path / name.replace(".", "_"))[0]["reason"]


def test_a_score_cannot_be_cut_into_buckets(folder: Path, tmp_path: Path) -> None:
    words = [
        f"dataset={folder}/log.yaml",
        f"input.train={folder}/log.csv",
        "dense.bucket_columns=[boosted]",
    ]
    with refused(ConfigError, "dense.bucket_columns", "names 'boosted'"):
        run(tmp_path / "out", *words)


def test_raw_rows_score_as_the_dataset_does(folder: Path, tmp_path: Path) -> None:
    """Beside embeddings of the numbers, which the score has none of."""
    keys = [f"data.path={folder}/data", "model.dense_embedding_dim=2", "trainer.global_batch_size=64"]
    train_here(tmp_path / "run", *keys)
    lines = (folder / "log.csv").read_text().splitlines(keepends=True)
    (tmp_path / "test.csv").write_text("".join([lines[0], *lines[1 + int(0.75 * ROWS) :]]))
    scores = []
    for words in ([f"data.path={folder}/data", "split=test"], [f"input={tmp_path}/test.csv"]):
        output = tmp_path / f"{len(scores)}.parquet"
        scores.append(predicted(output, f"model={tmp_path}/run", *words)["score"].to_pylist())
    assert scores[0] == scores[1]
    assert len(scores[0]) == ROWS // 4
