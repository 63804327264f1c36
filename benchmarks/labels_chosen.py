"""Several labels with nothing chosen, beside logistic regressions: python benchmarks/labels_chosen.py [ROWS] [SEEDS]

Invented logs of two ids a row. ``order``: an order needs a click, and is learnt given it. ``rare``: a like stands alone, and
nine tenths of the rows do not say whether there was one. dlrm-preprocess and dlrm-train choose everything themselves;
the regressions read the same ids one-hot, those of orders from the clicked rows, and their probabilities are multiplied.
Prints the AUC of both labels on as many new rows, as means over the seeds, and the best reachable ones.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import OneHotEncoder

import dlrm_app as dlrm

SIZES = {"user": 500, "shop": 200}
SECOND = {"order": {"order": {"given": "click"}}, "rare": "order"}
"""Log → the entry of its second label."""


def draw(log: str, rows: int, seed: int) -> tuple[pd.DataFrame, list[np.ndarray]]:
    """(the rows, the true probabilities of both labels)."""
    random, effects = np.random.default_rng(seed), np.random.default_rng(5)
    ids = {name: random.integers(0, size, rows) for name, size in SIZES.items()}
    logits = [
        base
        + sum(
            scale * effects.normal(size=SIZES[name])[ids[name]]
            for name, scale in (("user", 1.0), ("shop", 0.8))
        )
        for base in (-1.1, -1.0)
    ]
    click, second = (1 / (1 + np.exp(-each)) for each in logits)
    second = second * click if log == "order" else second
    clicked = random.random(rows) < click
    follows = random.random(rows) < (second / click if log == "order" else second)
    values = (clicked & follows if log == "order" else follows).astype(float)
    if log == "rare":
        values[random.random(rows) < 0.9] = np.nan
    return pd.DataFrame({"click": clicked.astype(int), "order": values, **ids}), [click, second]


def regressions(log: str, train: pd.DataFrame, test: pd.DataFrame) -> list[np.ndarray]:
    encoder = OneHotEncoder(handle_unknown="ignore").fit(train[[*SIZES]])
    of_train, of_test = (encoder.transform(rows[[*SIZES]]) for rows in (train, test))
    taught = train["order"].notna() & ((train["click"] == 1) | (log == "rare"))
    click = LogisticRegression(max_iter=1000).fit(of_train, train["click"]).predict_proba(of_test)[:, 1]
    known = LogisticRegression(max_iter=1000).fit(of_train[taught.to_numpy()], train["order"][taught])
    second = known.predict_proba(of_test)[:, 1]
    return [click, second * click if log == "order" else second]


def chosen(log: str, train: pd.DataFrame, test: pd.DataFrame, seed: int, folder: Path) -> list[np.ndarray]:
    train.to_parquet(folder / "train.parquet")
    columns = [{"name": name, "role": "label"} for name in ("click", "order")]
    columns += [{"name": name, "role": "sparse", "kind": "integer"} for name in SIZES]
    described = {"name": "log", "labels": ["click", SECOND[log]], "columns": columns}
    given = {"input.train": folder / "train.parquet", "split.val": 0.1, "output": folder / "data"}
    dlrm.preprocess({"dataset": described, **given})
    run = folder / "run"
    dlrm.train({"data.path": folder / "data", "tables": "dataset", "trainer.seed": seed, "output": run})
    return [*dlrm.load(run).predict(test[[*SIZES]]).T]


def measure(log: str, rows: int, seed: int) -> list[list[float]]:
    """[ways, labels]: AUCs of the truth, of the regressions and of what is chosen."""
    (train, _), (test, truth) = draw(log, rows, seed), draw(log, rows, seed + 1000)
    with tempfile.TemporaryDirectory() as folder:
        ways = [truth, regressions(log, train, test), chosen(log, train, test, seed, Path(folder))]
    known = test["order"].notna()
    return [
        [roc_auc_score(test["click"], way[0]), roc_auc_score(test["order"][known], way[1][known])]
        for way in ways
    ]


def main(rows: int = 30_000, seeds: int = 3) -> None:
    print(f"{'log':8}{'':22}{'click':>8}{'second':>8}")
    for log in SECOND:
        means = np.mean([measure(log, rows, seed) for seed in range(seeds)], axis=0)
        for way, aucs in zip(("best reachable", "two regressions", "nothing chosen"), means, strict=True):
            print(f"{log:8}{way:22}{aucs[0]:8.4f}{aucs[1]:8.4f}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
