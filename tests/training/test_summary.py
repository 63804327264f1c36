"""The command that a run's end offers."""

from pathlib import Path

from dlrm_app.runs.checkpoint.marker import Evaluation
from dlrm_app.training.summary import next_command


def evaluation(split: str, epoch: int, auc: float) -> Evaluation:
    return Evaluation(split, epoch, epoch + 1, {"auc": auc})


def test_after_an_evaluation_comes_the_export_and_of_the_best_where_a_later_epoch_hurt() -> None:
    first, second, test = evaluation("val", 0, 0.8), evaluation("val", 1, 0.7), evaluation("test", 1, 0.7)
    run = Path("my run")
    export = "next: dlrm-export 'checkpoint=my run' "
    assert next_command(run, [first, second, test], first) == f"{export}which=best 'output=my run_export'"
    assert next_command(run, [second, first, test], first) == f"{export}'output=my run_export'"
    assert next_command(run, [test], None) == f"{export}'output=my run_export'"
    assert next_command(run, [], None) == "next: dlrm-evaluate 'checkpoint=my run' split=train"
