"""A teacher's scores as labels are mixed row by row, in any order of batches; other rows are refused."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.loader.batch import TrainBatches
from dlrm_app.loader.batch_order import BatchPlan
from dlrm_app.loader.reader import SplitReader
from dlrm_app.loader.soft_labels import SoftLabels, open_soft_labels
from tests.loader.dataset_fixture import write_dataset
from tests.plain_training import compose_train
from tests.refusals import find_problem, refused
from tests.small_run import losses, train_here

ROWS = 2000


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return write_dataset(
        tmp_path_factory.mktemp("soft") / "x",
        {"train": ROWS, "val": 200},
        rows_per_group=100,
        rows_per_shard=450,
    )


def opened(path: Path, share: float, manifest: Manifest) -> SoftLabels:
    with start_runtime(1) as runtime:
        return open_soft_labels(path, share, manifest, runtime)


def labels_of(manifest: Manifest) -> np.ndarray:
    assert manifest.path is not None
    shards = [pq.read_table(manifest.path / shard.path) for shard in manifest.splits["train"].shards]
    return pa.concat_tables(shards).column("label").to_numpy()


def write_scores(path: Path, scores: np.ndarray, labels: np.ndarray) -> Path:
    place = {"shard": ["train/part-00000.parquet"] * len(labels), "row": range(len(labels))}
    table = pa.table({"score": scores.astype(np.float32), "label": labels, **place})
    pq.write_table(table, path, row_group_size=130)  # no multiple of the dataset's
    return path


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_every_row_gets_its_own_mix(manifest: Manifest, tmp_path: Path, share: float) -> None:
    """Two readings of an epoch, one with the row's number for a score, meet the rows in the same order."""
    labels = labels_of(manifest)
    numbers = np.arange(ROWS, dtype=np.float32) / 4096  # exact
    paths = [write_scores(tmp_path / "n", numbers, labels), write_scores(tmp_path / "s", numbers, labels)]
    plan = BatchPlan(global_batch_size=100, lanes=4, seed=3, ensemble_size=2)
    found = []
    for path, part in zip(paths, (1.0, share), strict=True):
        soft = opened(path, part, manifest)
        with TrainBatches(SplitReader(manifest, "train", ["c0"], soft), plan) as batches:
            found.append(torch.cat([batch.supervision.labels[0] for batch in batches]).numpy())
    rows = np.round(found[0] * 4096).astype(int)
    assert sorted(rows.tolist()) == sorted([*range(ROWS)] * 2)
    np.testing.assert_allclose(found[1], share * numbers[rows] + (1 - share) * labels[rows], rtol=1e-6)


def test_the_loss_is_the_mix_of_two_losses(manifest: Manifest, tmp_path: Path) -> None:
    """Of the first step, whose weights are the same whatever the labels; and no share at all changes nothing."""
    labels = labels_of(manifest)
    path = write_scores(tmp_path / "s", np.random.default_rng(0).random(ROWS), labels)
    first = {}
    for share in (0.0, 0.25, 1.0):
        keys = [f"distillation.scores={path}", f"distillation.share={share}", "trainer.max_steps=1"]
        train_here(tmp_path / str(share), f"data.path={manifest.path}", *keys)
        (first[share],) = losses(tmp_path / str(share))
    train_here(tmp_path / "plain", f"data.path={manifest.path}", "trainer.max_steps=1")
    assert losses(tmp_path / "plain") == [first[0.0]]
    assert first[0.25] == pytest.approx(0.25 * first[1.0] + 0.75 * first[0.0], rel=1e-5)


def test_scores_of_other_rows_are_refused(manifest: Manifest, tmp_path: Path) -> None:
    labels, good = labels_of(manifest), np.full(ROWS, 0.5)
    table = pq.read_table(write_scores(tmp_path / "good", good, labels))
    place = "does not hold score, label, shard and row of each of 2,000 rows..."
    values = "lacks labels, or scores from 0 to 1"
    for wrong, rule in (
        (table.slice(1), place),
        (table.select(["score"]), place),
        (table.rename_columns(["score", "label", "file", "line"]), place),  # may be told their own clicks
        (table.set_column(0, "score", pa.array(np.where(labels > 0, np.nan, good))), values),
        (table.set_column(0, "score", pa.array([None, *good[1:]])), values),
    ):
        pq.write_table(wrong, tmp_path / "wrong")
        with refused(
            DataError, f"distillation.scores={tmp_path}/wrong", rule, cure="make it with dlrm-predict ..."
        ):
            opened(tmp_path / "wrong", 0.5, manifest)
    (tmp_path / "text").write_text("score\n0.5\n")
    with refused(
        DataError,
        "distillation.scores=.../text",
        "cannot be read (Parquet magic bytes not found in footer. Either the file is...",
    ):
        opened(tmp_path / "text", 0.5, manifest)
    turned = opened(write_scores(tmp_path / "turned", good, labels[::-1]), 0.5, manifest)
    with refused(
        DataError,
        "distillation.scores=.../turned",
        "has other labels than the rows from 0 on of the train split, because it was made...",
    ):
        turned.mixed(0, labels[:100])


def test_a_missing_file_and_a_wrong_share_are_reported_together(manifest: Manifest, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        train_here(
            tmp_path / "run",
            f"data.path={manifest.path}",
            f"distillation.scores={tmp_path}/none",
            "trainer.global_batch_size=7",
        )
    assert find_problem(
        caught.value, f"distillation.scores={tmp_path}/none", "cannot be read (...No such file...)"
    )
    assert len(caught.value.problems) == 2
    with refused(ConfigError, "distillation.share", "must be at least 0 and at most 1", value=1.5):
        compose_train("distillation.share=1.5")
