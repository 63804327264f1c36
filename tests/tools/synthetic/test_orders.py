"""Generated logs with orders after clicks: lines of the same log without them, and a truth whose scores are known."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from dlrm_app.config.generate import GenerateConfig
from dlrm_app.dataset.manifest import LearntLabel
from dlrm_app.errors import ConfigError, refuse_if
from dlrm_app.tools.synthetic import generate
from dlrm_app.tools.synthetic.clicks import make_source
from tests.composed import compose_config
from tests.preprocessing.running import run, table_of
from tests.refusals import refused

ROWS = 40_000
ORDERS = ["orders.rate=0.3", "orders.missing=0.2"]


def configured(output: Path, *words: str) -> GenerateConfig:
    return compose_config("generate", GenerateConfig, [f"output={output}", f"rows={ROWS}", *words])


def fields(output: Path, *words: str) -> list[list[str]]:
    generate(configured(output, *words))
    return [line.split("\t") for line in output.read_text().splitlines()]


@pytest.mark.slow
def test_only_clicked_rows_have_orders(tmp_path: Path) -> None:
    """The other fields are those of the log without orders; the asked shares are met."""
    rows = fields(tmp_path / "orders.tsv", *ORDERS)
    assert [row[:40] for row in rows] == fields(tmp_path / "clicks.tsv")
    clicks = np.array([row[0] == "1" for row in rows])
    orders = np.array([row[40] for row in rows])
    assert {*orders} == {"0", "1", ""}
    assert clicks[orders == "1"].all()
    assert (orders == "").mean() == pytest.approx(0.2, abs=0.01)
    assert (orders[clicks & (orders != "")] == "1").mean() == pytest.approx(0.3, abs=0.02)


@pytest.mark.slow
def test_the_best_scores_are_sklearns_of_the_true_probabilities(tmp_path: Path) -> None:
    """Of a click and an order, over all rows whose order is known; and among clicks, of an order after a click."""
    rows = fields(tmp_path / "log.tsv", *ORDERS, "orders.auc=0.85")
    block = make_source(configured(tmp_path / "x", *ORDERS, "orders.auc=0.85")).block(0, ROWS)
    assert block.orders is not None
    known = np.array([row[40] != "" for row in rows])
    truth, labels = block.orders.probabilities[known], block.orders.labels[known]
    assert labels.tolist() == [int(row[40]) for row in rows if row[40]]
    best = json.loads((tmp_path / "log.tsv.best.json").read_text())["labels"]["order"]
    assert best["auc"] == pytest.approx(roc_auc_score(labels, truth), abs=1e-6)
    assert best["logloss"] == pytest.approx(log_loss(labels, truth), abs=1e-8)
    assert (best["rows"], best["positives"]) == (known.sum(), labels.sum())
    assert truth.sum() == pytest.approx(labels.sum(), rel=0.05)  # calibration
    clicked = block.labels == 1
    after_click = (block.orders.probabilities / block.probabilities)[clicked]
    assert roc_auc_score(block.orders.labels[clicked], after_click) == pytest.approx(0.85, abs=0.02)


@pytest.mark.long
def test_a_seed_gives_the_same_orders_in_any_pieces(tmp_path: Path) -> None:
    whole = fields(tmp_path / "whole.tsv", *ORDERS, "threads=1")
    head = fields(tmp_path / "head.tsv", *ORDERS, "rows=17_001", "threads=3")
    tail = fields(tmp_path / "tail.tsv", *ORDERS, "start_row=17_001", "rows=22_999")
    assert whole == head + tail
    assert whole != fields(tmp_path / "other.tsv", *ORDERS, "seed=1")


def test_a_generated_log_of_orders_is_read_back(tmp_path: Path) -> None:
    """With weights and sampled negatives too."""
    words = [*ORDERS, "weights=0.5", "negatives_kept=0.25"]
    rows = fields(tmp_path / "log.tsv", *words)
    given = [f"input.train={tmp_path}/log.tsv", "encoding.num_embeddings=100"]
    manifest = run(tmp_path / "out", f"dataset={tmp_path}/log.tsv.yaml", *given)
    assert manifest.labels == [LearntLabel("click"), LearntLabel("order", "click")]
    table = table_of(manifest)
    orders = ["" if np.isnan(order) else f"{order:.0f}" for order in table["order"].to_pylist()]
    assert [str(click) for click in table["click"].to_pylist()] == [row[0] for row in rows]
    assert orders == [row[40] for row in rows]
    assert table["importance"].to_pylist() == [float(np.float32(row[41])) for row in rows]
    best = json.loads((tmp_path / "log.tsv.best.json").read_text())["labels"]["order"]
    assert manifest.further_best == {"order": {key: best[key] for key in ("auc", "logloss")}}


@pytest.mark.slow
def test_the_first_of_several_days_is_the_log_of_one(tmp_path: Path) -> None:
    days = tmp_path / "days"
    generate(configured(days, *ORDERS, "days=3", "rows=4000"))
    texts = [path.read_text() for path in sorted(days.glob("*/clicks.tsv"))]
    generate(configured(tmp_path / "one.tsv", *ORDERS, "rows=4000"))
    assert texts[0] == (tmp_path / "one.tsv").read_text()
    bests = [json.loads(path.read_text())["labels"]["order"] for path in sorted(days.glob("*/*.best.json"))]
    assert all(0.6 < best["auc"] < 0.95 for best in bests)
    orders = [[line.rsplit("\t", 1)[1] for line in text.splitlines()] for text in texts]
    assert len(texts) == 3
    assert [each.count("") / 4000 for each in orders] == pytest.approx([0.2] * 3, abs=0.03)


def test_inputs_of_models_have_no_orders(tmp_path: Path) -> None:
    words = ["format=dataset", "merlin=tiny", "orders.rate=0.1"]
    with refused(ConfigError, "orders.rate", "is of format=criteo"):
        refuse_if(configured(tmp_path / "x", *words).problems())
