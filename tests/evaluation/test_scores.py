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

from dlrm_app.config.evaluate import EvaluateConfig
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.errors import DataError, refuse_if
from dlrm_app.evaluation.evaluate_checkpoints import evaluate_checkpoints
from dlrm_app.evaluation.intervals import holm
from dlrm_app.evaluation.result import EvaluationResult
from dlrm_app.records import from_json
from tests.composed import compose_config
from tests.inference.conftest import predicted
from tests.loader.dataset_fixture import write_dataset
from tests.make_log import describe
from tests.preprocessing.running import run as preprocess
from tests.ranks import start_ranks
from tests.refusals import refused
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
        ({"probability": [0.5] * 503}, "cannot be used ('Field \"score\" does not exist in schema')"),
        ({"score": ["0.5"] * 503}, "...score is string, not numbers..."),
        ({"score": [True] * 503}, "...score is bool, not numbers..."),
        ({"score": [0.5] * 502}, "has 502 rows, the others 503"),
        ({"score": [0.5] * 502 + [None]}, "...1 values are missing..."),
        ({"score": [0.5] * 502 + [1.5]}, "must hold probabilities, from 0 to 1..."),
        ({"score": [0.5] * 502 + [float("nan")]}, "must hold probabilities, from 0 to 1..."),
        ({"score": [0.5] * 503, "label": [0] * 503}, "has other labels than the rows..."),
        ({"score": [0.5] * 503, "label": ["no"] * 503}, "cannot be used ..."),
        ({"score": [0.5] * 503, "label": [2] * 503}, "...label has 2, not 0 or 1..."),
        ({"score": [0.5] * 503, "label": [0.7] * 503}, "...label has 0.7, not 0 or 1..."),
        ({"score": [0.5] * 503, "row": list(range(503))[::-1]}, "...has row without shard..."),
        ({"score": [0.5] * 503, "file": ["a"] * 503}, "...has file without line..."),
        (
            {"score": [0.5] * 503, "shard": ["test/part-00000.parquet"] * 503, "row": np.arange(503) + 0.5},
            "...0.500000 was truncated...",
        ),
    ],
)
def test_other_files_are_refused_by_name(folder: Path, tmp_path: Path, columns: Any, said: str) -> None:
    path = write(tmp_path / "wrong.parquet", **columns)
    with refused(DataError, f"scores={path}", said):
        evaluated(f"scores=[{path}]", f"data.path={folder}/data")


def test_scores_of_noise_are_judged(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    labels = rng.random(5000) < 0.3
    write(tmp_path / "noise.parquet", score=rng.random(5000), label=labels.astype(int))
    write(
        tmp_path / "good.parquet",
        score=np.where(rng.random(5000) < 0.8, labels, ~labels) * 0.5 + 0.2,
        label=labels.astype(int),
    )
    found = evaluated(f"scores=[{tmp_path}/noise.parquet,{tmp_path}/good.parquet]")
    assert [model["judgement"]["verdict"] for model in found["models"]] == [
        "no better than a constant",
        "learnt",
    ]
    said = str(from_json(EvaluationResult, found))
    assert f"warning: {tmp_path}/noise.parquet: no better than a constant: NE" in said
    assert "good.parquet: " not in said


def without_label(path: Path, table: pa.Table) -> Path:
    pq.write_table(table.drop_columns(["label"]) if "label" in table.column_names else table, path)
    return path


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (
            "another split",
            "has scores of train/part-00000.parquet..., which the test split of ... was not made of",
        ),
        ("a row twice", "has row 7 of test/part-00000.parquet more than once (1 rows too many)"),
        ("a row too many", "has rows that test does not have, such as row 503 of test/part-00000.parquet"),
        ("a row missing", "lacks rows of the test split, such as row 7 of test/part-00000.parquet"),
    ],
)
def test_unlabelled_scores_of_other_rows_are_refused(
    folder: Path, tmp_path: Path, what: str, said: str
) -> None:
    table = pq.read_table(folder / "run.parquet")
    if what == "another split":
        table = predicted(
            tmp_path / "t.parquet", f"model={folder}/run", f"data.path={folder}/data", "split=train"
        ).slice(0, 503)
    elif what == "a row twice":
        table = pa.concat_tables([table.slice(0, 8), table.slice(7, 1), table.slice(9)])
    elif what == "a row too many":
        row = table.slice(502).set_column(table.column_names.index("row"), "row", pa.array([503]))
        table = pa.concat_tables([table, row])
    else:
        table = pa.concat_tables([table.slice(0, 7), table.slice(8)])
    path = without_label(tmp_path / "wrong.parquet", table)
    with refused(DataError, f"scores={path}", said):
        evaluated(f"scores=[{path}]", f"data.path={folder}/data")


COLUMNS = [
    "{name: clicked, role: label}",
    "{name: price, role: dense, kind: float}",
    "{name: shop, role: sparse, kind: integer}",
]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files with rejected lines; ``cut``: their last 40% are val; ``mixed``: also shuffled; a run on ``cut``."""
    folder, rng = tmp_path_factory.mktemp("lines"), np.random.default_rng(0)
    describe(folder, COLUMNS)
    for name in ("a", "b"):
        rows = [f"{rng.integers(2)},{rng.normal():.4f},{rng.integers(9)}" for _ in range(1000)]
        rows[10], rows[990] = "no", "1,no,3"
        (folder / f"{name}.csv").write_text("\n".join(["clicked,price,shop", *rows]) + "\n")
    words = [f"dataset={folder}/log.yaml", f"input.train={folder}/*.csv", "split.val=0.4", "threads=1"]
    words += ["rejects.max_fraction=0.01", "encoding.num_embeddings=50"]
    preprocess(folder / "cut", *words)
    preprocess(folder / "mixed", *words, "shuffle=full")
    train_here(folder / "run", f"data.path={folder}/cut")
    every = predicted(
        folder / "all.parquet", f"model={folder}/run", f"input={folder}/*.csv", "rejects.max_fraction=0.01"
    )
    is_of_val = [
        Path(name).name == "b.csv" and line >= 202
        for name, line in zip(every["file"].to_pylist(), every["line"].to_pylist(), strict=True)
    ]
    pq.write_table(every.filter(pa.array(is_of_val)).drop_columns(["label"]), folder / "val.parquet")
    return folder


def test_raw_scores_of_the_splits_lines_are_taken(lines: Path) -> None:
    """They are the dataset's own scores, whose rows have shard and row."""
    words = [f"data.path={lines}/cut", "split=val"]
    own = evaluated(f"checkpoint={lines}/run", "split=val")["models"][0]["metrics"]
    (found,) = evaluated(f"scores=[{lines}/val.parquet]", *words)["models"]
    assert found["metrics"] == pytest.approx({key: own[key] for key in found["metrics"]}, abs=1e-5)


def test_lines_of_another_part_are_refused(lines: Path, tmp_path: Path) -> None:
    every = pq.read_table(lines / "all.parquet").drop_columns(["label"])
    rows = pq.read_metadata(lines / "val.parquet").num_rows
    first = without_label(tmp_path / "first.parquet", every.slice(0, rows))
    shifted = without_label(tmp_path / "shifted.parquet", every.slice(len(every) - rows - 1, rows))
    for path, said in (
        (first, "...a.csv, which the val split..."),
        (shifted, "lacks rows of the val split, such as line 1,001..."),
    ):
        with refused(DataError, f"scores={path}", said):
            evaluated(f"scores=[{path}]", f"data.path={lines}/cut", "split=val")


def test_lines_do_not_find_rows_of_a_shuffled_split(lines: Path, tmp_path: Path) -> None:
    every = pq.read_table(lines / "all.parquet")
    path = without_label(
        tmp_path / "train.parquet",
        every.slice(0, len(every) - pq.read_metadata(lines / "val.parquet").num_rows),
    )
    assert evaluated(f"scores=[{path}]", f"data.path={lines}/cut", "split=train")
    with refused(
        DataError,
        "scores=.../train.parquet",
        "has file and line, by which the rows of train in .../mixed cannot be found",
    ):
        evaluated(f"scores=[{path}]", f"data.path={lines}/mixed", "split=train")


@pytest.mark.parametrize("split", ["train", "val"])
def test_lines_do_not_find_rows_dealt_by_their_contents(lines: Path, tmp_path: Path, split: str) -> None:
    rows = [row for row in (lines / "a.csv").read_text().splitlines() if row != "no" and ",no," not in row]
    (tmp_path / "a.csv").write_text("\n".join(rows) + "\n")
    words = [f"dataset={lines}/log.yaml", f"input.train={tmp_path}/a.csv", "encoding.num_embeddings=50"]
    preprocess(tmp_path / "dealt", *words, "split.val=0.4", "split.by=content", "threads=1")
    every = predicted(tmp_path / "all.parquet", f"model={lines}/run", f"input={tmp_path}/a.csv")
    num_train = read_manifest(tmp_path / "dealt").splits["train"].rows
    some = every.slice(0, num_train) if split == "train" else every.slice(num_train)
    path = without_label(tmp_path / "some.parquet", some)
    with refused(
        DataError, f"scores={path}", f"has file and line, by which the rows of {split} in ... cannot be found"
    ):
        evaluated(f"scores=[{path}]", f"data.path={tmp_path}/dealt", f"split={split}")


def test_files_without_a_dataset_are_of_the_same_rows(folder: Path, tmp_path: Path) -> None:
    one = pq.read_table(folder / "run.parquet")
    two = one.set_column(one.column_names.index("row"), "row", pa.array(np.arange(503) + 1))
    pq.write_table(two, tmp_path / "two.parquet")
    with refused(DataError, "scores=.../two.parquet", "has scores of other rows than .../run.parquet"):
        evaluated(f"scores=[{folder}/run.parquet,{tmp_path}/two.parquet]")
    lines = one.rename_columns({"shard": "file", "row": "line"})
    other = without_label(tmp_path / "lines.parquet", lines)
    with refused(
        DataError,
        "scores=.../lines.parquet",
        "has file and line, .../run.parquet shard and row, which only a dataset can compare",
    ):
        evaluated(f"scores=[{folder}/run.parquet,{other}]")
    pq.write_table(pa.concat_tables([one.slice(0, 1), one.slice(0, 502)]), tmp_path / "twice.parquet")
    with refused(
        DataError,
        "scores=.../twice.parquet",
        "has row 0 of test/part-00000.parquet more than once (1 rows too many)",
    ):
        evaluated(f"scores=[{tmp_path}/twice.parquet]")
