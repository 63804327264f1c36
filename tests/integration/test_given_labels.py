"""A label given another one: the same model where it is missing and where it is 0 without its condition, and the right
share of positives where it is missing at random.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dlrm_app
from dlrm_app.dataset.manifest import read_manifest
from tests.make_log import describe
from tests.preprocessing.running import run as preprocess_here
from tests.small_run import SMALL, evaluate_here, events, final_bytes, train_here

ROWS = 16_000
TRAINED = [*SMALL, "model=concat", "model.bottom_mlp=[]", "schedule=cosine", "trainer.epochs=2"]
CHAIN = "labels: [click, {order: {given: click}}, {back: {given: order}}]"
COLUMNS = [f"{{name: {name}, role: label}}" for name in ("click", "order", "back")]


def draw() -> pd.DataFrame:
    """Clicks, orders of these and returns of those, none of them missing."""
    random, effects = np.random.default_rng(5), np.random.default_rng(9).normal(size=(3, 40))
    shop = random.integers(0, 40, ROWS)
    chances = 1 / (1 + np.exp(-(effects[:, shop] + np.array([[-0.5], [-0.9], [-0.5]]))))
    drawn = np.logical_and.accumulate(random.random((3, ROWS)) < chances)
    click, order, back = drawn.astype(float)
    return pd.DataFrame({"click": click.astype(int), "order": order, "back": back, "shop": shop})


def without(log: pd.DataFrame, label: str, share: float, rows: pd.Series) -> pd.DataFrame:
    """``log`` without a ``label`` in a share of the ``rows``, of positives and negatives alike."""
    log, random = log.copy(), np.random.default_rng(7)
    for value in (0, 1):
        places = np.flatnonzero(rows & (log[label] == value))
        log.loc[random.permutation(places)[: round(share * len(places))], label] = np.nan
    return log


def made(folder: Path, name: str, log: pd.DataFrame, *more: str) -> Path:
    describe(folder, [*COLUMNS, "{name: shop, role: sparse, kind: integer}"], CHAIN)
    log.to_csv(folder / f"{name}.csv", index=False)
    given = [f"dataset={folder}/log.yaml", f"input.train={folder}/{name}.csv", "encoding=hash"]
    preprocess_here(folder / name, *given, "encoding.num_embeddings=100", *more)
    return folder / name


@pytest.mark.slow  # trains two models
def test_a_missing_label_and_a_zero_say_the_same_without_the_condition(tmp_path: Path) -> None:
    """The model, to the bit, and every metric; the manifest too, but for the rows that have the label."""
    zeros = draw()
    missing = zeros.copy()
    missing.loc[zeros["click"] == 0, "order"] = np.nan
    missing.loc[zeros["order"] == 0, "back"] = np.nan
    found = []
    for name, log in (("zeros", zeros), ("missing", missing)):
        data = made(tmp_path, name, log, "split.val=0.2")
        calibrated = ["trainer.calibrate=true", "model.initial_bias=base_rate"]
        train_here(tmp_path / f"{name}_run", f"data.path={data}", *TRAINED, *calibrated)
        (model,) = evaluate_here(f"checkpoint={tmp_path}/{name}_run", "split=val").models
        metrics = {each.name: each.metrics for each in [*model.labels, *model.where_given]}
        assert [*metrics] == ["order", "back", "order|click", "back|order"]
        found.append(
            (final_bytes(tmp_path / f"{name}_run"), metrics, events(tmp_path / f"{name}_run", "eval"))
        )
    assert found[0] == found[1]
    counts = [read_manifest(tmp_path / name).splits["train"].labels["order"] for name in ("zeros", "missing")]
    assert counts[0].where_given == counts[1].where_given
    assert counts[1].where_given is not None
    assert counts[1].rows == counts[1].where_given.rows < counts[0].rows


@pytest.mark.slow  # 4 s each
@pytest.mark.parametrize(
    "lost", [pytest.param(0.1, marks=pytest.mark.long), 0.5, pytest.param(0.9, marks=pytest.mark.long)]
)
def test_labels_that_are_missing_given_their_condition_bias_nothing(tmp_path: Path, lost: float) -> None:
    whole = draw()
    log = without(whole, "order", lost, whole["click"] == 1)
    log.loc[log["order"].isna(), "back"] = np.nan
    run = tmp_path / "run"
    train_here(run, f"data.path={made(tmp_path, 'data', log, 'split.val=0.2')}", *TRAINED)
    scores = dlrm_app.load(run).predict(whole[["shop"]]).mean(axis=0)
    assert scores[:2] == pytest.approx(whole[["click", "order"]].mean().to_numpy(), rel=0.05)
    order = events(run, "eval")[-1]["labels"]["order"]
    assert order["calibration"] == pytest.approx(1, abs=0.25)  # 3 if the rows that are left counted once
    assert order["weight"] == pytest.approx(ROWS / 5)


@pytest.mark.slow  # 4 s
def test_labels_that_are_missing_in_half_of_all_rows_bias_nothing(tmp_path: Path) -> None:
    whole = draw()
    log = without(whole, "order", 0.5, whole["click"] >= 0)
    log.loc[log["order"].isna(), "back"] = np.nan
    run = tmp_path / "run"
    train_here(run, f"data.path={made(tmp_path, 'data', log)}", *TRAINED)
    scores = dlrm_app.load(run).predict(whole[["shop"]]).mean(axis=0)
    assert scores[:2] == pytest.approx(whole[["click", "order"]].mean().to_numpy(), rel=0.05)
