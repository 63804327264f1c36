"""Logs of several days: which ids live when, how the truth drifts, and that each day's best scores are true."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from dlrm_app.config.generate import GenerateConfig
from dlrm_app.tools.synthetic import generate
from dlrm_app.tools.synthetic.clicks import make_source, source_of_day
from dlrm_app.tools.synthetic.days import IdLifetimes, drifted
from dlrm_app.tools.synthetic.distribution import MISSING
from tests.composed import compose_config

pytestmark = pytest.mark.usefixtures("quick_pilot")


def config(output, *overrides):
    return compose_config("generate", GenerateConfig, [f"output={output}", "threads=2", *overrides])


def logs(folder):
    return {path.parent.name: path.read_bytes() for path in folder.glob("dt=*/clicks.tsv")}


def slow_days(cardinality, births, num_days):
    """The ids of each day by rank, from bands of ids that grow older: dead ones leave, born ones enter."""
    lifetime = cardinality // max(births, 1)
    rising = lifetime // 4
    order, ups, downs = [], list(reversed(range(rising))), list(range(rising, lifetime))
    while ups:
        order += [downs.pop(0), downs.pop(0), ups.pop(0)]
    order += downs
    bands, number = [], 0
    for _ in range(births):
        by_age = [0] * lifetime
        for age in order:
            by_age[age] = number
            number += 1
        bands.append(by_age)
    rest = list(range(births * lifetime, cardinality))
    number = cardinality
    for _ in range(num_days):
        yield [band[age] for band in bands for age in order] + rest
        for band in bands:
            band.insert(0, number)
            band.pop()
            number += 1


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_ids_live_as_the_slow_reference_says(sizes):
    cardinality, births = sizes
    lives = IdLifetimes(*np.array([[cardinality], [births], [cardinality // max(births, 1)]]))
    days = list(slow_days(cardinality, births, 12))
    ranks = np.arange(cardinality)[:, None]
    assert [lives.numbers(ranks, day)[:, 0].tolist() for day in range(12)] == days
    for before, after in pairwise(days):
        assert len(set(after) - set(before)) == births
        assert len(set(after)) == cardinality
    assert lives.numbers(np.array([[MISSING]]), 5).tolist() == [[MISSING]]


def test_the_share_of_new_ids_is_the_one_asked_for():
    lives = make_source(config("unused", "new_ids=0.05")).lives
    shares = lives.births / lives.cardinality
    many = lives.cardinality >= 1000
    assert np.abs(shares[many] - 0.05).max() < 0.001
    assert (lives.births[lives.cardinality < 20] == 0).all()
    assert (lives.births * lives.lifetime <= lives.cardinality).all()


def test_one_day_is_the_log_and_days_without_change_continue_it(tmp_path):
    generate(config(tmp_path / "one.tsv", "rows=2_000"))
    generate(config(tmp_path / "whole.tsv", "rows=6_000"))
    generate(config(tmp_path / "living", "rows=2_000", "days=2"))
    generate(config(tmp_path / "still", "rows=2_000", "days=3", "new_ids=0", "drift=0"))
    still, living = logs(tmp_path / "still"), logs(tmp_path / "living")
    assert list(living) == ["dt=2026-01-01", "dt=2026-01-02"] == sorted(still)[:2]
    assert b"".join(still[day] for day in sorted(still)) == (tmp_path / "whole.tsv").read_bytes()
    assert living["dt=2026-01-01"] == (tmp_path / "one.tsv").read_bytes()
    assert living["dt=2026-01-02"] != still["dt=2026-01-02"]


def test_best_scores_of_a_day_match_sklearn(tmp_path):
    asked = config(
        tmp_path / "log", "rows=20_000", "days=4", "new_ids=0.2", "drift=0.3", "first_day=2024-02-28"
    )
    bests = [*generate(asked).bests.values()]
    assert sorted(logs(tmp_path / "log")) == [f"dt=2024-0{date}" for date in ("2-28", "2-29", "3-01", "3-02")]
    for day, (name, text) in enumerate(sorted(logs(tmp_path / "log").items())):
        source = source_of_day(make_source(asked), day, 0.3, 0)
        _, probabilities, labels = source.block(day * 20_000, 20_000)[:3]
        assert [int(line[:1]) for line in text.splitlines()] == labels.tolist()
        best = json.loads((tmp_path / "log" / name / "clicks.tsv.best.json").read_text())
        assert abs(best["auc"] - roc_auc_score(labels, probabilities)) < 1e-5
        assert abs(best["logloss"] - log_loss(labels, probabilities)) < 1e-9
        assert (best["rows"], best["day"], bests[day].auc) == (20_000, day, best["auc"])
        for low in (0.1, 0.3, 0.5):  # the truth is calibrated on every day
            rows = (probabilities >= low) & (probabilities < low + 0.2)
            assert abs(labels[rows].mean() - probabilities[rows].mean()) < 0.03


@pytest.mark.parametrize("day", [1, 5])
def test_weights_keep_their_spread_and_drift_at_the_stated_rate(day):
    """Over all weights in units of their spread: the correlation is (1 - drift²)^(day / 2)."""
    source = make_source(config("unused", "new_ids=0"))
    first, later = source.signal, drifted(source.signal, source.lives, day, 0.5, seed=0)

    def standard(signal):
        effects = np.delete(signal.effects, 64, axis=1) / signal.effect_spread[:, None]
        curves = signal.curves / signal.curve_spread[:, None]
        return np.concatenate([effects.ravel(), curves.ravel(), signal.latent[:, :16].ravel()])

    a, b = standard(first), standard(later)
    assert abs(b.std() - 1) < 0.06
    assert abs(np.corrcoef(a, b)[0, 1] - 0.75 ** (day / 2)) < 0.06
    assert (later.effects[:, 64] == 0).all()
    assert (later.latent[:, 16] == 0).all()
    assert (first.weights == later.weights).all()


def test_a_weight_belongs_to_an_id_not_to_its_rank():
    """Without drift an id has one weight as long as it is among the ranks that tell, whatever its rank."""
    source = make_source(config("unused", "new_ids=0.1"))
    known = {}
    for day in range(8):
        signal = drifted(source.signal, source.lives, day, 0.0, seed=0)
        numbers = source.lives.numbers(np.repeat(np.arange(64)[:, None], 26, axis=1), day)
        for c in range(26):
            for rank in range(min(64, source.lives.cardinality[c])):
                weight = signal.effects[c, rank]
                assert known.setdefault((c, numbers[rank, c]), weight) == weight
    assert len(set(known.values())) > 26 * 64


def test_a_longer_log_begins_with_the_same_bytes(tmp_path):
    asked = ("rows=1_000", "new_ids=0.3")
    generate(config(tmp_path / "log", *asked, "days=2"))
    before = logs(tmp_path / "log")
    [problem] = config(tmp_path / "log", *asked, "days=3").problems()
    assert str(problem).endswith("exists: choose another name, or overwrite=true to replace it")
    longer = config(tmp_path / "log", *asked, "days=3", "overwrite=true")
    assert longer.problems() == []
    generate(longer)
    assert before.items() < logs(tmp_path / "log").items()


@pytest.mark.parametrize(
    ("setting", "refusal"),
    [
        ("first_day=2026-02-30", "first_day must be a date"),
        ("first_day=9999-12-31", "first_day must be a date that so many days can follow"),
        ("days=367", "days must"),
        ("new_ids=1.5", "new_ids must"),
        ("drift=-0.1", "drift must"),
    ],
)
def test_days_that_cannot_be_are_refused(tmp_path, setting, refusal):
    days = [] if setting.startswith("days") else ["days=2"]
    [problem] = config(tmp_path / "log", *days, setting).problems()
    assert str(problem).startswith(refusal)
