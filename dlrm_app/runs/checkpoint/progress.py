"""The progress of a run: steps, losses and evaluations."""

from dataclasses import dataclass, field

from dlrm_app.records import IF_SET
from dlrm_app.runs.checkpoint.evaluation import Evaluation, Judgement


@dataclass
class Progress:
    """Epochs done, batches done in the current epoch, and steps and samples in all.

    best: the name of the metric that says which evaluation is the best.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    samples: int = 0
    train_seconds: float = 0.0
    train_loss: list[float] = field(default_factory=list)
    """The mean loss of each epoch done."""
    evals: list[Evaluation] = field(default_factory=list)
    earlier_updates: int = field(default=0, metadata=IF_SET)
    """Steps that the optimizers had already counted when the run took over weights and states of another run."""
    best: str = "auc"
    untaught: dict[str, str] = field(default_factory=dict, metadata=IF_SET)
    """Label → the reason why neither this run nor one whose weights it took over could learn it."""

    @property
    def counted_updates(self) -> int:
        """Steps as the optimizers count them."""
        return self.earlier_updates + self.step

    @property
    def last_epoch(self) -> int:
        """The epoch of the last step taken."""
        return self.epoch if self.batch else max(0, self.epoch - 1)

    @property
    def samples_per_second(self) -> float:
        """Throughput of all training so far, without evaluations and saving."""
        return self.samples / max(self.train_seconds, 1e-9)

    def has_evaluated(self, split: str) -> bool:
        """True if ``split`` was evaluated after the last step taken."""
        return any(each.split == split and each.step == self.step for each in self.evals)

    def best_val(self) -> Evaluation | None:
        """The best evaluation on val so far, by ``best``."""
        val = [each for each in self.evals if each.split == "val"]
        return max(val, key=lambda each: each.merit(self.best), default=None)

    def val_merits(self, before: int) -> list[float]:
        """The metric that decides, higher is better, of the evaluations on val before step number ``before``."""
        return [each.merit(self.best)[0] for each in self.evals if each.split == "val" and each.step < before]

    @property
    def judgements(self) -> dict[str, Judgement]:
        """The judgements of the last evaluation on val: of the main label, as "", and of the others; none without one."""
        return next((each.by_label for each in reversed(self.evals) if each.split == "val"), {})


@dataclass(frozen=True)
class LossSums:
    """Sums of training losses: ``sums`` by rank, of ``count`` steps that are not logged yet, and those of the epoch.

    ``clicks``: the sums of ``instruments.click_sums`` by rank, of these steps.
    """

    sums: list[float]
    count: int
    epoch_sum: float
    epoch_count: int
    clicks: list[list[float]]
