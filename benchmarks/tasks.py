"""Experts before the top MLPs of two labels, beside a shared bottom: python benchmarks/tasks.py [ROWS] [SEEDS] [MODEL]

An invented log of ids with two labels, half of whose causes are common and half are their own, some of opposite sign.
Every form has top MLPs of [32]. The shared bottom is measured as it stands, and with one layer of 64 more in each
top MLP, which makes it as deep as the others. Prints each form's AUC on test less that of the shared bottom, and less that of the deeper one, with
95% intervals of the means over the seeds (Student's t).
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats
from sklearn.metrics import roc_auc_score

import dlrm_app as dlrm

FORMS = {
    "shared": {},
    "shared, deeper": {"model.top_mlp": [64, 32]},
    "mmoe": {"model.tasks": "mmoe", "model.experts.mlp": [64]},
    "ple": {"model.tasks": "ple", "model.experts.mlp": [64], "model.experts.shared": 2},
}
RECIPE = {"experiment": "null", "tables": "dataset", "tables.embedding_dim": 16, "report.enabled": False}
RECIPE |= {"trainer.global_batch_size": 256, "trainer.epochs": 3, "schedule": "cosine", "trainer.threads": 1}
RECIPE |= {"model.top_mlp": [32], "evaluation.test": True}
NAMES = ("liked", "bought")
COLUMNS = ("user", "item", "shop", "place")
SIZE = 100


def draw(rows: int, seed: int) -> pd.DataFrame:
    """Effects of pairs of ids, some common to both labels, some of one alone, and some with opposite signs."""
    random, effects = np.random.default_rng(seed), np.random.default_rng(7)
    ids = {name: random.integers(0, SIZE, rows) for name in COLUMNS}
    vectors = {name: effects.normal(size=(SIZE, 4)) for name in COLUMNS}

    def product(one: str, other: str) -> np.ndarray:
        return (vectors[one][ids[one]] * vectors[other][ids[other]]).sum(1) / 2

    common, opposite = product("user", "item"), product("user", "shop")
    logits = {
        "liked": common + opposite + product("item", "place") - 1,
        "bought": common - opposite + product("shop", "place") - 2,
    }
    labels = {
        name: (random.random(rows) < 1 / (1 + np.exp(-value))).astype(int) for name, value in logits.items()
    }
    return pd.DataFrame(labels | ids)


def measure(folder: Path, rows: int, seed: int) -> dict[str, list[float]]:
    """Form → the AUC of both labels on test."""
    for name, number in (("train", seed), ("test", seed + 1000)):
        draw(rows, number).to_parquet(folder / f"{name}.parquet")
    columns = [{"name": name, "role": "label"} for name in NAMES]
    columns += [{"name": name, "role": "sparse", "kind": "integer"} for name in COLUMNS]
    log = {"name": "log", "labels": [*NAMES], "columns": columns}
    given = {"input.train": folder / "train.parquet", "input.test": folder / "test.parquet"}
    encoding = {"encoding": "vocab", "encoding.crosses": None}
    dlrm.preprocess({"dataset": log, **given, **encoding, "output": folder / "data"})
    found, test = {}, pd.read_parquet(folder / "test.parquet")
    for number, (name, form) in enumerate(FORMS.items()):
        run = folder / f"run{number}"
        dlrm.train({"data.path": folder / "data", "output": run, "trainer.seed": seed, **RECIPE, **form})
        scores = dlrm.load(run).predict(test[[*COLUMNS]])
        found[name] = [roc_auc_score(test[label], scores[:, place]) for place, label in enumerate(NAMES)]
    return found


def main(rows: int = 60_000, seeds: int = 5, model: str = "concat") -> None:
    RECIPE.update({"model": model, "model.bottom_mlp": []})
    found = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as scratch:
            found.append(measure(Path(scratch), rows, seed))
    aucs = {form: np.array([each[form] for each in found]) for form in FORMS}  # [seeds, labels]
    print(f"{'form':16}{'label':>8}{'AUC':>8}{'less shared':>20}{'less the deeper one':>22}")
    for form, of_form in aucs.items():
        for place, label in enumerate(NAMES):
            differences = [interval((of_form - aucs[other])[:, place]) for other in (*FORMS,)[:2]]
            mean = of_form[:, place].mean()
            print(f"{form:16}{label:>8}{mean:8.4f}{differences[0]:>20}{differences[1]:>22}", flush=True)


def interval(differences: np.ndarray) -> str:
    if not differences.any():
        return ""
    half = stats.sem(differences) * stats.t.ppf(0.975, len(differences) - 1)
    return f"{differences.mean():+.4f} ± {half:.4f}"


if __name__ == "__main__":
    numbers = [int(each) for each in sys.argv[1:3]]
    main(*numbers, *sys.argv[3:])
