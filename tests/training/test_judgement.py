"""The judgement of an evaluation: right on each cause made on purpose, silent on good runs, careful on few rows."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dlrm_app.dataset.manifest import read_manifest, write_manifest
from dlrm_app.reports.run_page import write_report
from dlrm_app.runs.checkpoint.evaluation import Judgement
from tests.commands import Typed
from tests.loader.dataset_fixture import LABEL, rewrite, write_dataset
from tests.preprocessing.running import run as preprocess
from tests.ranks import train_on_ranks
from tests.small_run import SMALL, events, train_here

Change = Callable[[Path], None]
ROWS = {"train": 8192, "val": 4096}


def relabelled(split: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    def work(folder: Path) -> None:
        def with_labels(table: pa.Table) -> pa.Table:
            labels = change(table[LABEL].to_numpy()).astype(np.uint8)
            return table.set_column(table.column_names.index(LABEL), LABEL, pa.array(labels))

        rewrite(folder, split, with_labels)

    return work


def with_column(name: str, values: Callable[[pa.Table], np.ndarray], dtype: str = "float32") -> Change:
    def work(folder: Path) -> None:
        for split in ROWS:
            rewrite(
                folder,
                split,
                lambda table: table.set_column(
                    table.column_names.index(name), name, pa.array(values(table).astype(dtype))
                ),
            )

    return work


def shuffled(folder: Path) -> None:
    for split in ROWS:
        relabelled(split, np.random.default_rng(1).permutation)(folder)


def two_rows(folder: Path) -> None:
    """Every value of every column hashed to one of two ids: 500 values for each row of a table."""
    for name in ("c0", "c1"):
        with_column(name, lambda table, name=name: table[name].to_numpy() * 7919 % 2, "int32")(folder)
    with_column("i0", lambda table: np.zeros(len(table)))(folder)
    manifest = read_manifest(folder)
    sparse = [replace(column, num_embeddings=2, distinct=1000) for column in manifest.sparse]
    write_manifest(folder, replace(manifest, sparse=sparse))


def other_ids(folder: Path) -> None:
    """Val's values lie in the upper half of each table, train's in the lower."""
    for split, above in (("train", 0), ("val", 1)):

        def moved(table: pa.Table, above: int = above) -> pa.Table:
            for name, size in (("c0", 100), ("c1", 400)):
                ids = table[name].to_numpy() // 2 + above * size // 2
                table = table.set_column(table.column_names.index(name), name, pa.array(ids.astype(np.int32)))
            return table.set_column(
                table.column_names.index("i0"), "i0", pa.array(np.zeros(len(table), np.float32))
            )

        rewrite(folder, split, moved)


def nothing(folder: Path) -> None:
    """Leaves the dataset as it is."""


FAST = ["optimizer.sparse.lr=0.05", "trainer.epochs=2"]
SGD = ["optimizer=sgd", "optimizer.sparse.lr=15", "optimizer.dense.kind=sgd", "optimizer.dense.lr=15"]
ADAM = [
    "optimizer.sparse.kind=adam",
    "optimizer.sparse.lr=1",
    "optimizer.dense.kind=adam",
    "optimizer.dense.lr=1",
]
CAUSES = {
    "labels of both splits shuffled": (shuffled, [], "no better than a constant", "labels shuffled"),
    "labels of val inverted": (
        relabelled("val", lambda labels: 1 - labels),
        [],
        "inverted",
        "labels unlike between splits",
    ),
    "labels of val shuffled": (
        relabelled("val", np.random.default_rng(1).permutation),
        FAST,
        "no better than a constant",
        "labels unlike between splits",
    ),
    "SGD at rate 15": (nothing, SGD, "no better than a constant", "learning rate too high"),
    "Adam at rate 1": (nothing, ADAM, "diverged", "learning rate too high"),
    "one step": (
        nothing,
        ["trainer.max_steps=1", "optimizer.dense.lr=1e-4"],
        "no better than a constant",
        "too few steps",
    ),
    "ids hashed to two rows": (two_rows, [], "no better than a constant", "one row for many ids"),
    "ids of val unknown": (other_ids, [], "no better than a constant", "unknown ids"),
    "train labels of one class": (
        relabelled("train", np.zeros_like),
        [],
        "no better than a constant",
        "labels constant",
    ),
    "a leaked outcome": (
        with_column("i1", lambda table: table[LABEL].to_numpy()),
        FAST,
        "too good",
        "leaked column",
    ),
    "a dense column of scale 1e9": (
        with_column("i1", lambda table: 1e9 * table["i1"].to_numpy()),
        [],
        "diverged",
        "scale of a dense column",
    ),
}


def judged(folder: Path, change: Change, *settings: str, **shape: object) -> Judgement:
    data = folder / "data"
    shape = {"num_dense": 2, "one_hot": (100, 400), "multi_hot": (), **shape}
    write_dataset(data, ROWS, **shape)  # type: ignore[arg-type]
    change(data)
    result = train_here(folder / "run", f"data.path={data}", "evaluation.test=false", *settings)
    judgement = result.evals["val"].judgement
    assert judgement is not None
    return judgement


@pytest.mark.parametrize("name", CAUSES)
def test_each_cause_made_on_purpose_is_named_first(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change, settings, verdict, cause = CAUSES[name]
    with caplog.at_level(logging.WARNING):
        judgement = judged(tmp_path, change, *settings)
    assert (judgement.verdict, judgement.causes[0].name) == (verdict, cause), judgement
    assert judgement.causes[0].cure in caplog.text
    event = events(tmp_path / "run", "eval")[-1]
    assert event["judgement"]["verdict"] == verdict
    assert (
        json.loads((tmp_path / "run/result.json").read_text())["evals"]["val"]["judgement"]
        == event["judgement"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["dlrm", "dcn"])
def test_a_good_run_gets_no_advice(
    kind: str, seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        judgement = judged(tmp_path, nothing, f"model={kind}", *FAST, seed=seed)
    assert (judgement.verdict, judgement.causes) == ("learnt", [])
    assert "model is" not in caplog.text


def test_a_model_that_learnt_nothing_is_exported_only_on_request(tmp_path: Path, typed: Typed) -> None:
    judged(tmp_path, shuffled, "checkpoint.keep_last=1")
    words = [f"checkpoint={tmp_path}/run", "format=parquet", f"output={tmp_path}/export", "split=val"]
    code, said = typed("export", *words)
    assert code == 1
    assert "is not exported, because it is no better than a constant" in said
    assert "judgement=ignore" in said
    assert not (tmp_path / "export").exists()
    assert typed("export", *words, "judgement=ignore")[0] == 0


def test_a_run_without_val_is_judged_by_the_export(tmp_path: Path, typed: Typed) -> None:
    write_dataset(tmp_path / "data", {"train": 8192, "test": 4096}, num_dense=2, one_hot=(100,), multi_hot=())
    relabelled("train", np.random.default_rng(1).permutation)(tmp_path / "data")
    train_here(tmp_path / "run", f"data.path={tmp_path}/data", "evaluation.test=false")
    words = [f"checkpoint={tmp_path}/run", "format=torchscript", f"output={tmp_path}/export"]
    code, said = typed("export", *words)
    assert code == 1
    assert "is not exported, because it is no better than a constant" in said
    assert not (tmp_path / "export").exists()


def test_the_page_says_what_the_log_says(tmp_path: Path) -> None:
    judgement = judged(tmp_path, shuffled)
    page = unescape(write_report(tmp_path / "run").read_text())
    assert judgement.says in page
    assert judgement.advice[0] in page


@pytest.mark.slow
def test_two_ranks_judge_as_one(tmp_path: Path) -> None:
    one = judged(tmp_path, shuffled, "trainer.max_steps=40")
    keys = [
        f"data.path={tmp_path}/data",
        f"output={tmp_path}/two",
        "evaluation.test=false",
        "trainer.max_steps=40",
    ]
    train_on_ranks(2, *SMALL, *keys, "report.enabled=false")
    two = events(tmp_path / "two", "eval")[-1]["judgement"]
    assert (two["verdict"], [cause["name"] for cause in two["causes"]]) == (
        one.verdict,
        [cause.name for cause in one.causes],
    )


def test_a_result_on_few_rows_is_undecided(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_dataset(data, {"train": 1024, "val": 40}, num_dense=2, one_hot=(100,), multi_hot=())
    result = train_here(
        tmp_path / "run", f"data.path={data}", "optimizer.dense.lr=1e-4", "trainer.max_steps=1"
    )
    judgement = result.evals["val"].judgement
    assert judgement is not None
    assert (judgement.verdict, judgement.causes, judgement.is_bad) == ("undecided", [], False)
    assert "cannot be told apart from" in judgement.says
    assert "40 rows" in judgement.says


@pytest.mark.slow
def test_a_leak_is_named_by_its_column_of_the_log(tmp_path: Path) -> None:
    """Its target column and its buckets are made of it: the description has neither."""
    rng = np.random.default_rng(0)
    clicks = rng.integers(0, 2, 6000)
    wrong = rng.random(6000) < 0.005
    lines = [
        f"{click},{'paid' if click != is_wrong else 'open'}{rng.integers(9)},i{rng.integers(30)}\n"
        for click, is_wrong in zip(clicks, wrong, strict=True)
    ]
    columns = "".join(f"  - {{name: {name}, role: sparse, kind: string}}\n" for name in ("state", "item"))
    (tmp_path / "log.yaml").write_text(
        f"name: log\ndelimiter: ','\nheader: true\ncolumns:\n  - {{name: click, role: label}}\n{columns}"
    )
    for name, some in (("train", lines[:5000]), ("val", lines[5000:])):
        (tmp_path / f"{name}.csv").write_text("click,state,item\n" + "".join(some))
    keys = [f"dataset={tmp_path}/log.yaml", "encoding=vocab", "dense.target_columns=all"]
    preprocess(tmp_path / "data", *keys, f"input.train={tmp_path}/train.csv", f"input.val={tmp_path}/val.csv")
    settings = [f"data.path={tmp_path}/data", "trainer.epochs=3", "optimizer.sparse.lr=0.1"]
    judgement = train_here(tmp_path / "run", *settings).evals["val"].judgement
    assert judgement is not None
    assert judgement.causes[0].cure.startswith("if state is known only afterwards")
    assert "alone state ranks train rows" in judgement.says
