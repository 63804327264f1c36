"""What is said to type next."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dlrm_app.api.command import Call
from dlrm_app.cli.next_lines import next_lines
from dlrm_app.dataset.manifest import DenseColumn, Manifest
from dlrm_app.dataset.splits import Split
from dlrm_app.preprocessing.summary import Dataset
from dlrm_app.runs.checkpoint.evaluation import Evaluation

CALL = Call()


@pytest.mark.parametrize(
    ("splits", "command"),
    [
        (["train", "val"], "dlrm-train 'data.path=my data' model=concat tables=dataset trainer.epochs=1"),
        (["test"], "dlrm-evaluate checkpoint=RUN 'data.path=my data' split=test"),
    ],
)
def test_training_is_suggested_where_there_are_rows_to_train_on(splits: list[str], command: str) -> None:
    manifest = Manifest(
        dataset="clicks",
        label="label",
        dense=[],
        sparse=[],
        splits={name: Split(1, 0, 0, []) for name in splits},
        sources=[],
        config={},
        path=Path("my data"),
    )
    assert next_lines("preprocess", Dataset(manifest), CALL) == [f"next: {command}"]
    with_dense = replace(manifest, dense=[DenseColumn("hour", {"kind": "none"})])
    shorter = command.replace(" model=concat", "")
    assert next_lines("preprocess", Dataset(with_dense), CALL) == [f"next: {shorter}"]


def evaluation(split: str, epoch: int, auc: float) -> Evaluation:
    return Evaluation(split, epoch, epoch + 1, {"auc": auc})


def after_run(path: Path, evaluations: list[Evaluation], best: Evaluation | None) -> str:
    run = SimpleNamespace(path=path, evaluations=evaluations, best=best, untaught={})
    (line,) = next_lines("train", run, CALL)
    return line


def test_evaluation_is_followed_by_an_export_of_the_best() -> None:
    first, second, test = evaluation("val", 0, 0.8), evaluation("val", 1, 0.7), evaluation("test", 1, 0.7)
    run = Path("my run")
    export = "next: dlrm-export 'checkpoint=my run' "
    assert after_run(run, [first, second, test], first) == f"{export}which=best 'output=my run_export'"
    assert after_run(run, [second, first, test], first) == f"{export}'output=my run_export'"
    assert after_run(run, [test], None) == f"{export}'output=my run_export'"
    assert after_run(run, [], None) == "next: dlrm-evaluate 'checkpoint=my run' split=train"
