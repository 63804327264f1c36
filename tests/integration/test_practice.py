"""Generated logs with all that logs have in practice: the tutorial, and what attention learns from their histories."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from tests.commands import command, succeed
from tests.pages import blocks_of
from tests.test_docs import link_clone

pytestmark = pytest.mark.long
TABLES = """
embedding_dim: 16
specs:
  - {{name: t_item, rows: 310, features: [item, last_items], pooling: {pooling}}}
  - {{name: t_bought, rows: 310, features: [bought], pooling: sum}}
"""


def metric_of(run: Path, metric: str = "auc", split: str = "val") -> float:
    found: float = json.loads((run / "result.json").read_text())["evals"][split][metric]
    return found


def test_the_tutorial_of_practice_works_as_it_stands(tmp_path: Path) -> None:
    """From a log with weights, orders and lists to days: attention is ahead, and predicts the odds of all rows."""
    link_clone(tmp_path)
    (tmp_path / "out").mkdir()
    for block in blocks_of("tutorial-practice.md"):
        block.do(tmp_path)
    out = tmp_path / "out/practice"
    attention, summed = (metric_of(out / name) for name in ("attention", "sum"))
    best = json.loads((out / "log/dt=2026-01-01/clicks.tsv.best.json").read_text())
    assert summed + 0.005 < attention < best["auc"]
    assert metric_of(out / "attention", "calibration", "test") == pytest.approx(1, abs=0.1)
    lines = [line.split("\t") for line in (out / "log/dt=2026-01-02/clicks.tsv").read_text().splitlines()]
    scores = pq.read_table(out / "scores.parquet")
    clicks = np.array([float(line[0]) for line in lines])
    score, of_order = (scores[name].to_numpy() for name in ("score", "score_order"))
    assert (of_order <= score).all()
    assert roc_auc_score(clicks, score) > 0.72
    known = np.array([line[40] != "" for line in lines])
    orders = np.array([line[40] == "1" for line in lines])
    assert roc_auc_score(orders[known], of_order[known]) > 0.75
    assert "new auc of order" in (out / "days/days/2026-01-02/day.json").read_text()


def test_attention_is_ahead_of_means_on_generated_histories(tmp_path: Path) -> None:
    """On the same rows, with the bought items summed by their counts in both."""
    succeed(command("generate", "rows=60_000", "histories.length=10", "output=log.tsv"), tmp_path)
    given = ["dataset=log.tsv.yaml", "input.train=log.tsv", "split.val=0.2", "output=dataset"]
    shared = ["encoding=vocab", "encoding.shared=[[item,last_items]]"]
    succeed(command("preprocess", *given, *shared), tmp_path)
    aucs = {}
    for name, pooling in {"mean": "mean", "attention": "{attention: item}"}.items():
        (tmp_path / f"{name}.yaml").write_text(TABLES.format(pooling=pooling))
        words = [f"tables={name}.yaml", "trainer.epochs=2", "trainer.global_batch_size=256", f"output={name}"]
        succeed(command("train", "data.path=dataset", *words), tmp_path)
        aucs[name] = metric_of(tmp_path / name)
    best = json.loads((tmp_path / "log.tsv.best.json").read_text())["auc"]
    assert aucs["mean"] + 0.01 < aucs["attention"] < best
