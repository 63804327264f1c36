"""The result of a training: its run folder, its evaluations, and the table that is shown at its end.

Does not import torch.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dlrm_app.result import Paragraph, Result
from dlrm_app.runs.checkpoint.marker import Evaluation
from dlrm_app.runs.events import RunResult
from dlrm_app.table import Columns, Rows

if TYPE_CHECKING:
    import pyarrow as pa

HEADINGS = ["", "train loss", "AUC", "log loss", "NE", "calibration"]
DECIMALS = {"auc": 5, "logloss": 5, "ne": 4, "calibration": 4}


@dataclass(frozen=True)
class Run(Result):
    """A finished run. ``path``: its folder; ``result``: as in result.json; ``evaluations``: all, in order.

    ``best``: the evaluation on val with the best AUC; None without a labelled val split. ``report``: the page, if it
    was written.
    """

    path: Path
    result: RunResult
    evaluations: tuple[Evaluation, ...]
    best: Evaluation | None
    report: Path | None = None

    @property
    def auc(self) -> float | None:
        """The AUC on test, otherwise the best on val; None if neither was evaluated."""
        test = self.result.evals.get("test")
        return test.metrics["auc"] if test is not None else self.result.best_val_auc

    def events(self) -> "pa.Table":
        """metrics.jsonl as a table: a row for each event, null where an event lacks a field."""
        from pyarrow import json  # only here: a run's end needs none of it

        lines = (self.path / "metrics.jsonl").read_bytes()
        return json.read_json(io.BytesIO(lines[: lines.rfind(b"\n") + 1]))

    def paragraphs(self) -> Iterable[Paragraph]:
        """The table of epochs, and how the run ended."""
        result = self.result
        yield ""
        yield summary_table(result.train_loss, self.evaluations, result.best_reachable)
        yield (
            f"\n{result.steps:,} steps, {result.samples_per_second:,.0f} samples/s while training; run folder "
            f"{self.path}\n"
            f"ended because {result.ended_because}"
        )
        if self.report is not None:
            yield f"report: {self.report}"


def summary_table(
    train_loss: Sequence[float], evals: Sequence[Evaluation], best: Mapping[str, float] | None
) -> tuple[Columns, Rows]:
    """A line for each epoch, one for test, and one for the best that the data allows."""
    by_epoch = {each.epoch: each for each in evals if each.split == "val"}
    rows = [
        [f"epoch {epoch + 1}", f"{loss:.5f}", *_cells(by_epoch.get(epoch))]
        for epoch, loss in enumerate(train_loss)
    ]
    rows += [["test", "", *_cells(each)] for each in evals if each.split == "test"]
    if best:
        rows.append(["best reachable", "", f"{best['auc']:.5f}", f"{best['logloss']:.5f}", "", ""])
    return HEADINGS, rows


def _cells(evaluation: Evaluation | None) -> list[str]:
    if evaluation is None:
        return [""] * len(DECIMALS)
    return [f"{evaluation.metrics[name]:.{decimals}f}" for name, decimals in DECIMALS.items()]
