"""The result of a training: its run folder, its evaluations, and the table that is shown at its end.

Does not import torch.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dlrm_app.result import Paragraph, Result
from dlrm_app.runs.checkpoint.evaluation import Evaluation
from dlrm_app.runs.events import RunResult
from dlrm_app.runs.shown_metrics import SHOWN_METRICS, ShownMetric, shown_of_groups
from dlrm_app.table import Columns, Rows

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Run(Result):
    """A finished run.

    ``path``: its folder.
    ``result``: as in result.json.
    ``evaluations``: all, in order.
    ``best``: the best evaluation on val, by evaluation.best; None without a labelled val split.
    ``report``: the page, if it was written.
    ``untaught``: labels that it could not learn, and why.
    """

    path: Path
    result: RunResult
    evaluations: tuple[Evaluation, ...]
    best: Evaluation | None
    report: Path | None = None
    untaught: Mapping[str, str] = field(default_factory=dict)

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
        yield summary_table(result, self.evaluations)
        if shown := shown_of_groups(name for each in self.evaluations for name in each.metrics):
            yield "\nwithin groups:"
            yield summary_table(result, self.evaluations, shown)
        yield (
            f"\n{result.steps:,} steps, {result.samples_per_second:,.0f} samples/s while training; run folder "
            f"{self.path}\n"
            f"ended because {result.ended_because}"
        )
        if self.report is not None:
            yield f"report: {self.report}"


def summary_table(
    result: RunResult, evals: Sequence[Evaluation], shown: Mapping[str, ShownMetric] = SHOWN_METRICS
) -> tuple[Columns, Rows]:
    """A line for each epoch, one for test, and one for the best that the data allows, with the metrics ``shown``."""
    by_epoch = {each.epoch: each for each in evals if each.split == "val"}
    rows = []
    for epoch, loss in enumerate(result.train_loss):
        evaluation = by_epoch.get(epoch)
        rows.append(
            [f"epoch {epoch + 1}", f"{loss:.5f}", *_cells(evaluation.metrics if evaluation else {}, shown)]
        )
        rows += _label_rows(evaluation.labels if evaluation else {}, shown)
    for each in evals:
        if each.split == "test":
            rows += [["test", "", *_cells(each.metrics, shown)], *_label_rows(each.labels, shown)]
    if result.best_reachable and shown is SHOWN_METRICS:
        rows += [
            ["best reachable", "", *_cells(result.best_reachable, shown)],
            *_label_rows(result.further_best, shown),
        ]
    return ["", "train loss", *(metric.title for metric in shown.values())], rows


def _label_rows(
    labels: Mapping[str, Mapping[str, float]], shown: Mapping[str, ShownMetric]
) -> list[list[str]]:
    return [[f"  {name}", "", *_cells(metrics, shown)] for name, metrics in labels.items()]


def _cells(metrics: Mapping[str, float], shown: Mapping[str, ShownMetric]) -> list[str]:
    """The ``shown`` ones of ``metrics``; empty cells for those that were not measured."""
    return [metric.text(metrics[name]) if name in metrics else "" for name, metric in shown.items()]
