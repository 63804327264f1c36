"""The gate: a table of rules that hold a day back.

Each rule measures one number and compares it with its limit, a key of ``gate``. Before training, a day is compared with
the days published before it. After training, the new model is compared with yesterday's on the held-out rows. Shuffled
labels can only be found before training: the held-out rows have shuffled labels too, on which every model scores alike.

A change is also compared with the *usual* change: the spread of earlier days, measured by the median absolute
deviation, which a few odd days hardly change. Rules on shares of clicks and of missing values, on hours and on metrics
first subtract what chance may explain with so few rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dlrm_app.table import Column, Columns, Rows
from dlrm_app.text import short
from dlrm_app.tools.daily.record import Verdict
from dlrm_app.tools.daily.row_rules import (
    check_clicks,
    check_hours,
    check_known_rows,
    check_labels,
    check_missing,
    check_rows,
    check_shift,
    check_unseen,
    check_weights,
)
from dlrm_app.tools.daily.score_rules import (
    check_auc,
    check_calibration,
    check_learnt,
    check_ne,
    check_new_auc,
    check_new_calibration,
    check_new_logloss,
)
from dlrm_app.tools.daily.usual import ComparedDay, Rule

_OF = " of "
"""The text between a rule and the other label that it judges."""


def judge_before(compared: ComparedDay) -> list[Verdict]:
    """The verdicts of all rules that need no training."""
    rules = (
        check_rows,
        check_labels,
        check_clicks,
        check_weights,
        check_missing,
        check_unseen,
        check_shift,
        check_known_rows,
        check_hours,
        check_auc,
        check_ne,
        check_calibration,
    )
    return [
        *_verdicts(rules, compared),
        *_of_labels((check_labels, check_clicks, check_auc, check_ne, check_calibration), compared),
    ]


def judge_after(compared: ComparedDay) -> list[Verdict]:
    """The verdicts of the rules on the new model, by the held-out rows."""
    rules = (check_learnt, check_new_auc, check_new_logloss, check_new_calibration)
    return [*_verdicts(rules, compared), *_of_labels(rules, compared)]


COMPARED = ("new auc", "new log loss")
"""Rules that ``days.accept`` does not overrule: they show that the new model is worse than yesterday's."""


def _verdicts(rules: Sequence[Rule], compared: ComparedDay) -> list[Verdict]:
    return [verdict for rule in rules if (verdict := rule(compared)) is not None]


def _of_labels(rules: Sequence[Rule], compared: ComparedDay) -> list[Verdict]:
    """The verdicts of ``rules`` for each other label that the day has."""
    found = []
    for name, label in compared.day.labels.items():
        if not label.rows:  # the share of rows without it is judged by the rule missing
            continue
        before = [record.of_label(name) for record in compared.published if name in record.labels]
        for verdict in _verdicts(rules, replace(compared, day=compared.day.of_label(name), published=before)):
            rule, says = f"{verdict.rule}{_OF}{name}", f"{name}: {verdict.says}"
            found.append(replace(verdict, rule=rule, says=says))
    return found


def why_held(verdicts: Iterable[Verdict], *, is_accepted: bool = False) -> str | None:
    """The reasons why the day is held back, in one line; None if it is not.

    ``is_accepted``: the user accepts the day, which overrules all rules but COMPARED.
    """
    held = [
        each
        for each in verdicts
        if each.holds and (not is_accepted or each.rule.partition(_OF)[0] in COMPARED)
    ]
    return "; ".join(f"{each.says} ({each.cure})" if each.cure else each.says for each in held) or None


def rules_rows(verdicts: Sequence[Verdict]) -> tuple[Columns, Rows]:
    rows: Rows = [
        [each.rule, short(each.value), short(each.limit), "held" if each.holds else "passed", each.says]
        for each in verdicts
    ]
    words = [Column(title, is_words=True) for title in ("rule", "verdict", "")]
    return [words[0], "measured", "limit", *words[1:]], rows
