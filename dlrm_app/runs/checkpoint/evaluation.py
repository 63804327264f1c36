"""The record of an evaluation, as a run and its checkpoints keep it: metrics and a verdict with likely causes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dlrm_app.config.metrics import merit
from dlrm_app.records import Json, Number
from dlrm_app.text import bullets

LEARNT, UNDECIDED = "learnt", "undecided"
CONSTANT, INVERTED, TOO_GOOD, DIVERGED = "no better than a constant", "inverted", "too good", "diverged"
"""Verdicts on an evaluation. A model with one of the second line must not be used."""
TOO_EARLY = "too early"
"""The cause of a verdict that may change before the run ends."""


@dataclass(frozen=True)
class Cause:
    """A likely cause of a bad verdict: the measurement that speaks for it, and the cure."""

    name: str
    measured: str
    cure: str


@dataclass(frozen=True)
class Judgement:
    """The verdict on one evaluation, also in words, its causes (the likeliest first) and the numbers measured."""

    verdict: str
    says: str
    causes: list[Cause] = field(default_factory=list)
    measured: dict[str, Number] = field(default_factory=dict)

    @property
    def is_bad(self) -> bool:
        """True if the model must not be used."""
        return self.verdict not in (LEARNT, UNDECIDED)

    @property
    def advice(self) -> list[str]:
        """A line for each cause, with its cure."""
        return [f"{cause.measured}: {cause.cure}" for cause in self.causes]

    @property
    def text(self) -> str:
        """The verdict, then a line for each cause."""
        if not self.causes:
            return self.says
        title = "the likely cause" if len(self.causes) == 1 else "the likely causes, the likeliest first"
        return f"{self.says}; {title}:\n{bullets(self.advice)}"


@dataclass(frozen=True)
class Evaluation:
    """Metrics on ``split`` after ``step`` steps.

    ``epoch``: the epoch of the last step taken.
    ``judgement``: None if it was not judged.
    ``labels``: the metrics of every other label, on its rows.
    ``judgements``: the judgements of the other labels.
    ``loss_weights``: of the main label, then of the others in the order of ``labels``; empty for one label.
    ``seconds``: the time that the evaluation took.
    """

    split: str
    epoch: int
    step: int
    metrics: Mapping[str, Number]
    judgement: Judgement | None = None
    labels: Mapping[str, Mapping[str, Number]] = field(default_factory=dict)
    judgements: Mapping[str, Judgement] = field(default_factory=dict)
    loss_weights: Sequence[float] = field(default_factory=list)
    seconds: float | None = None

    def of_label(self, name: str) -> "Evaluation":
        """The evaluation of another label."""
        judgement = self.judgements.get(name)
        return Evaluation(self.split, self.epoch, self.step, self.labels[name], judgement)

    @property
    def by_label(self) -> dict[str, Judgement]:
        """The judgement of the main label, as "", and those of the others."""
        main = {} if self.judgement is None else {"": self.judgement}
        return {**main, **self.judgements}

    def merit(self, metric: str) -> tuple[float, float]:
        """Orders evaluations of one split by ``metric``, as ``config.metrics.merit`` does.

        Of several labels it is the mean over those whose metric is defined, by the weights of their losses. It is
        undefined where the main label's is.
        """
        main = merit(metric, self.metrics)
        if not self.loss_weights or math.isinf(main[0]):
            return main
        each = [main[0], *(merit(metric, metrics)[0] for metrics in self.labels.values())]
        pairs = [
            (weight, value)
            for weight, value in zip(self.loss_weights, each, strict=True)
            if not math.isinf(value)
        ]
        return sum(w * value for w, value in pairs) / sum(w for w, _ in pairs), 0.0

    def decides(self, title: str) -> str:
        """The name of what ``merit`` orders by, from the metric's ``title``."""
        return f"mean {title} of all labels" if self.loss_weights else title

    def to_json(self) -> Json:
        """A flat dict: metrics and step have the same level."""
        judged = {} if self.judgement is None else {"judgement": asdict(self.judgement)}
        labels: Json = {"labels": self.labels} if self.labels else {}
        if self.judgements:
            labels["judgements"] = {name: asdict(each) for name, each in self.judgements.items()}
        if self.loss_weights:
            labels["loss_weights"] = [*self.loss_weights]
        return {
            "split": self.split,
            "epoch": self.epoch,
            "step": self.step,
            **self.metrics,
            **({} if self.seconds is None else {"seconds": self.seconds}),
            **judged,
            **labels,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Json:
        """The values of the fields in what ``to_json`` gave."""
        others = ("split", "epoch", "step", "judgement", "labels", "judgements", "loss_weights", "seconds")
        metrics = {name: number for name, number in value.items() if name not in others}
        return {**{name: value[name] for name in others if name in value}, "metrics": metrics}
