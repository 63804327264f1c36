"""Every label of a model is judged; labels that the rows cannot teach are named, and their models not exported."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dlrm_app.config.export import ExportConfig
from dlrm_app.dataset.label_counts import class_lines, one_class_labels
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.errors import DlrmError
from dlrm_app.evaluation.evidence import _look
from dlrm_app.evaluation.judgement import judge
from dlrm_app.evaluation.label_rows import LabelRows, rows_of_labels
from dlrm_app.evaluation.measurements import ListAndColumn
from dlrm_app.inference.export import export_model
from dlrm_app.inference.problems import refuse_judged
from dlrm_app.runs.checkpoint.marker import read_marker
from dlrm_app.runs.checkpoint.names import choose_checkpoint
from dlrm_app.runs.checkpoint.progress import Progress
from tests.composed import compose_config
from tests.evaluation.test_judgement import EVIDENCE, GOOD
from tests.inference.conftest import export_here
from tests.make_log import describe
from tests.preprocessing.running import make
from tests.preprocessing.running import run as preprocess
from tests.refusals import refused
from tests.small_run import SMALL, evaluate_here, train_here

ROWS = 3000
LABELS = "labels: [click, {order: {given: click}}]"
ROLES = [
    "{name: click, role: label}",
    "{name: order, role: label}",
    "{name: shop, role: sparse, kind: integer}",
]
TRAINED = [*SMALL, "model=concat", "model.bottom_mlp=[]", "optimizer.dense.lr=0.01", "trainer.epochs=3"]


def draw() -> pd.DataFrame:
    random, effects = np.random.default_rng(2), np.random.default_rng(9).normal(size=(2, 40))
    shop = random.integers(0, 40, ROWS)
    click = random.random(ROWS) < 1 / (1 + np.exp(0.3 - effects[0, shop]))
    order = click & (random.random(ROWS) < 0.4)
    return pd.DataFrame({"click": click.astype(int), "order": order.astype(float), "shop": shop})


def given(folder: Path, log: pd.DataFrame, *columns: str) -> list[str]:
    describe(folder, [*ROLES, *columns], LABELS)
    log.to_parquet(folder / "log.parquet")
    keys = [f"dataset={folder}/log.yaml", f"input.train={folder}/log.parquet", "encoding=vocab"]
    return [*keys, "split.val=0.3", "dense.transform=log1p"]


def progress_of(run: Path) -> Progress:
    return read_marker(choose_checkpoint(run, "newest")).progress


@pytest.mark.slow
def test_a_column_that_tells_another_label_is_named(tmp_path: Path) -> None:
    log = draw()
    log["gmv"] = np.where(log["order"] == 1, 20.0 + np.arange(ROWS) % 7, 0)
    preprocess(tmp_path / "data", *given(tmp_path, log, "{name: gmv, role: dense, kind: float}"))
    evaluation = train_here(
        tmp_path / "run", f"data.path={tmp_path}/data", *TRAINED, "model=dlrm", "model.bottom_mlp=[16]"
    ).evals["val"]
    assert evaluation.judgement is not None
    assert evaluation.judgement.verdict == "learnt"
    judged = evaluation.judgements["order"]
    assert judged.verdict == "too good"
    assert "give gmv role: ignore" in judged.causes[0].cure
    with refused(DlrmError, "run", "is not exported, because its order is too good to be true: ..."):
        refuse_judged("run", progress_of(tmp_path / "run"), "refuse")
    refuse_judged("run", progress_of(tmp_path / "run"), "ignore")
    found = evaluate_here(f"checkpoint={tmp_path}/run", "split=val")
    (model,) = found.models
    assert model.judgement is not None
    assert model.judgement.verdict == "learnt"
    verdicts = {each.name: each.judgement and each.judgement.verdict for each in model.labels}
    assert verdicts == {"order": "too good"}
    assert f"warning: {model.name}, order: too good to be true: AUC" in str(found)


@pytest.mark.slow
def test_an_export_judges_each_label_of_a_run_without_val(tmp_path: Path) -> None:
    log = draw()
    log["gmv"] = np.where(log["order"] == 1, 20.0 + np.arange(ROWS) % 7, 0)
    keys = given(tmp_path, log, "{name: gmv, role: dense, kind: float}")
    preprocess(tmp_path / "data", *keys, "split.val=0", "split.test=0.3")
    network = ["model=dlrm", "model.bottom_mlp=[16]"]
    train_here(tmp_path / "run", f"data.path={tmp_path}/data", *TRAINED, *network)
    assert progress_of(tmp_path / "run").judgements == {}
    line = [f"checkpoint={tmp_path}/run", "format=torchscript", "threads=1"]
    with refused(DlrmError, "run/step-...", "is not exported, because its order is too good to be true: ..."):
        export_model(compose_config("export", ExportConfig, [*line, f"output={tmp_path}/export"]))
    export_here(*line, f"output={tmp_path}/ignored", "judgement=ignore")


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["encoding.shared=[[item, last]]", "encoding=vocab", "encoding=hash"])
def test_a_list_that_holds_the_item_where_it_was_clicked_is_named(tmp_path: Path, encoding: str) -> None:
    log, random = draw(), np.random.default_rng(4)
    log["item"] = random.integers(0, 60, ROWS)
    lists = [
        [int(item), *random.integers(0, 60, 3)] if click else [*random.integers(0, 60, 4)]
        for item, click in zip(log["item"], log["click"], strict=True)
    ]
    log["last"] = lists
    columns = ["{name: item, role: sparse, kind: integer}"]
    columns += ["{name: last, role: sparse, kind: integer, separator: '|'}"]
    keys = [*given(tmp_path, log, *columns), "dataset.labels=[click]", encoding, "dense.target_columns=null"]
    preprocess(tmp_path / "data", *keys, *["encoding.num_embeddings=1000"] * (encoding == "encoding=hash"))
    manifest = read_manifest(tmp_path / "data")
    _, aucs, _ = _look(manifest, ["item", "last"], LabelRows("val"))
    assert aucs[ListAndColumn("last", "item")] > 0.95
    assert max(abs(aucs[name] - 0.5) for name in ("item", "last")) < 0.1
    judgement = judge(GOOD, replace(EVIDENCE, column_aucs=aucs))
    assert (judgement.verdict, judgement.causes[0].name) == ("too good", "leaked column")
    assert "last holds item itself" in judgement.causes[0].cure


def test_a_column_whose_name_has_the_word_with_is_no_pair() -> None:
    judgement = judge(GOOD, replace(EVIDENCE, column_aucs={"signed with app": 0.99}))
    assert (
        "if signed with app is known only afterwards, give signed with app role: ignore"
        in judgement.causes[0].cure
    )


UNTAUGHT = {
    "no row of train with click 1 has order": lambda log: np.where(log["click"] == 1, np.nan, 0),
    "order is 1 in all rows of train with click 1 that have it": lambda log: log["click"].astype(float),
    "order is 0 in all rows of train with click 1 that have it": lambda log: 0.0,
}


@pytest.mark.parametrize("why", UNTAUGHT)
def test_a_label_that_no_row_can_teach_is_named_and_its_model_refused(tmp_path: Path, why: str) -> None:
    log = draw()
    log["order"] = UNTAUGHT[why](log)
    data = make(tmp_path / "data", *given(tmp_path, log))
    assert f"warning: {why}: no model can learn it" in str(data)
    settings = ["trainer.max_steps=2", "trainer.calibrate=true", "model.initial_bias=base_rate"]
    train_here(tmp_path / "run", f"data.path={tmp_path}/data", *TRAINED, *settings)
    progress = progress_of(tmp_path / "run")
    assert progress.untaught == {"order": why}
    with refused(DlrmError, "run", f"is not exported, because {why}, from which it could learn nothing"):
        refuse_judged("run", Progress(untaught=progress.untaught), "refuse")


def test_a_label_that_an_earlier_run_has_learnt_is_learnt(tmp_path: Path) -> None:
    log = draw()
    preprocess(tmp_path / "data", *given(tmp_path, log), "encoding=hash", "encoding.num_embeddings=100")
    train_here(tmp_path / "first", f"data.path={tmp_path}/data", *TRAINED, "trainer.max_steps=2")
    log["order"] = 0.0
    preprocess(tmp_path / "next", *given(tmp_path, log), "encoding=hash", "encoding.num_embeddings=100")
    begun = [f"warm_start.checkpoint={tmp_path}/first", "trainer.max_steps=2"]
    train_here(tmp_path / "run", f"data.path={tmp_path}/next", *TRAINED, *begun)
    assert progress_of(tmp_path / "run").untaught == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "why"),
    [
        (
            lambda log: (np.arange(ROWS) < 2100).astype(float),
            {"val": "all 900 rows of val that have click weigh 0"},
        ),
        (
            lambda log: 1.0 - log["click"],
            {"train": "click is 0 in all rows of train that have it and weigh more than 0"},
        ),
    ],
)
def test_splits_whose_rows_weigh_nothing_are_said_and_trained_on(tmp_path: Path, weights, why) -> None:  # type: ignore[no-untyped-def]
    log = draw()
    log["w"] = weights(log)
    data = make(tmp_path / "data", *given(tmp_path, log, "{name: w, role: weight}"), "dataset.labels=[click]")
    for split, text in why.items():
        assert one_class_labels(data.manifest, split) == {"click": text}
    assert any(text in line for line in class_lines(data.manifest) for text in why.values())
    train_here(tmp_path / "run", f"data.path={tmp_path}/data", *TRAINED, "report.enabled=true")


def test_rows_that_lack_a_label_are_counted_by_those_that_have_it(tmp_path: Path) -> None:
    log = draw()
    clicked = np.flatnonzero(log["click"] == 1)
    log.loc[clicked[::2], "order"] = np.nan
    data = make(tmp_path / "data", *given(tmp_path, log))
    train = data.manifest.splits["train"]
    counts = train.labels["order"].where_given
    assert counts is not None
    assert (
        f"order is learnt from the {counts.rows:,} rows of train with click 1 that have it, which count for"
        in str(data)
    )
    assert train.positives is not None
    assert rows_of_labels(data.manifest, "train")[1].counts == (1.0, train.positives / counts.rows)
