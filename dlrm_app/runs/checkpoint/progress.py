"""How far a run has come: what it must know besides its tensors to go on."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Evaluation:
    """What the weights after ``step`` steps score on ``split``; ``epoch`` is that of the last step taken."""

    split: str
    epoch: int
    step: int
    metrics: Mapping[str, float]

    @property
    def comparable_auc(self) -> float:
        """Its AUC; -1, below any, where that is nan."""
        auc = self.metrics["auc"]
        return -1.0 if math.isnan(auc) else auc

    def to_json(self) -> dict[str, Any]:
        """One level: the metrics stand beside the step."""
        return {"split": self.split, "epoch": self.epoch, "step": self.step, **self.metrics}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Evaluation":
        """What ``to_json`` gave. Raises KeyError or TypeError."""
        rest = dict(value)
        split, epoch, step = rest.pop("split"), rest.pop("epoch"), rest.pop("step")
        if not (isinstance(epoch, int) and isinstance(step, int)):
            raise TypeError(f"epoch and step must be whole numbers, got {epoch!r} and {step!r}")
        return cls(split, epoch, step, rest)


@dataclass
class Progress:
    """Epochs done and batches of the one under way, steps and samples over all of them."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    samples: int = 0
    train_seconds: float = 0.0
    train_loss: list[float] = field(default_factory=list)
    """The mean over each epoch done."""
    skipped: list[int] = field(default_factory=list)
    """Steps that changed nothing, for their loss was no finite number (trainer.on_nonfinite=skip)."""
    evals: list[Evaluation] = field(default_factory=list)
    earlier_updates: int = 0
    """What the optimizers had counted when the run began with another's weights and their states."""

    @property
    def updates(self) -> int:
        """Steps of this run that changed the model."""
        return self.step - len(self.skipped)

    @property
    def counted_updates(self) -> int:
        """What optimizers count."""
        return self.earlier_updates + self.updates

    @property
    def last_epoch(self) -> int:
        """The epoch of the last step taken."""
        return self.epoch if self.batch else max(0, self.epoch - 1)

    @property
    def samples_per_second(self) -> float:
        """Throughput of all training so far, evaluations and saving left out."""
        return self.samples / max(self.train_seconds, 1e-9)

    def has_evaluated(self, split: str) -> bool:
        """Whether ``split`` was evaluated after the last step taken."""
        return any(each.split == split and each.step == self.step for each in self.evals)

    def best_val(self) -> Evaluation | None:
        """The evaluation on val with the highest AUC so far."""
        val = [each for each in self.evals if each.split == "val"]
        return max(val, key=lambda each: each.comparable_auc, default=None)

    def to_json(self) -> dict[str, Any]:
        """As it stands in complete.json."""
        value = {**asdict(self), "evals": [each.to_json() for each in self.evals]}
        if not self.earlier_updates:  # the files of runs that need it not stay as they were
            del value["earlier_updates"]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Progress":
        """What ``to_json`` gave. Raises KeyError or TypeError."""
        for key in ("epoch", "batch", "step", "samples", "earlier_updates"):
            if not isinstance(value.get(key, 0), int):
                raise TypeError(f"{key} must be a whole number, got {value[key]!r}")
        return cls(**{**value, "evals": [Evaluation.from_json(each) for each in value["evals"]]})


@dataclass(frozen=True)
class LossSums:
    """Training losses added up and not yet finished: ``sums`` by rank, of ``count`` steps that were not yet logged."""

    sums: list[float]
    count: int
    epoch_sum: float
    epoch_count: int
