"""What an evaluation of checkpoints gives, as it lands on disk."""

from dataclasses import dataclass

from dlrm_app.evaluation.delong import Comparison, Interval
from dlrm_app.evaluation.importance import Importance


@dataclass(frozen=True)
class ModelResult:
    """What ``output`` tells of one model."""

    checkpoint: str
    step: int
    metrics: dict[str, float]
    auc_interval: Interval
    importance: Importance | None


@dataclass(frozen=True)
class EvaluationResult:
    """What ``output`` gets, as JSON: one or two models on the same rows."""

    dataset: str
    fingerprint: str
    split: str
    group_by: str | None
    confidence: float
    models: list[ModelResult]
    comparison: Comparison | None
