"""The likely causes of a bad verdict: a rule for each, from the measurements alone. Does not import torch."""

import math
from collections.abc import Callable, Mapping

from dlrm_app.evaluation.measurements import (
    FEW_STEPS,
    LEARNT_NE,
    LEAST_MOVED,
    NORMAL_99,
    Evidence,
    Leaks,
    ListAndColumn,
    Measurements,
)
from dlrm_app.runs.checkpoint.evaluation import INVERTED, LEARNT, TOO_EARLY, TOO_GOOD, UNDECIDED, Cause
from dlrm_app.text import count, listed, percent, short
from dlrm_app.typed import setting

LARGE_DENSE, LARGE_GROWTH, LARGE_ROWS = 1000.0, 5.0, 5.0
"""Limits: of a dense column's root mean square, of a layer's weights over fresh ones, and of a value in a table."""
SUSPECT_DENSE = 30.0
"""The limit of a dense column's root mean square if nothing else explains the verdict."""
MOST_SILENT = 0.8
"""The largest share of units that never fire."""
CROWDED = 10
"""The limit of values for each row of a table: with more, a model cannot tell a column's values apart."""


def strength(auc: float) -> float:
    """The AUC of a column in the direction that ranks better: 0.5 to 1."""
    return max(auc, 1 - auc)


def leaks_text(leaks: Leaks) -> str:
    """The columns that rank rows alone, in words."""
    names = sorted(leaks, key=lambda name: -strength(leaks[name]))
    best = strength(leaks[names[0]])
    return f"alone {listed([*map(str, names)])} {'ranks' if len(names) == 1 else 'rank'} train rows with an AUC of {best:.4f}"


def likely_causes(verdict: str, found: Measurements, evidence: Evidence, leaks: Leaks) -> list[Cause]:
    """The likely causes, the likeliest first: those that explain others come before them."""
    if verdict == UNDECIDED or (verdict == LEARNT and evidence.trained.is_early):
        return []
    if verdict == LEARNT:
        return [cause for cause in [_other_share(found, evidence)] if cause is not None]
    if verdict == TOO_GOOD:
        return [_leak(evidence, leaks)]
    rules: list[Callable[[Measurements, Evidence], Cause | None]] = [
        _one_class,
        _large_dense,
        _high_rate,
        _crowded,
        _unknown,
        _other_labels,
        _other_share,
        _few_steps,
        _overfitted,
        _shuffled,
    ]
    if verdict == INVERTED:
        rules = [_other_labels, _swapped]
    causes = [cause for rule in rules if (cause := rule(found, evidence)) is not None]
    smaller = None if causes or verdict == INVERTED else scale_cause(evidence.scales, SUSPECT_DENSE)
    return causes if smaller is None else [smaller]


def _leak(evidence: Evidence, leaks: Leaks) -> Cause:
    if leaks:
        name = max(leaks, key=lambda name: strength(leaks[name]))
        if isinstance(name, ListAndColumn):
            column, what = name.items, f"{name.items} holds {name.column} itself, written after the outcome"
        else:
            column, what = name, f"{name} is known only afterwards"
        cure = f"if {what}, give {column} role: ignore and preprocess again"
        return Cause("leaked column", leaks_text(leaks), cure)
    command = f"dlrm-check {setting('data.path', evidence.dataset)}"
    check = f"{command} counts rows of val and test that train has too"
    return Cause("rows in both splits", "no column alone explains it", check)


def _one_class(found: Measurements, evidence: Evidence) -> Cause | None:
    positives, rows = evidence.train
    if 0 < positives < rows:
        return None
    kind = "positive" if positives else "negative"
    cure = "check the label's column and its values in the description, and preprocess again"
    measured = (
        f"all {rows:,} rows of train are {kind}"
        if rows
        else "no row of train counts: none has the label, or they weigh 0"
    )
    return Cause("labels constant", measured, cure)


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
    measured = (
        f"values share rows: up to {short(most)} values for each row of a table ({listed(list(crowded))})"
    )
    return Cause(
        "one row for many ids",
        measured,
        "preprocess with a larger encoding.num_embeddings, or encoding=vocab",
    )


def _unknown(found: Measurements, evidence: Evidence) -> Cause | None:
    unknown = {name: value for name, value in evidence.unknown.items() if value > 0.5}
    if not unknown or 2 * len(unknown) < len(evidence.unknown):
        return None
    most = max(unknown, key=lambda name: unknown[name])
    measured = (
        f"{percent(unknown[most])} of the lookups of {found.split} in {listed(list(unknown))} "
        "are of values that train does not have"
    )
    return Cause("unknown ids", measured, "check that both inputs write these values in one way")


def _other_labels(found: Measurements, evidence: Evidence) -> Cause | None:
    (positives, rows), (others, num_others) = evidence.train, evidence.here
    if not (0 < positives < rows and num_others):
        return None
    then, now = positives / rows, others / num_others
    pooled = (positives + others) / (rows + num_others)
    error = math.sqrt(pooled * (1 - pooled) * (1 / rows + 1 / num_others))
    if abs(now - then) <= NORMAL_99 * error or 0.5 < now / then < 2:
        return None
    measured = f"{percent(then)} of train's rows are positive and {percent(now)} of {found.split}'s"
    cure = f"check the label's column and values in both inputs; {_SHARES}"
    return Cause("labels unlike between splits", measured, cure)


_SHARES = (
    "where one of them is a sample, say negatives_kept: {train: 0.1} in the description, the share of its negatives that "
    "were kept; weights by class raise all scores"
)


def _other_share(found: Measurements, evidence: Evidence) -> Cause | None:
    """Predictions are off by a factor although they rank the rows: the share of positives differs from that of train."""
    if not found.is_off_by_a_factor or abs(found.auc - 0.5) <= found.reach or _other_labels(found, evidence):
        return None
    measured = (
        f"it predicts {found.calibration:.3g} positives for each observed on {found.split}, though it ranks"
    )
    cure = f"{_SHARES}; if the share of positives has changed since train, trainer.calibrate=true fits that of val"
    return Cause("another share of positives", measured, cure)


def _swapped(found: Measurements, evidence: Evidence) -> Cause | None:
    measured = f"what raises the label in train lowers it in {found.split}"
    cure = "check which value of the label means a click in each input: 1 must mean it in both"
    return Cause("labels inverted", measured, cure)


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
    measured = f"{trained} at this rate move a weight by about {short(moved)}"
    return Cause("learning rate too low", measured, f"raise {_rates(evidence)}")


def _rates(evidence: Evidence) -> str:
    return (
        " or ".join(f"{key} ({value:g})" for key, value in evidence.trained.rates.items())
        or "the learning rate"
    )


def _overfitted(found: Measurements, evidence: Evidence) -> Cause | None:
    if found.train_ne is None or found.train_ne > LEARNT_NE or not found.ne > found.train_ne:
        return None
    measured = f"the train loss is {found.train_ne:.3f} of a constant's, that on {found.split} {found.ne:.3f}"
    if abs(found.auc - 0.5) <= found.reach:
        return Cause(
            "labels unlike between splits",
            measured,
            f"check that labels and rows of {found.split} belong together",
        )
    cure = "stop earlier (evaluation.patience=1, which=best), or give rare values one id (encoding.min_count)"
    if not 0.8 < found.calibration < 1.25:
        measured += f", and it predicts {found.calibration:.3g} clicks for each observed"
        cure += f"; {_SHARES}; trainer.calibrate=true fits the share of clicks"
    return Cause("overfitting", measured, cure)


def _shuffled(found: Measurements, evidence: Evidence) -> Cause | None:
    if any(rule(found, evidence) for rule in (_one_class, _large_dense, _high_rate, _crowded, _overfitted)):
        return None
    if found.train_ne is None or found.train_ne < LEARNT_NE or evidence.trained.is_early:
        return None
    if abs(found.auc - 0.5) > found.reach:  # a model of shuffled labels cannot rank rows
        return None
    measured = f"the train loss is {found.train_ne:.3f} of a constant's too"
    cure = "check that labels belong to their rows: shuffled labels, a wrong join or a shifted column look like this"
    return Cause("labels shuffled", measured, cure)
