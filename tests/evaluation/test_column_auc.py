"""AUCs of lists: alone, and with the column whose values they share."""

import numpy as np
import pytest
from numpy.typing import NDArray

from dlrm_app.evaluation.column_auc import auc_of_lists, auc_of_pair

RNG = np.random.default_rng(3)
ROWS = 4000
ITEM = RNG.integers(0, 200, ROWS)
CLICK = RNG.random(ROWS) < 0.2


def lists_of(rows: list[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    values = np.array([value for row in rows for value in row], np.int64)
    return values, np.cumsum([0, *map(len, rows)])


def history() -> list[int]:
    return RNG.integers(0, 200, RNG.integers(0, 5)).tolist()


@pytest.mark.parametrize("place", ["first", "last", "within", "none"])
def test_a_list_that_holds_the_item_where_it_was_clicked_tells_the_label(place: str) -> None:
    rows = []
    for item, click in zip(ITEM.tolist(), CLICK, strict=True):
        before, after = history(), history()
        found = {"first": [item, *after], "last": [*before, item], "within": [*before, item, *after]}
        plain = [value for value in before + after if value != item] if place == "none" else before + after
        rows.append(found.get(place, plain) if click != (place == "none") else plain)
        if place == "none" and not click:
            rows[-1] = [*before, item]
    auc = auc_of_pair(ITEM, *lists_of(rows), CLICK)
    assert auc > 0.95


def test_a_list_that_knows_nothing_of_the_outcome_tells_nothing() -> None:
    rows = [history() + [item] * (number % 3 == 0) for number, item in enumerate(ITEM.tolist())]
    assert auc_of_pair(ITEM, *lists_of(rows), CLICK) == pytest.approx(0.5, abs=0.05)
    assert auc_of_lists(*lists_of(rows), CLICK) == pytest.approx(0.5, abs=0.05)


def test_missing_values_and_empty_lists_are_in_no_list() -> None:
    missing = np.full(ROWS, -1)
    assert auc_of_pair(missing, *lists_of([[]] * ROWS), CLICK) == 0.5


@pytest.mark.parametrize("what", ["length", "first", "last"])
def test_a_list_that_tells_the_label_alone_is_found(what: str) -> None:
    rows = []
    for click in CLICK.tolist():
        shown = [value + 10 for value in history()]
        changed = {"length": [*shown, *shown, 1, 2, 3, 4, 5], "first": [7, *shown], "last": [*shown, 7]}
        rows.append(changed[what] if click else shown)
    auc = auc_of_lists(*lists_of(rows), CLICK)
    assert auc > 0.9
