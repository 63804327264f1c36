"""Synthetic click logs: their form, their determinism, and that the best scores written beside them are true."""

import gzip
import json

import numpy as np
import pytest
from scipy.sparse import csr_matrix, hstack
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.preprocessing import OneHotEncoder

from dlrm_app.config.generate import GenerateConfig
from dlrm_app.tools.synthetic import generate
from dlrm_app.tools.synthetic.clicks import make_source
from dlrm_app.tools.synthetic.distribution import (
    CARDINALITIES,
    DENSE_MISSING,
    MISSING,
    MISSING_VALUE,
    SPARSE_MISSING,
    criteo_shape,
    draw_rows,
)
from dlrm_app.tools.synthetic.signal import Tally, expected_auc
from tests.composed import compose_config


def config(output, *overrides):
    return compose_config("generate", GenerateConfig, [f"output={output}", *overrides])


def write(output, *overrides):
    generate(config(output, *overrides))
    return output.read_bytes()


@pytest.fixture(scope="module")
def source():
    return make_source(config("unused.tsv"))


@pytest.fixture(scope="module")
def sample(source):
    """Dense values, ranks, true probabilities and labels of 100,000 rows."""
    num_rows = 100_000
    values, ranks, _ = draw_rows(source.shape, source.row_key, 0, num_rows)
    _, probabilities, labels = source.block(0, num_rows)[:3]
    return values, ranks, probabilities, labels


def test_the_text_holds_the_drawn_values(source):
    """A label, 13 integers and 26 ids of eight hex digits a line; what is missing is empty."""
    values, ranks, draws = draw_rows(source.shape, source.row_key, 500, 1000)
    text, probabilities, labels = source.block(500, 1000)[:3]
    rows = [line.split("\t") for line in text.decode().splitlines()]
    assert [int(row[0]) for row in rows] == labels.tolist() == (draws < probabilities).astype(int).tolist()
    assert {len(row) for row in rows} == {40}
    for c in range(13):
        assert [int(row[1 + c]) if row[1 + c] else MISSING_VALUE for row in rows] == values[:, c].tolist()
    for c in range(26):
        ids = [row[14 + c] for row in rows]
        assert all(name == "" or f"{int(name, 16):08x}" == name for name in ids)
        assert [name == "" for name in ids] == (ranks[:, c] == MISSING).tolist()
        assert len(set(zip(ids, ranks[:, c], strict=True))) == len(set(ids)) == len(set(ranks[:, c]))


@pytest.mark.usefixtures("quick_pilot")
def test_a_seed_gives_the_same_bytes_with_any_threads(tmp_path):
    one = write(tmp_path / "one.tsv", "rows=40_000", "threads=1", "seed=5")
    three = write(tmp_path / "three.tsv", "rows=40_000", "threads=3", "seed=5")
    other = write(tmp_path / "other.tsv", "rows=1_000", "seed=6")
    assert one == three
    assert not one.startswith(other)
    best = [json.loads((tmp_path / f"{name}.tsv.best.json").read_text()) for name in ("one", "three")]
    assert best[0] == best[1]


@pytest.mark.usefixtures("quick_pilot")
def test_files_from_a_later_row_continue_the_first_file(tmp_path):
    """Also where the whole is compressed."""
    whole = gzip.decompress(write(tmp_path / "whole.tsv.gz", "rows=20_000"))
    head = write(tmp_path / "head.tsv", "rows=17_001")
    tail = write(tmp_path / "tail.tsv", "rows=2_999", "start_row=17_001")
    assert head + tail == whole
    assert whole.count(b"\n") == 20_000


def test_missing_values_have_criteos_rates_and_joint_rates(sample):
    values, ranks, _, _ = sample
    missing = np.concatenate([values == MISSING_VALUE, ranks == MISSING], axis=1)
    rates = np.array(DENSE_MISSING + SPARSE_MISSING)
    assert np.abs(missing.mean(axis=0) - rates).max() < 0.005
    assert (missing[:, 0] == missing[:, 9]).all()
    assert (missing[:, 13 + 18] == missing[:, 13 + 25]).all()


def test_only_integer_2_is_negative_and_ids_stay_in_bounds(sample):
    values, ranks, _, _ = sample
    is_negative = (values < 0) & (values != MISSING_VALUE)
    assert set(np.flatnonzero(is_negative.any(axis=0))) == {1}
    assert 0.09 < is_negative[:, 1].mean() < 0.11
    assert (ranks.max(axis=0) < np.minimum(CARDINALITIES, 10_000)).all()
    assert criteo_shape(None, 1.0).cardinality.tolist() == list(CARDINALITIES)


@pytest.mark.parametrize("zipf", [0.0, 1.0, 1.2])
def test_ranks_follow_the_power_law(zipf):
    """Rank k has the mass of x^-zipf between k + 1 and k + 2, here by numerical integration."""
    shape = criteo_shape(50, zipf)
    _, ranks, _ = draw_rows(shape, 7, 0, 200_000)
    column = ranks[:, 0]
    mass = np.array([np.mean(np.linspace(k + 1, k + 2, 1001) ** -zipf) for k in range(50)])
    share = np.bincount(column, minlength=50) / len(column)
    assert np.abs(share - mass / mass.sum()).max() < 0.004


@pytest.mark.parametrize(("auc", "click_rate"), [(0.8, 0.25), (0.5, 0.5), (0.95, 0.03)])
def test_the_signal_has_the_auc_and_click_rate_asked_for(tmp_path, auc, click_rate):
    asked = config(tmp_path / "c.tsv", f"signal.auc={auc}", f"signal.click_rate={click_rate}")
    _, probabilities, labels = make_source(asked).block(0, 100_000)[:3]
    assert abs(expected_auc(np.sort(probabilities)) - auc) < 0.005
    assert abs(labels.mean() - click_rate) < 0.01


def test_the_best_scores_are_sklearns_of_the_true_probabilities(sample):
    _, _, probabilities, labels = sample
    tally = Tally()
    for start in range(0, len(labels), 7001):
        tally.add(probabilities[start : start + 7001], labels[start : start + 7001])
    best = tally.best()
    assert abs(best.auc - roc_auc_score(labels, probabilities)) < 1e-6
    assert abs(best.logloss - log_loss(labels, probabilities)) < 1e-9
    assert (best.rows, best.positives) == (len(labels), labels.sum())


def test_the_expected_auc_is_the_mean_over_labels_drawn_again(sample):
    probabilities = np.sort(sample[2][:50_000])
    random = np.random.default_rng(0)
    redrawn = [random.random(len(probabilities)) < probabilities for _ in range(20)]
    auc = np.mean([roc_auc_score(labels, probabilities) for labels in redrawn])
    assert abs(expected_auc(probabilities) - auc) < 2e-3


@pytest.mark.usefixtures("quick_pilot")
def test_the_best_auc_is_unknown_if_all_labels_are_equal(tmp_path):
    [best] = generate(config(tmp_path / "one.tsv", "rows=1")).bests.values()
    assert best.auc is None
    assert json.loads((tmp_path / "one.tsv.best.json").read_text())["auc"] is None


@pytest.mark.slow
def test_a_linear_model_comes_near_the_best_and_does_not_beat_it(sample):
    """Frequent ids as indicators and logarithms of values: the linear part of the truth can be learnt."""
    values, ranks, probabilities, labels = sample
    dense = np.log1p(np.maximum(values, 0))
    dense = (dense - dense.mean(axis=0)) / dense.std(axis=0)
    curves = [dense, np.tanh(dense), np.exp(-(dense**2)), values <= 0]
    indicators = OneHotEncoder().fit_transform(np.minimum(ranks, 64))
    x = hstack([*map(csr_matrix, curves), indicators]).tocsr()
    train, test = slice(0, 80_000), slice(80_000, 100_000)
    model = LogisticRegression(C=0.1, max_iter=100).fit(x[train], labels[train])
    reached = roc_auc_score(labels[test], model.predict_proba(x[test])[:, 1])
    best = roc_auc_score(labels[test], probabilities[test])
    assert best - 0.02 < reached < best


@pytest.mark.usefixtures("quick_pilot")
def test_an_interrupted_run_leaves_no_file_under_the_final_name(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("dlrm_app.tools.synthetic.clicks.Tally.add", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "clicks.tsv", "rows=100_000")
    assert list(tmp_path.iterdir()) == []


def test_impossible_settings_are_refused_together(tmp_path):
    (tmp_path / "there.tsv").write_text("precious")
    given = config(
        tmp_path / "there.tsv", "rows=0", "seed=-1", "format=cvs", "signal.auc=1", "zipf=9", "threads=0"
    )
    problems = list(map(str, given.problems()))
    assert len(problems) == 7
    assert any("overwrite=true" in problem for problem in problems)
    for key in ("rows", "seed", "format", "signal.auc", "zipf", "threads", "output"):
        assert any(problem.startswith(key) for problem in problems), key
