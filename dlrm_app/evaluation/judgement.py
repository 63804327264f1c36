"""Judges an evaluation from its measurements: has the model learnt, nothing, too much, or the opposite? The likeliest
causes are those of ``causes``. Pure functions; ``evidence`` measures what they need. Does not import torch.
"""

import math

from dlrm_app.evaluation.causes import leaks_text, likely_causes, strength
from dlrm_app.evaluation.measurements import FEW_STEPS, LEARNT_NE, NORMAL_99, Evidence, Leaks, Measurements
from dlrm_app.runs.checkpoint.evaluation import (
    CONSTANT,
    DIVERGED,
    INVERTED,
    LEARNT,
    TOO_GOOD,
    UNDECIDED,
    Judgement,
)
from dlrm_app.text import short

MOST_NE, MOST_AUC, MOST_COLUMN_AUC = 0.999, 0.99, 0.95
"""Limits: of a useful NE, of a credible AUC, and of the AUC of one column alone."""
HIGH_AUC = 0.9
"""The AUC from which columns are measured alone: a model may not have learnt all of a leaked column yet."""
NARROW, NARROW_NE = 0.05, 0.01
"""Half the widths of intervals that decide: a useful model would have an AUC outside of 0.5 ± NARROW, and an
NE below 1 - NARROW_NE.
"""
DIVERGED_FACTOR = 2.0
"""Train loss over that of a constant."""


def needs_evidence(found: Measurements) -> bool:
    """False if the model has learnt, but not so much that a column may give the outcome away."""
    return _verdict(found) != LEARNT or found.auc > HIGH_AUC or found.is_off_by_a_factor


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
        leaks = {name: auc for name, auc in evidence.column_aucs.items() if strength(auc) > MOST_COLUMN_AUC}
        if verdict == LEARNT and leaks:
            verdict = TOO_GOOD
        if verdict != LEARNT:
            model = {"silent_units": evidence.silent, "weight_growth": evidence.growth}
            model |= {"largest_table_value": evidence.table_values, "logit_deviation": evidence.spread}
            measured |= {name: value for name, value in model.items() if value is not None}
    causes = [] if evidence is None else likely_causes(verdict, found, evidence, leaks)
    known = {name: value for name, value in measured.items() if math.isfinite(value)}
    return Judgement(verdict, _says(verdict, found, evidence, leaks), causes, known)


def judged_where_given(judgement: Judgement | None) -> Judgement | None:
    """The ``judgement`` of a label on the rows where the one that it is given is 1; None if it must not count.

    Clicks may not predict the order that follows; then only the product is judged.
    """
    return judgement if judgement is not None and judgement.verdict == TOO_GOOD else None


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


def _says(verdict: str, found: Measurements, evidence: Evidence | None, leaks: Leaks) -> str:
    rows = f"{found.num_samples:,} rows of {found.split}"
    if not found.num_samples:
        return "no rows"
    if not found.has_classes:
        kind = "positive" if found.positives else "negative"
        why = f"all {rows} are {kind}"
        if 0 < found.positives < found.num_samples:
            why = f"of {rows} the positives, the negatives or both weigh 0"
        return f"nothing can be said about ranking: {why}"
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
        column = f"; {leaks_text(leaks)}" if leaks else ""
        return f"too good to be true: AUC {found.auc:.5f} on {rows}{column}"
    if verdict == CONSTANT:
        ranks = (
            f"AUC {found.auc:.5f}; {chance}"
            if abs(found.auc - 0.5) <= found.reach
            else f"AUC {found.auc:.5f}"
        )
        yet = " so far" if evidence is not None and evidence.trained.is_early else ""
        return f"no better than a constant{yet}: NE {found.ne:.4f} (a constant has 1), {ranks}"
    off = f", but its calibration is {found.calibration:.3g}" if found.is_off_by_a_factor else ""
    return f"better than a constant: NE {found.ne:.4f}, AUC {found.auc:.5f} on {rows}{off}"
