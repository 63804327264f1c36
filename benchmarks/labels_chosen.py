"""Several labels with nothing chosen, beside logistic regressions: python benchmarks/labels_chosen.py [ROWS] [SEEDS]

Invented logs of two ids a row. ``order``: an order needs a click, and is learnt given it. ``rare``: a like stands
alone, and nine tenths of the rows do not say whether there was one. dlrm-preprocess and dlrm-train choose everything
themselves; the regressions read the same ids one-hot, those of orders from the clicked rows, and their probabilities
are multiplied. Both learn from all rows, and from those that are left where a tenth is val (``split.val=0.1``).
Prints the AUC of both labels on as many new rows, as means over the seeds, and the best reachable ones; "expected"
counts each new row by its true probabilities, in place of the labels that were drawn.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from logs import scores
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import OneHotEncoder

import dlrm_app as dlrm

SIZES = {"user": 500, "shop": 200}
SECOND = {"order": {"order": {"given": "click"}}, "rare": "order"}
"""Log → the entry of its second label."""
WAYS = (
    "best reachable",
    "regressions, all rows",
    "nothing chosen, all rows",
    "regressions, rows of train",
    "nothing chosen, val kept",
)


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


def chosen(
    log: str, train: pd.DataFrame, test: pd.DataFrame, seed: int, folder: Path, val: float | None
) -> list[np.ndarray]:
    """The probabilities of the labels; ``val``: the share of rows that do not teach. ``folder`` is new."""
    folder.mkdir()
    train.to_parquet(folder / "train.parquet")
    columns = [{"name": name, "role": "label"} for name in ("click", "order")]
    columns += [{"name": name, "role": "sparse", "kind": "integer"} for name in SIZES]
    described = {"name": "log", "labels": ["click", SECOND[log]], "columns": columns}
    given = {
        "input.train": folder / "train.parquet",
        "split.val": val,
        "threads": 1,
        "output": folder / "data",
    }
    dlrm.preprocess({"dataset": described, **given})
    run = folder / "run"
    taught = {"data.path": folder / "data", "tables": "dataset", "trainer.seed": seed, "trainer.threads": 1}
    dlrm.train({**taught, "output": run})
    return [*dlrm.load(run).predict(test[[*SIZES]]).T]


def measure(log: str, rows: int, seed: int) -> list[list[float]]:
    """[ways, 4]: AUCs of both labels as drawn, and as expected, of the truth and of each way."""
    (train, _), (test, truth) = draw(log, rows, seed), draw(log, rows, seed + 1000)
    with tempfile.TemporaryDirectory() as folder:
        alone, kept = (chosen(log, train, test, seed, Path(folder, str(val)), val=val) for val in (None, 0.1))
    of_train = regressions(log, train[: rows - rows // 10], test)
    ways = [truth, regressions(log, train, test), alone, of_train, kept]
    known = test["order"].notna()
    return [
        [
            roc_auc_score(test["click"], way[0]),
            roc_auc_score(test["order"][known], way[1][known]),
            *(scores(*label)["auc"] for label in zip(way, truth, strict=True)),
        ]
        for way in ways
    ]


def main(rows: int = 30_000, seeds: int = 3) -> None:
    print(f"{'log':8}{'':28}" + "".join(f"{each:>10}" for each in ("click", "second", "expected", "second")))
    for log in SECOND:
        means = np.mean([measure(log, rows, seed) for seed in range(seeds)], axis=0)
        for way, aucs in zip(WAYS, means, strict=True):
            print(f"{log:8}{way:28}" + "".join(f"{auc:10.4f}" for auc in aucs), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
