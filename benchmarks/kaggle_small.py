"""``experiment=kaggle_small`` against LightGBM, hashed logistic regression and the default DLRM on a small sample.

    pip install lightgbm scikit-learn
    python benchmarks/kaggle_small.py sample.tsv --seeds 5

``sample.tsv``: 50,000 to 200,000 lines of Criteo's train.txt. Every method learns on the same lines and is measured
on the same: the last 15%, and the 15% before them, after learning on what precedes. Nothing is
chosen by looking at them: no early stop, no best epoch. ``--click-rate 0.03`` makes clicks rare. Prints AUC, log loss and
calibration, mean ± deviation over the seeds, and how far each method's AUC is ahead of LightGBM's on the same rows (DeLong's
95% interval, mean over the seeds).

    python benchmarks/kaggle_small.py sample.tsv --seeds 1 --click-rate 0.03 --draw 1 --splits "fold 0" … "fold 4"

measures on five random fifths in turn. Their calibration together has little noise, for what a fold has too few of, the
others have too many of. ``--draw``: the seed by which positives are left out.

    python benchmarks/kaggle_small.py sample.tsv --seeds 3 --methods kaggle_small --splits "rolling 40" "rolling 55" rolling \
        --set model.ensemble_size=4

"rolling 40" learns on the first 40% and is
measured on the 15% behind them.
"""

import argparse
import contextlib
import io
import logging
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from dlrm_app.config.compose import compose_config
from dlrm_app.config.datasets import PreprocessConfig
from dlrm_app.config.scoring import PredictConfig
from dlrm_app.config.train import TrainConfig
from dlrm_app.evaluation.intervals import compare_aucs
from dlrm_app.inference.predict.predict import predict
from dlrm_app.preprocess.preprocess import preprocess
from dlrm_app.table import text_table
from dlrm_app.training.train import train

SHARE = 0.15
NUM_DENSE = 13
HASH_SIZE = 1 << 20
SMOOTHING = 20.0  # a value's click rate counts as much as so many rows of the mean rate

Probabilities = NDArray[np.float64]  # of the rows to be measured on, in their order
RIVAL = "LightGBM, target encoding"
FOLDS = 5


@dataclass(frozen=True)
class Split:
    """The lines to learn from and those to be measured on, in the order of the file."""

    name: str
    train: NDArray[np.int64]
    test: NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """labels [R], integers [R, 13] with NaN for missing, values [R, 26] numbered from 0 in each column."""

    labels: NDArray[np.int64]
    integers: NDArray[np.float64]
    values: NDArray[np.int64]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sample", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--click-rate", type=float, help="leave out positives, by chance, down to this share")
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--splits", nargs="+", default=["last", "rolling"])
    parser.add_argument(
        "--methods", nargs="+", default=[""], help="parts of the names of the methods to compare"
    )
    parser.add_argument("--set", nargs="*", default=[], help="further settings of dlrm-train for the recipe")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    lines = options.sample.read_text().splitlines()
    if options.click_rate is not None:
        lines = thinned(lines, options.click_rate, options.draw)
    rows = read_rows(lines)
    splits = [split for split in make_splits(len(lines), options.draw) if split.name in options.splits]
    table = []
    found: dict[str, list[Probabilities]] = {}  # by method, of every split
    for split in splits:
        with tempfile.TemporaryDirectory() as folder:
            for name, method in methods(rows, lines, split, Path(folder), options.set):
                if any(part in name for part in options.methods):
                    found.setdefault(name, []).append(np.array([method(n) for n in range(options.seeds)]))
        labels = rows.labels[split.test]
        table += [
            [split.name, name, *cells(each[-1], found.get(RIVAL, [None])[-1], labels)]
            for name, each in found.items()
        ]
        for line in table[-len(found) :]:
            print(*line, sep="  ", flush=True)
    clicks = sum(rows.labels[split.test].sum() for split in splits)
    for name, each in found.items():
        together = sum(part.mean(0).sum() for part in each) / clicks
        table.append(["all of them", name, "", "", f"{together:.4f}", ""])
    columns = ["measured on", "method", "AUC", "log loss", "calibration", "AUC ahead of LightGBM"]
    print(f"\n{text_table(columns, table)}")


def cells(found: Probabilities, rival: Probabilities | None, labels: NDArray[np.int64]) -> list[str]:
    """A line's figures; ``found`` and ``rival`` [seeds, rows]."""
    scores = np.array([score(each, labels) for each in found])
    texts = [f"{m:.4f} ± {d:.4f}" for m, d in zip(scores.mean(0), scores.std(0), strict=True)]
    if rival is None or rival is found:
        return [*texts, ""]
    truth = torch.from_numpy(labels == 1)
    differences = [
        compare_aucs(logit(ours), logit(theirs), truth).difference
        for ours, theirs in zip(found, rival, strict=True)
    ]
    low, ahead, high = np.mean([(each.low, each.value, each.high) for each in differences], axis=0)
    return [*texts, f"{ahead:+.4f} [{low:+.4f}, {high:+.4f}]"]


def thinned(lines: list[str], click_rate: float, seed: int) -> list[str]:
    """All negatives, and as many positives, drawn from ``seed``, as make ``click_rate`` of the whole."""
    is_positive = np.array([line.startswith("1\t") for line in lines])
    positives = np.flatnonzero(is_positive)
    size = round(click_rate / (1 - click_rate) * (len(lines) - len(positives)))
    chosen = np.random.default_rng(seed).choice(positives, size, replace=False)
    is_left = ~is_positive
    is_left[chosen] = True
    return [line for line, left in zip(lines, is_left, strict=True) if left]


def methods(
    rows: Rows, lines: list[str], split: Split, folder: Path, overrides: list[str]
) -> Iterator[tuple[str, Callable[[int], Probabilities]]]:
    """(name, function of a seed) of everything that is compared."""
    yield (
        "experiment=kaggle_small",
        dlrm(lines, split, folder / "small", ["experiment=kaggle_small"], overrides),
    )
    yield "dlrm-train's plain defaults", dlrm(lines, split, folder / "default", [], [])
    yield RIVAL, lambda seed: lightgbm(rows, split, seed)
    yield "hashed logistic regression", lambda _: logistic_regression(rows, split)


def make_splits(num_rows: int, draw: int) -> list[Split]:
    order = np.arange(num_rows)
    size = int(num_rows * SHARE)
    last, rolling = num_rows - size, num_rows - 2 * size
    splits = [
        Split("last", order[:last], order[last:]),
        Split("rolling", order[:rolling], order[rolling:last]),
    ]
    for percent in (40, 55):
        start = num_rows * percent // 100
        splits.append(Split(f"rolling {percent}", order[:start], order[start : start + size]))
    folds = np.array_split(np.random.default_rng(draw).permutation(num_rows), FOLDS)
    for number, fold in enumerate(folds):
        others = np.concatenate([each for each in folds if each is not fold])
        splits.append(Split(f"fold {number}", np.sort(others), np.sort(fold)))
    return splits


def dlrm(
    lines: list[str], split: Split, folder: Path, recipe: list[str], overrides: list[str]
) -> Callable[[int], Probabilities]:
    """Trains with dlrm-train's job and settings, in this process."""
    folder.mkdir()
    for name, numbers in (("train", split.train), ("test", split.test)):
        (folder / f"{name}.tsv").write_text("".join(f"{lines[number]}\n" for number in numbers))
    inputs = [f"input.train={folder}/train.tsv", f"input.test={folder}/test.tsv", f"output={folder}/data"]
    inputs.append("split.val=0")
    quietly(
        lambda: preprocess(compose_config("preprocess", PreprocessConfig, [*recipe, *inputs, "threads=1"]))
    )

    def run(seed: int) -> Probabilities:
        settings = [
            *recipe,
            f"data.path={folder}/data",
            f"trainer.seed={seed}",
            "trainer.threads=1",
            "checkpoint.every_epoch=false",
            "evaluation.test=false",
            "evaluation.table_health=false",
            "report.enabled=false",
            f"output={folder}/run-{seed}",
            *overrides,
        ]
        quietly(lambda: train(compose_config("train", TrainConfig, settings)))
        scores = folder / f"scores-{seed}.parquet"
        words = [f"model={folder}/run-{seed}", f"data.path={folder}/data", f"output={scores}", "threads=1"]
        quietly(lambda: predict(compose_config("predict", PredictConfig, words)))
        return pq.read_table(scores)["score"].to_numpy().astype(np.float64)

    return run


def quietly(job: Callable[[], object]) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        job()


def lightgbm(rows: Rows, split: Split, seed: int) -> Probabilities:
    """LightGBM on the integers and the smoothed click rate and count of every value, out of fold in training."""
    from lightgbm import LGBMClassifier

    encoded = target_encoded(rows, split, seed)
    features = np.hstack([rows.integers, encoded])
    model = LGBMClassifier(
        n_estimators=300, learning_rate=0.03, num_leaves=31, min_child_samples=50, subsample=0.8,
        subsample_freq=1, colsample_bytree=0.5, n_jobs=1, verbose=-1, random_state=seed,
    )  # fmt: skip
    model.fit(features[split.train], rows.labels[split.train])
    return np.asarray(model.predict_proba(features[split.test])[:, 1])


def target_encoded(rows: Rows, split: Split, seed: int, num_folds: int = 5) -> NDArray[np.float64]:
    """[R, 52]: click rates and counts; a training row's come from the folds that it is not in."""
    folds = np.random.default_rng(seed).integers(0, num_folds, len(split.train))
    out = np.zeros((len(rows.labels), 2 * rows.values.shape[1]))
    for fold in range(num_folds):
        out[split.train[folds == fold]] = click_rates(
            rows, split.train[folds != fold], split.train[folds == fold]
        )
    out[split.test] = click_rates(rows, split.train, split.test)
    return out


def click_rates(rows: Rows, known: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.float64]:
    prior = rows.labels[known].mean()
    rates, counts = [], []
    for values in rows.values.T:
        size = values.max() + 1
        clicks = np.bincount(values[known], rows.labels[known], size)
        seen = np.bincount(values[known], minlength=size)
        rates.append(((clicks + SMOOTHING * prior) / (seen + SMOOTHING))[values[wanted]])
        counts.append(seen[values[wanted]])
    return np.stack([*rates, *counts], 1)


def logistic_regression(rows: Rows, split: Split) -> Probabilities:
    """L2 logistic regression on hashed one-hot columns; integers above 2 as floor(log(x)²), the usual buckets.

    Nothing in it is random: its deviation over seeds is 0.
    """
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression

    logs = np.floor(np.log(np.maximum(rows.integers, 1)) ** 2)
    buckets = np.where(rows.integers > 2, logs + 3, rows.integers)
    ids = np.hstack([np.nan_to_num(buckets, nan=-9) + 10, rows.values]).astype(np.uint64)
    columns = np.arange(ids.shape[1], dtype=np.uint64)
    salt = columns * np.uint64(0xC2B2AE3D27D4EB4F)
    slots = (ids * np.uint64(0x9E3779B97F4A7C15) + salt >> np.uint64(20)) % np.uint64(HASH_SIZE)
    starts = np.arange(0, slots.size + 1, slots.shape[1])
    ones = csr_matrix((np.ones(slots.size), slots.ravel(), starts), (len(ids), HASH_SIZE))
    model = LogisticRegression(C=0.05, solver="liblinear").fit(ones[split.train], rows.labels[split.train])
    return np.asarray(model.predict_proba(ones[split.test])[:, 1])


def score(probabilities: Probabilities, labels: NDArray[np.int64]) -> tuple[float, float, float]:
    """AUC, log loss and calibration: mean prediction over share of positives."""
    from sklearn.metrics import log_loss, roc_auc_score

    calibration = float(probabilities.mean() / labels.mean())
    return float(roc_auc_score(labels, probabilities)), float(log_loss(labels, probabilities)), calibration


def logit(probabilities: Probabilities) -> torch.Tensor:
    return torch.from_numpy(np.log(probabilities / (1 - probabilities)).astype(np.float32))


def read_rows(lines: list[str]) -> Rows:
    cells = np.array([line.split("\t") for line in lines])
    integers = cells[:, 1 : 1 + NUM_DENSE]
    values = [np.unique(column, return_inverse=True)[1] for column in cells[:, 1 + NUM_DENSE :].T]
    return Rows(
        cells[:, 0].astype(np.int64),
        np.where(integers == "", "nan", integers).astype(np.float64),
        np.stack(values, 1).astype(np.int64),
    )


if __name__ == "__main__":
    main()
