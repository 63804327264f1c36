"""Orders learnt where there is a click, beside the product over all rows: python benchmarks/given_labels.py [ROWS] [SEEDS]

An invented log with clicks, and orders that need a click. Of a share of the clicked rows of train it is not known
whether they led to an order; rows without a click hold a 0, as where conversions are still open. The test rows, as many
as those of train, are whole. Both losses have the same settings. Prints, as means over the seeds: the AUC of P(order)
over all test rows, that of P(order | click) over the clicked ones, and the mean P(order) over the mean true probability.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F

import dlrm_app as dlrm
from dlrm_app.model.labels import joint_logits
from dlrm_app.model.loss import ClickLoss

LOGS = {"click .3, order .27": (-1.1, -1.2), "click .05, order .05": (-3.6, -3.3)}
"""Name → the logits of P(click) and P(order | click) of an average row."""
LOST = (0.0, 0.1, 0.5, 0.9)
RECIPE = {"experiment": "null", "tables": "dataset", "tables.embedding_dim": 16, "report.enabled": False}
RECIPE |= {"trainer.global_batch_size": 256, "trainer.epochs": 2, "schedule": "cosine", "trainer.threads": 1}
RECIPE |= {
    "model": "concat",
    "model.bottom_mlp": [],
    "model.top_mlp": [32],
    "model.initial_bias": "base_rate",
}


def product_over_all_rows(loss: ClickLoss, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The losses [B] of the labels' own probabilities, over all rows that have them (ESMM)."""
    terms = joint_logits(logits, loss._given)
    known = ~labels.isnan()
    truth = torch.where(known, labels, 0.0).t()
    return (F.binary_cross_entropy_with_logits(terms, truth, reduction="none") * known.t()).sum(1)


LOSSES = {"likelihood": ClickLoss._sum_of_labels, "product over all rows": product_over_all_rows}


def draw(rows: int, bases: tuple[float, float], lost: float, seed: int) -> pd.DataFrame:
    random, effects = np.random.default_rng(seed), np.random.default_rng(99).normal(size=(4, 300))
    shop, user = random.integers(0, 50, rows), random.integers(0, 300, rows)
    click, order = (
        1 / (1 + np.exp(-(base + 0.8 * effects[at, shop] + 0.5 * effects[at + 2, user])))
        for at, base in enumerate(bases)
    )
    clicked = random.random(rows) < click
    ordered = clicked & (random.random(rows) < order)
    shown = np.where(clicked & (random.random(rows) < lost), np.nan, ordered)
    columns = {
        "click": clicked.astype(int),
        "order": shown,
        "shop": shop,
        "user": user,
        "truth": click * order,
    }
    return pd.DataFrame(columns)


def measure(
    folder: Path, bases: tuple[float, float], lost: float, rows: int, seed: int
) -> dict[str, list[float]]:
    train, test = draw(rows, bases, lost, seed), draw(rows, bases, 0.0, seed + 1000)
    for name, log in (("train", train), ("test", test)):
        log.drop(columns="truth").to_parquet(folder / f"{name}.parquet")
    labels = [{"name": name, "role": "label"} for name in ("click", "order")]
    ids = [{"name": name, "role": "sparse", "kind": "integer"} for name in ("shop", "user")]
    log = {"name": "log", "labels": ["click", {"order": {"given": "click"}}], "columns": labels + ids}
    given = {"input.train": folder / "train.parquet", "input.test": folder / "test.parquet"}
    encoding = {"encoding": "vocab", "encoding.crosses": None, "dense.target_columns": None}
    dlrm.preprocess({"dataset": log, **given, **encoding, "output": folder / "data"})
    found = {}
    for name, loss in LOSSES.items():
        ClickLoss._sum_of_labels = loss
        run, scores = folder / f"run{len(found)}", folder / f"scores{len(found)}.parquet"
        dlrm.train({"data.path": folder / "data", "output": run, "trainer.seed": seed, **RECIPE})
        dlrm.predict({"model": run, "data.path": folder / "data", "split": "test", "output": scores})
        table = pq.read_table(scores)
        click, order = (table[key].to_numpy().astype(float) for key in ("score", "score_order"))
        clicked = test["click"].to_numpy() == 1
        aucs = [roc_auc_score(test["order"], order)]
        aucs.append(roc_auc_score(test["order"][clicked], (order / click)[clicked]))
        found[name] = [*aucs, order.mean() / test["truth"].mean()]
    return found


def main(rows: int = 60_000, seeds: int = 3) -> None:
    print(f"{'log':22}{'lost':>5}  {'loss':22}{'AUC order':>10}{'AUC order|click':>17}{'mean/truth':>12}")
    for name, bases in LOGS.items():
        for lost in LOST:
            found = []
            for seed in range(seeds):
                with tempfile.TemporaryDirectory() as scratch:
                    found.append(measure(Path(scratch), bases, lost, rows, seed))
            for loss in LOSSES:
                auc, given, mean = np.mean([each[loss] for each in found], axis=0)
                print(f"{name:22}{lost:5.0%}  {loss:22}{auc:10.4f}{given:17.4f}{mean:12.3f}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
