"""The metrics that log lines, tables and pages show, in this order; metrics.jsonl and JSON results have all."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dlrm_app.config.metrics import METRICS, metric_of, split_name
from dlrm_app.text import fixed


@dataclass(frozen=True)
class ShownMetric:
    """A metric's title, its decimals, and a remark for those who see it alone."""

    title: str
    decimals: int
    remark: str

    def text(self, value: float | None) -> str:
        """``value`` as text; a dash if there is none."""
        return fixed(value, self.decimals)


SHOWN_METRICS = {
    "auc": ShownMetric("AUC", 5, "0.5 is chance"),
    "logloss": ShownMetric("log loss", 5, "nats a row"),
    "ne": ShownMetric("NE", 4, "1 is the mean rate alone"),
    "calibration": ShownMetric("calibration", 4, "predicted over observed clicks"),
}
EMA_METRICS = {name: SHOWN_METRICS[name] for name in ("auc", "logloss", "calibration")}
"""Metrics that an evaluation also reports for the averaged dense weights, named ema_*."""


def shown_of_groups(metrics: Iterable[str]) -> dict[str, ShownMetric]:
    """The metrics of groups among the names ``metrics``, in the order of ``config.metrics.METRICS``."""
    kinds = [*METRICS]
    found = {name: each for name in metrics if (each := metric_of(name)) is not None and each.of_groups}
    names = sorted(found, key=lambda name: kinds.index(split_name(name)[0]))
    return {name: ShownMetric(found[name].title, 5, "mean over groups") for name in names}


def metrics_text(
    metrics: Mapping[str, float], shown: Mapping[str, ShownMetric] = SHOWN_METRICS, prefix: str = ""
) -> str:
    """``AUC 0.78123, log loss 0.45678``: the ``shown`` ones of ``metrics``, whose names begin with ``prefix``."""
    return ", ".join(f"{each.title} {each.text(metrics.get(prefix + name))}" for name, each in shown.items())
