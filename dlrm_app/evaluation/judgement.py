"""Judges an evaluation from its measurements: has the model learnt, nothing, too much, or the opposite, and what is
the likeliest cause? Pure functions; ``evidence`` measures what they need. Does not import torch.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dlrm_app.runs.checkpoint.evaluation import (
    CONSTANT,
    DIVERGED,
    INVERTED,
    LEARNT,
    TOO_EARLY,
    TOO_GOOD,
    UNDECIDED,
    Cause,
    Judgement,
)
from dlrm_app.text import count, listed, percent, short
from dlrm_app.typed import setting

NORMAL_99 = 2.5758
"""Standard errors on each side of a 99% interval. With 95%, one evaluation of noise in twenty would have a verdict."""
MOST_NE, MOST_AUC, MOST_COLUMN_AUC = 0.999, 0.99, 0.95
"""Limits: of a useful NE, of a credible AUC, and of the AUC of one column alone."""
HIGH_AUC = 0.9
"""From this AUC on, columns are looked at alone: a model may not have learnt yet all that a leaked one tells."""
LEARNT_NE = 0.99
"""A loss below this part of a constant's: there is something to learn, and the model has learnt it."""
NARROW, NARROW_NE = 0.05, 0.01
"""Half the widths of intervals that decide: a useful model would have an AUC outside
of 0.5 ± NARROW, and an NE below 1 - NARROW_NE.
"""
DIVERGED_FACTOR = 2.0
"""Train loss over that of a constant."""
FEW_STEPS, LEAST_MOVED = 30, 0.01
"""Limits: of steps, and of learning rate times steps, about the most that Adam and Adagrad move a weight."""
LARGE_DENSE, LARGE_GROWTH, LARGE_ROWS = 1000.0, 5.0, 5.0
"""Limits: of a dense column's root mean square, of a layer's weights over fresh ones, and of a value in a table."""
SUSPECT_DENSE = 30.0
"""The limit of a dense column's root mean square if nothing else explains the verdict."""
MOST_SILENT = 0.8
"""The largest share of units that never fire."""
CROWDED = 10
"""Values for each row of a table, from which on a column's values cannot be told apart."""


@dataclass(frozen=True)
class Measurements:
    """One evaluation. ``ne_error``: the standard error of ``ne``; ``train_ne``:
    the epoch's mean loss over that of a constant.

    ``train_ne`` is None if it cannot be compared: labels of one class, a teacher's
    scores. ``steps``: taken so far, None if unknown.
    """

    split: str
    num_samples: int
    positives: int
    auc: float
    ne: float
    ne_error: float
    calibration: float
    train_ne: float | None = None
    steps: int | None = None
    effective: tuple[float, float] | None = None
    """The effective numbers of positives and negatives, of rows with weights; None: those of the rows."""

    @classmethod
    def of(
        cls,
        split: str,
        metrics: Mapping[str, float],
        ne_error: float,
        train_ne: float | None = None,
        steps: int | None = None,
    ) -> "Measurements":
        """Takes ``metrics`` as ``ClickMetrics`` computes them."""
        counts = int(metrics["num_samples"]), int(metrics["positives"])
        numbers = metrics["auc"], metrics["ne"], ne_error, metrics["calibration"]
        return cls(split, *counts, *numbers, train_ne, steps, effective_numbers(metrics))

    @property
    def has_classes(self) -> bool:
        """True if the rows have labels of both classes."""
        if self.effective is not None:
            return min(self.effective) > 0
        return 0 < self.positives < self.num_samples

    @property
    def reach(self) -> float:
        """Half the 99% interval of the AUC of scores that know nothing (Mann & Whitney 1947).

        It needs no pass over the rows. Rows with weights count as their effective numbers (Kish 1965).
        """
        positives, negatives = self.effective or (self.positives, self.num_samples - self.positives)
        return NORMAL_99 * math.sqrt((positives + negatives + 1) / (12 * positives * negatives))


def effective_numbers(metrics: Mapping[str, float]) -> tuple[float, float] | None:
    """The effective numbers of positives and negatives in ``metrics``; None if rows have no weights."""
    if "weight" not in metrics:
        return None
    return metrics["effective_positives"], metrics["effective_negatives"]


@dataclass(frozen=True)
class TrainedSoFar:
    """The training of a model until now: steps, rows, key of a learning rate
    → value, and the steps of the whole run.
    """

    steps: int
    rows: int
    rates: Mapping[str, float] = field(default_factory=dict)
    planned: int = 0

    @property
    def is_early(self) -> bool:
        """True if it is too early to expect a useful model."""
        return self.steps < FEW_STEPS or 2 * self.steps < self.planned


@dataclass(frozen=True)
class Evidence:
    """Measurements that tell causes apart; those that were not made are empty or None.

    ``train``, ``here``: (positives, rows) of the train split and of the split judged, or the sums of their weights. By
    column:
    ``scales`` (root mean square of dense values), ``column_aucs`` (of the column alone), ``crowded`` (raw
    values for each row of the table), ``unknown`` (share of lookups of values that train does not have,
    beyond that share among train's own rows). Of the model: ``silent`` (share of units that never fire),
    ``growth`` (root mean square of a layer's weights over that of fresh ones), ``table_values`` (largest
    weight in a table), ``spread`` (standard deviation of logits).
    """

    train: tuple[float, float]
    here: tuple[float, float]
    trained: TrainedSoFar
    dataset: str = ""
    scales: Mapping[str, float] = field(default_factory=dict)
    column_aucs: Mapping[str, float] = field(default_factory=dict)
    crowded: Mapping[str, float] = field(default_factory=dict)
    unknown: Mapping[str, float] = field(default_factory=dict)
    silent: float | None = None
    growth: float | None = None
    table_values: float | None = None
    spread: float | None = None


def needs_evidence(found: Measurements) -> bool:
    """True unless the model has learnt, and not so much that a column may give the outcome away."""
    return _verdict(found) != LEARNT or found.auc > HIGH_AUC


def judge(found: Measurements, evidence: Evidence | None) -> Judgement:
    """The judgement. ``evidence``: measured if ``needs_evidence``."""
    verdict = _verdict(found)
    measured = {
        "auc": found.auc,
        "ne": found.ne,
        "num_samples": found.num_samples,
        "auc_reach": found.reach if found.has_classes else math.nan,
        "train_ne": math.nan if found.train_ne is None else found.train_ne,
    }
    leaks = {}
    if evidence is not None:
        leaks = {name: auc for name, auc in evidence.column_aucs.items() if _strength(auc) > MOST_COLUMN_AUC}
        if verdict == LEARNT and leaks:
            verdict = TOO_GOOD
        if verdict != LEARNT:
            model = {"silent_units": evidence.silent, "weight_growth": evidence.growth}
            model |= {"largest_table_value": evidence.table_values, "logit_deviation": evidence.spread}
            measured |= {name: value for name, value in model.items() if value is not None}
    causes = [] if evidence is None else _causes(verdict, found, evidence, leaks)
    known = {name: value for name, value in measured.items() if math.isfinite(value)}
    return Judgement(verdict, _says(verdict, found, evidence, leaks), causes, known)


def _verdict(found: Measurements) -> str:
    """The verdict from the metrics alone; a column that gives the outcome away is found by ``judge``."""
    if not found.num_samples or not found.has_classes:
        return UNDECIDED
    is_bad = math.isnan(found.auc) or not found.ne < MOST_NE
    # a bias that is fitted at the end (trainer.calibrate) hides a part of what went wrong from ne
    has_diverged = (found.train_ne or 0.0) > DIVERGED_FACTOR and not found.ne < LEARNT_NE
    if math.isnan(found.auc) or has_diverged:
        return DIVERGED
    ahead, reach = found.auc - 0.5, found.reach
    if ahead < -reach:
        # weights that have learnt nothing yet may rank rows against the label too
        is_trained = found.steps is None or found.steps >= FEW_STEPS
        has_learnt = found.train_ne is None or found.train_ne < 1.0
        return INVERTED if is_trained and has_learnt else CONSTANT
    if found.auc > MOST_AUC and ahead > reach:
        return TOO_GOOD
    if abs(ahead) <= reach:
        is_certain = reach < NARROW or found.ne - NORMAL_99 * found.ne_error > MOST_NE
        return CONSTANT if is_certain else UNDECIDED
    if not is_bad:
        return LEARNT
    reach = NORMAL_99 * found.ne_error
    return CONSTANT if reach < NARROW_NE or found.ne - reach >= MOST_NE else UNDECIDED


def _says(verdict: str, found: Measurements, evidence: Evidence | None, leaks: Mapping[str, float]) -> str:
    """The verdict as a sentence, with the numbers behind it."""
    rows = f"{found.num_samples:,} rows of {found.split}"
    if not found.has_classes:
        kind = "positive" if found.positives else "negative"
        return f"nothing can be said about ranking: all {rows} are {kind}" if found.num_samples else "no rows"
    low, high = 0.5 - found.reach, 0.5 + found.reach
    chance = f"scores without any knowledge have {low:.3f} to {high:.3f} on {rows}"
    if verdict == UNDECIDED and abs(found.auc - 0.5) <= found.reach:
        return f"cannot be told apart from chance on {rows}: AUC {found.auc:.5f}, and {chance}"
    if verdict == UNDECIDED:
        error = f"± {NORMAL_99 * found.ne_error:.4f}"
        return (
            f"its log loss cannot be told apart from a constant's on {rows}: NE {found.ne:.4f} {error}, "
            f"though it ranks (AUC {found.auc:.5f})"
        )
    if verdict == DIVERGED:
        train = (
            ""
            if found.train_ne is None
            else f"the train loss is {short(found.train_ne)} times that of a constant, "
        )
        return f"diverged: {train}NE on {found.split} {short(found.ne)}"
    if verdict == INVERTED:
        return f"inverted: AUC {found.auc:.5f} is worse than chance ({chance})"
    if verdict == TOO_GOOD:
        column = f"; {_columns(leaks)}" if leaks else ""
        return f"too good to be true: AUC {found.auc:.5f} on {rows}{column}"
    if verdict == CONSTANT:
        ranks = (
            f"AUC {found.auc:.5f}; {chance}"
            if abs(found.auc - 0.5) <= found.reach
            else f"AUC {found.auc:.5f}"
        )
        yet = " so far" if evidence is not None and evidence.trained.is_early else ""
        return f"no better than a constant{yet}: NE {found.ne:.4f} (a constant has 1), {ranks}"
    return f"better than a constant: NE {found.ne:.4f}, AUC {found.auc:.5f} on {rows}"


def _strength(auc: float) -> float:
    return max(auc, 1 - auc)


def _columns(leaks: Mapping[str, float]) -> str:
    names = sorted(leaks, key=lambda name: -_strength(leaks[name]))
    best = _strength(leaks[names[0]])
    return (
        f"alone {listed(names)} {'ranks' if len(names) == 1 else 'rank'} train rows with an AUC of {best:.4f}"
    )


def _causes(verdict: str, found: Measurements, evidence: Evidence, leaks: Mapping[str, float]) -> list[Cause]:
    """The likely causes, the likeliest first: those that explain others come before them."""
    if verdict in (LEARNT, UNDECIDED):
        return []
    if verdict == TOO_GOOD:
        return [_leak(evidence, leaks)]
    rules: list[Callable[[Measurements, Evidence], Cause | None]] = [
        _one_class,
        _large_dense,
        _high_rate,
        _crowded,
        _unknown,
        _other_labels,
        _few_steps,
        _overfitted,
        _shuffled,
    ]
    if verdict == INVERTED:
        rules = [_other_labels, _swapped]
    causes = [cause for rule in rules if (cause := rule(found, evidence)) is not None]
    smaller = None if causes or verdict == INVERTED else scale_cause(evidence.scales, SUSPECT_DENSE)
    return causes if smaller is None else [smaller]


def _leak(evidence: Evidence, leaks: Mapping[str, float]) -> Cause:
    if leaks:
        name = max(leaks, key=lambda name: _strength(leaks[name]))
        cure = f"if {name} is known only after the click, give it role: ignore and preprocess again"
        return Cause("leaked column", _columns(leaks), cure)
    check = f"dlrm-check {setting('data.path', evidence.dataset)} counts rows of {{}} that train has too"
    return Cause("rows in both splits", "no column alone explains it", check.format("val and test"))


def _one_class(found: Measurements, evidence: Evidence) -> Cause | None:
    positives, rows = evidence.train
    if 0 < positives < rows:
        return None
    kind = "positive" if positives else "negative"
    cure = "check the label's column and its values in the description, and preprocess again"
    return Cause("labels constant", f"all {rows:,} rows of train are {kind}", cure)


def scale_cause(scales: Mapping[str, float], limit: float = LARGE_DENSE) -> Cause | None:
    """The cause that dense columns are too large for a layer to learn from; ``scales``: column → root mean square."""
    large = {name: value for name, value in scales.items() if not value < limit}
    if not large:
        return None
    name = max(large, key=lambda name: large[name])
    cure = f"preprocess with dense.transform={{{name}: standardize}} or log1p; a lower learning rate does not help"
    also = f", and {listed([other for other in large if other != name])} too" if len(large) > 1 else ""
    return Cause("scale of a dense column", f"values of {name} are of size {short(large[name])}{also}", cure)


def _large_dense(found: Measurements, evidence: Evidence) -> Cause | None:
    return scale_cause(evidence.scales)


def _high_rate(found: Measurements, evidence: Evidence) -> Cause | None:
    has_learnt_train = found.train_ne is not None and found.train_ne < LEARNT_NE
    if has_learnt_train or _large_dense(found, evidence) or _one_class(found, evidence):
        return None
    signs = []
    if (evidence.growth or 0.0) > LARGE_GROWTH:
        signs.append(f"a layer's weights are {short(evidence.growth)} times as large as fresh ones")
    if (evidence.table_values or 0.0) > LARGE_ROWS:
        signs.append(f"table weights reach {short(evidence.table_values)}")
    if (evidence.silent or 0.0) > MOST_SILENT:
        signs.append(f"{percent(evidence.silent)} of the units never fire")
    if not signs and (found.train_ne or 0.0) > 1.2:
        signs.append(f"the train loss is {short(found.train_ne)} times that of a constant")
    if not signs:
        return None
    cure = f"lower {_rates(evidence)}, or choose a schedule with a warm-up"
    return Cause("learning rate too high", " and ".join(signs), cure)


def _crowded(found: Measurements, evidence: Evidence) -> Cause | None:
    crowded = {name: value for name, value in evidence.crowded.items() if value > CROWDED}
    if not crowded or 2 * len(crowded) < len(evidence.crowded):
        return None
    most = max(crowded.values())
    says = f"values share rows: up to {short(most)} values for each row of a table ({listed(list(crowded))})"
    return Cause(
        "one row for many ids", says, "preprocess with a larger encoding.num_embeddings, or encoding=vocab"
    )


def _unknown(found: Measurements, evidence: Evidence) -> Cause | None:
    unknown = {name: value for name, value in evidence.unknown.items() if value > 0.5}
    if not unknown or 2 * len(unknown) < len(evidence.unknown):
        return None
    most = max(unknown, key=lambda name: unknown[name])
    says = (
        f"{percent(unknown[most])} of the lookups of {found.split} in {listed(list(unknown))} "
        "are of values that train does not have"
    )
    return Cause("unknown ids", says, "check that both inputs write these values in one way")


def _other_labels(found: Measurements, evidence: Evidence) -> Cause | None:
    (positives, rows), (others, num_others) = evidence.train, evidence.here
    if not (0 < positives < rows and num_others):
        return None
    then, now = positives / rows, others / num_others
    pooled = (positives + others) / (rows + num_others)
    error = math.sqrt(pooled * (1 - pooled) * (1 / rows + 1 / num_others))
    if abs(now - then) <= NORMAL_99 * error or 0.5 < now / then < 2:
        return None
    says = f"{percent(then)} of train's rows are positive and {percent(now)} of {found.split}'s"
    return Cause("labels unlike between splits", says, "check the label's column and values in both inputs")


def _swapped(found: Measurements, evidence: Evidence) -> Cause | None:
    says = f"what raises the label in train lowers it in {found.split}"
    cure = "check which value of the label means a click in each input (positive: in the description)"
    return Cause("labels inverted", says, cure)


def _few_steps(found: Measurements, evidence: Evidence) -> Cause | None:
    trained = f"{count(evidence.trained.steps, 'step')} of training ({evidence.trained.rows:,} rows)"
    if evidence.trained.steps < evidence.trained.planned and evidence.trained.is_early:
        share = percent(evidence.trained.steps / evidence.trained.planned)
        return Cause(TOO_EARLY, f"only {trained}, {share} of the run", "wait for the next evaluations")
    if evidence.trained.steps < FEW_STEPS:
        return Cause(
            "too few steps", f"only {trained}", "more trainer.epochs, or a smaller trainer.global_batch_size"
        )
    moved = evidence.trained.steps * max(evidence.trained.rates.values(), default=1.0)
    if moved >= LEAST_MOVED:
        return None
    says = f"{trained} at this rate move a weight by about {short(moved)}"
    return Cause("learning rate too low", says, f"raise {_rates(evidence)}")


def _rates(evidence: Evidence) -> str:
    return (
        " or ".join(f"{key} ({value:g})" for key, value in evidence.trained.rates.items())
        or "the learning rate"
    )


def _overfitted(found: Measurements, evidence: Evidence) -> Cause | None:
    if found.train_ne is None or found.train_ne > LEARNT_NE or not found.ne > found.train_ne:
        return None
    says = f"the train loss is {found.train_ne:.3f} of a constant's, that on {found.split} {found.ne:.3f}"
    if abs(found.auc - 0.5) <= found.reach:
        return Cause(
            "labels unlike between splits",
            says,
            f"check that labels and rows of {found.split} belong together",
        )
    cure = "stop earlier (evaluation.patience=1, which=best), or give rare values one id (encoding.min_count)"
    if not 0.8 < found.calibration < 1.25:
        says += f", and it predicts {found.calibration:.3g} clicks for each observed"
        cure += "; trainer.calibrate=true fits the share of clicks"
    return Cause("overfitting", says, cure)


def _shuffled(found: Measurements, evidence: Evidence) -> Cause | None:
    if any(rule(found, evidence) for rule in (_one_class, _large_dense, _high_rate, _crowded, _overfitted)):
        return None
    if found.train_ne is None or found.train_ne < LEARNT_NE or evidence.trained.is_early:
        return None
    if abs(found.auc - 0.5) > found.reach:  # rows cannot be ranked by labels of others
        return None
    says = f"the train loss is {found.train_ne:.3f} of a constant's too"
    cure = "check that labels belong to their rows: shuffled labels, a wrong join or a shifted column look like this"
    return Cause("labels shuffled", says, cure)
