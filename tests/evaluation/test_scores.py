"""Anybody's scores by dlrm-evaluate: alone, beside a checkpoint and blended, against scikit-learn and dlrm-predict."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from dlrm_app.config.compose import compose_config
from dlrm_app.config.scoring import EvaluateConfig
from dlrm_app.errors import DataError, refuse_if
from dlrm_app.evaluation.evaluate_checkpoints import evaluate_checkpoints
from dlrm_app.evaluation.intervals import holm
from tests.inference.conftest import predicted
from tests.loader.dataset_fixture import write_dataset
from tests.ranks import start_ranks
from tests.small_run import train_here


def evaluated(*overrides: str) -> dict[str, Any]:
    config = compose_config("evaluate", EvaluateConfig, ["threads=1", *overrides])
    refuse_if(config.problems())
    return asdict(evaluate_checkpoints(config))


def write(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with a run, the run's scores of its test split, and another model's in ``noise.parquet``."""
    folder = tmp_path_factory.mktemp("scores")
    write_dataset(folder / "data", rows={"train": 1000, "test": 503})
    train_here(folder / "run", f"data.path={folder}/data")
    predicted(folder / "run.parquet", f"model={folder}/run", f"data.path={folder}/data")
    write(folder / "noise.parquet", score=np.random.default_rng(0).random(503))
    return folder


def test_scores_of_a_checkpoint_have_its_metrics(folder: Path) -> None:
    """By dlrm-predict's file, to the rounding of a float32 probability; the rows in any order."""
    expected = evaluated(f"checkpoint={folder}/run", "group_by=c0")["models"][0]
    table = pq.read_table(folder / "run.parquet")
    shuffled = table.take(pa.array(np.random.default_rng(1).permutation(len(table))))
    pq.write_table(shuffled, folder / "shuffled.parquet")
    for name in ("run", "shuffled"):
        (found,) = evaluated(f"scores=[{folder}/{name}.parquet]", f"data.path={folder}/data", "group_by=c0")[
            "models"
        ]
        for key, value in found["metrics"].items():
            assert value == pytest.approx(expected["metrics"][key], abs=1e-4)  # near ties change places
        assert found["auc_interval"] == pytest.approx(expected["auc_interval"], abs=1e-6)
        assert (found["checkpoint"], found["step"]) == (f"{folder}/{name}.parquet", None)


def test_without_a_dataset_the_files_own_labels_count(tmp_path: Path) -> None:
    """Metrics by scikit-learn; one file with labels is enough, and a score of 0 or 1 has a log loss."""
    rng = np.random.default_rng(2)
    labels, one, two = rng.integers(0, 2, 200), rng.random(200), rng.random(200)
    two[:3] = labels[:3]
    write(tmp_path / "one.parquet", score=one)
    write(tmp_path / "two.parquet", score=two, label=labels)
    found = evaluated(f"scores=[{tmp_path}/one.parquet,{tmp_path}/two.parquet]", "blend=[3,1]")
    logits = [np.log(p / (1 - p)) for p in (np.clip(each, 1e-12, 1 - 1e-12) for each in (one, two))]
    blended = 1 / (1 + np.exp(-(3 * logits[0] + logits[1]) / 4))
    assert [model["checkpoint"] for model in found["models"]][2] == "blend 3 + 1"
    for model, scores in zip(found["models"], (one, two, blended), strict=True):
        assert model["metrics"]["auc"] == pytest.approx(roc_auc_score(labels, scores), abs=1e-9)
        assert model["metrics"]["logloss"] == pytest.approx(log_loss(labels, scores), rel=1e-5)
    p_values = [test["comparison"]["p_value"] for test in found["tests"]]
    assert [test["adjusted_p"] for test in found["tests"]] == holm(p_values)
    assert (
        found["comparison"]["difference"]["value"] == -found["tests"][0]["comparison"]["difference"]["value"]
    )


def test_a_checkpoint_is_compared_with_scores_and_blended(folder: Path) -> None:
    """Half of a model's logits and half of its own scores' are its logits; the others differ from it by their AUCs."""
    files = f"scores=[{folder}/run.parquet,{folder}/noise.parquet]"
    found = evaluated(f"checkpoint={folder}/run", files, "blend=[1,1,0]")
    aucs = [model["metrics"]["auc"] for model in found["models"]]
    assert len(aucs) == 4
    assert aucs[0] == pytest.approx(aucs[1], abs=1e-5) == pytest.approx(aucs[3], abs=1e-5)
    for auc, test in zip(aucs[1:], found["tests"], strict=True):
        assert test["comparison"]["difference"]["value"] == pytest.approx(auc - aucs[0], abs=1e-12)


def test_two_ranks_find_the_same(folder: Path) -> None:
    words = [
        f"scores=[{folder}/noise.parquet,{folder}/run.parquet]",
        f"data.path={folder}/data",
        "blend=[1,2]",
    ]
    (two, _), one = start_ranks(partial(evaluated, *words), 2, 2), evaluated(*words)
    for found, expected in zip(two["models"], one["models"], strict=True):
        assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-9)
        assert found["auc_interval"] == pytest.approx(expected["auc_interval"], rel=1e-9)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"probability": [0.5] * 503}, "column score of numbers"),
        ({"score": ["0.5"] * 503}, "score is string, not numbers"),
        ({"score": [True] * 503}, "score is bool, not numbers"),
        ({"score": [0.5] * 502}, "has 502 rows, the others 503"),
        ({"score": [0.5] * 502 + [None]}, "1 values are missing"),
        ({"score": [0.5] * 502 + [1.5]}, "must hold probabilities, from 0 to 1"),
        ({"score": [0.5] * 502 + [float("nan")]}, "must hold probabilities, from 0 to 1"),
        ({"score": [0.5] * 503, "label": [0] * 503}, "has other labels than the rows"),
        ({"score": [0.5] * 503, "label": ["no"] * 503}, "cannot be used .*label"),
    ],
)
def test_other_files_are_refused_by_name(folder: Path, tmp_path: Path, columns: Any, said: str) -> None:
    path = write(tmp_path / "wrong.parquet", **columns)
    with pytest.raises(DataError, match=said):
        evaluated(f"scores=[{path}]", f"data.path={folder}/data")
