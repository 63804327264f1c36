"""A model that has learnt one label is not measured by, or begun with, another without a word."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from dlrm_app.errors import ConfigError, DataError, DlrmError
from tests.inference.conftest import export_here, predicted
from tests.preprocessing.running import run as preprocess
from tests.refusals import refused
from tests.small_run import evaluate_here, train_here

FORM = """
name: log
delimiter: ","
header: true
columns:
  - {name: click, role: label}
  - {name: order, role: label}
  - {name: price, role: dense, kind: float}
  - {name: item, role: sparse, kind: string}
  - {name: user, role: sparse, kind: string}
"""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs with two labels; datasets ``click``, ``order`` and ``bare`` (unlabelled); ``run`` has learnt clicks."""
    folder = tmp_path_factory.mktemp("labels")
    (folder / "log.yaml").write_text(FORM)
    draws = np.random.default_rng(0)
    for name in ("train", "val"):
        lines = ["click,order,price,item,user"]
        for _ in range(1500):
            item, user = draws.integers(40), draws.integers(60)
            click, order = (int(draws.random() < p) for p in (0.2 + 0.01 * item, 0.6 - 0.01 * item))
            lines.append(f"{click},{order},{draws.random():.3f},i{item},u{user}")
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    for name in ("click", "order"):
        made(folder / name, folder, name)
    made(folder / "bare", folder, "order", "input.unlabelled=[train,val]")
    train_here(folder / "run", f"data.path={folder}/click", "tables.embedding_dim=4")
    return folder


def made(output: Path, logs: Path, label: str, *overrides: str) -> None:
    keys = [f"dataset={logs}/log.yaml", f"dataset.label={label}", "encoding.num_embeddings=100"]
    keys = [key for key in keys if not (key.startswith("encoding.") and "encoding=from_dataset" in overrides)]
    preprocess(output, *keys, f"input.train={logs}/train.csv", f"input.val={logs}/val.csv", *overrides)


def test_an_evaluation_by_another_label_is_typed(logs: Path) -> None:
    rows = [f"checkpoint={logs}/run", f"data.path={logs}/order", "split=val"]
    with refused(
        DataError,
        ".../order",
        "has the label order, .../run/checkpoints/step-000000011 has learnt click",
        cure="...dataset.label=click...other_label=ignore",
    ):
        evaluate_here(*rows)
    (model,) = evaluate_here(*rows, "other_label=ignore").models
    orders = pq.read_table(logs / "order" / "val").column("order").to_numpy().sum()
    assert model.metrics["positives"] == orders


def test_a_warm_start_on_another_label_is_typed(logs: Path, tmp_path: Path) -> None:
    keys = [
        f"data.path={logs}/order",
        f"warm_start.checkpoint={logs}/run",
        "tables.embedding_dim=4",
        "trainer.max_steps=2",
    ]
    with refused(
        DataError,
        ".../order",
        "has the label order, .../run/checkpoints/step-000000011 has learnt click",
        cure="...warm_start.allow=[label]",
    ):
        train_here(tmp_path / "run", *keys)
    train_here(tmp_path / "run", *keys, "warm_start.allow=[label]")


def test_a_run_is_not_resumed_on_another_label(logs: Path, tmp_path: Path) -> None:
    keys = ["tables.embedding_dim=4", "trainer.max_steps=2"]
    train_here(tmp_path / "run", f"data.path={logs}/click", *keys)
    with refused(
        DlrmError,
        ".../run/checkpoints/step-000000002",
        "was trained on another dataset (.../click as it was then) than .../order is now",
    ):
        train_here(tmp_path / "run", f"data.path={logs}/order", *keys[:1], "resume=auto")


@pytest.mark.parametrize("model", ["run", "export"])
def test_rows_of_another_label_are_scored_without_it(logs: Path, tmp_path: Path, model: str) -> None:
    if model == "export":
        export_here(f"checkpoint={logs}/run", f"output={tmp_path}/export", "format=torchscript", "split=val")
    path = logs / "run" if model == "run" else tmp_path / "export"
    keys = [f"model={path}", "split=val"]
    with refused(DataError, f"{logs}/order", "has the label order, ... has learnt click", "...labels=false"):
        predicted(tmp_path / "a.parquet", *keys, f"data.path={logs}/order")
    right = predicted(tmp_path / "right.parquet", *keys, f"data.path={logs}/click")
    without = right.drop_columns(["label"])
    assert predicted(tmp_path / "b.parquet", *keys, f"data.path={logs}/order", "labels=false") == without
    assert predicted(tmp_path / "c.parquet", *keys, f"data.path={logs}/bare") == without
    with refused(DataError, ".../bare", "has no labels in its val split"):
        predicted(tmp_path / "d.parquet", *keys, f"data.path={logs}/bare", "labels=true")


def test_an_export_is_not_verified_by_another_label(logs: Path, tmp_path: Path) -> None:
    with refused(
        DataError, ".../order", "has the label order, .../run/checkpoints/step-000000011 has learnt click"
    ):
        export_here(f"checkpoint={logs}/run", f"output={tmp_path}/x", f"data.path={logs}/order", "split=val")


def test_target_columns_of_another_label_are_refused(logs: Path, tmp_path: Path) -> None:
    made(tmp_path / "rates", logs, "click", "dense.target_columns=all")
    again = ["encoding=from_dataset", f"encoding.path={tmp_path}/rates"]
    (tmp_path / "new").mkdir()
    lines = (logs / "val.csv").read_text()
    (tmp_path / "new/new.csv").write_text(lines)

    def new_rows(output: str, label: str, *overrides: str) -> None:
        keys = [f"dataset={logs}/log.yaml", f"dataset.label={label}", f"input.test={tmp_path}/new/new.csv"]
        preprocess(tmp_path / output, *keys, *overrides)

    with refused(
        ConfigError,
        "encoding.path=.../rates",
        "has target columns that are shares of click, the label here is order",
        cure="give dataset.label=click...",
    ):
        new_rows("x", "order", *again)
    new_rows("same", "click", *again)
    new_rows("ids", "order", "encoding=from_dataset", f"encoding.path={logs}/click")  # ids are of no label
    new_rows("bare", "click", *again, "input.unlabelled=[test]")
    later = ["encoding=from_dataset", f"encoding.path={tmp_path}/bare"]
    with refused(
        ConfigError,
        "encoding.path=.../bare",
        "has target columns that are shares of click, the label here is order",
    ):
        new_rows("chained", "order", *later)
    new_rows("chained", "click", *later)
    new_rows("bare again", "click", *later, "input.unlabelled=[test]")
