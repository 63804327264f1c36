"""Several tests against one run: p-values that account for their number."""

import itertools
import random

import pytest

from dlrm_app.reports.comparison.paired import holm


def test_an_example_by_hand() -> None:
    """Four tests: 4 × 0.005, 3 × 0.01, then 2 × 0.03 and, for it may not fall, 0.06 again."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


def test_it_rejects_what_closed_testing_rejects() -> None:
    """A hypothesis is rejected iff Bonferroni rejects every set of hypotheses that it is in (Marcus et al. 1976)."""
    draw = random.Random(0)
    for _ in range(200):
        p_values = [draw.random() ** 3 for _ in range(4)]
        closed = []
        for index in range(4):
            sets = [
                chosen
                for size in range(1, 5)
                for chosen in itertools.combinations(range(4), size)
                if index in chosen
            ]
            closed.append(min(1.0, max(len(chosen) * min(p_values[i] for i in chosen) for chosen in sets)))
        assert holm(p_values) == pytest.approx(closed)
