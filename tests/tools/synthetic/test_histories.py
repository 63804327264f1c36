"""Generated logs with histories: lists of the item's values, and a truth whose scores are known."""

import itertools
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml
from sklearn.metrics import log_loss, roc_auc_score

from dlrm_app.config.generate import GenerateConfig
from dlrm_app.errors import ConfigError, refuse_if
from dlrm_app.tools.synthetic import generate
from dlrm_app.tools.synthetic.clicks import Clicks, make_source
from dlrm_app.tools.synthetic.description import describe
from dlrm_app.tools.synthetic.histories import ITEM
from dlrm_app.typed import setting
from tests.composed import compose_config
from tests.pages import ROOT
from tests.preprocessing.running import run, table_of
from tests.refusals import refused

ROWS = 20_000
HISTORIES = ["histories.length=7"]
ALL = [*HISTORIES, "orders.rate=0.3", "orders.missing=0.2", "weights=0.5"]
ITEM_FIELD = 14 + ITEM


def configured(output: Path, *words: str) -> GenerateConfig:
    return compose_config("generate", GenerateConfig, [f"output={output}", f"rows={ROWS}", *words])


def fields(output: Path, *words: str) -> list[list[str]]:
    generate(configured(output, *words))
    return [line.split("\t") for line in output.read_text().splitlines()]


def elements(field: str) -> list[str]:
    return field.split("|") if field else []


@pytest.mark.long
def test_lists_hold_values_of_the_item(tmp_path: Path) -> None:
    """From none to the longest, as many counts as bought items; the other columns are those of the plain log."""
    rows = fields(tmp_path / "log.tsv", *HISTORIES)
    plain = fields(tmp_path / "plain.tsv")
    assert [row[1:40] for row in rows] == [row[1:] for row in plain]
    assert {len(row) for row in rows} == {43}
    items = {row[ITEM_FIELD] for row in fields(tmp_path / "many.tsv", "rows=60_000")}
    last, bought, counts = ([elements(row[place]) for row in rows] for place in (40, 41, 42))
    assert {len(row) for row in last} == {*range(8)}
    assert {len(row) for row in bought} == {*range(5)}
    assert [len(row) for row in counts] == [len(row) for row in bought]
    assert {count for row in counts for count in row} == {"1", "2", "3", "4", "5"}
    listed = [item for row in last + bought for item in row]
    assert np.mean([item in items for item in listed]) > 0.999


@pytest.mark.long
@pytest.mark.parametrize("label", ["click", "order"])
def test_the_best_scores_are_sklearns_of_the_true_probabilities(tmp_path: Path, label: str) -> None:
    """AUC and log loss as written beside the log; clicks and orders are as many as their probabilities say."""
    rows = fields(tmp_path / "log.tsv", *ALL, "signal.auc=0.85")
    block = make_source(configured(tmp_path / "x", *ALL, "signal.auc=0.85")).block(0, ROWS)
    best = json.loads((tmp_path / "log.tsv.best.json").read_text())
    assert best["histories"] == {"length": 7}
    assert block.orders is not None
    truth, labels, known = block.probabilities, block.labels, np.ones(ROWS, bool)
    place = 0
    if label == "order":
        best, place, known = best["labels"]["order"], 40, block.orders.are_known
        truth, labels = block.orders.probabilities, block.orders.labels
    truth, labels = truth[known], labels[known]
    assert labels.tolist() == [int(row[place]) for row in rows if row[place]]
    assert best["auc"] == pytest.approx(roc_auc_score(labels, truth), abs=2e-6)
    assert best["logloss"] == pytest.approx(log_loss(labels, truth), abs=1e-8)
    assert truth.sum() == pytest.approx(labels.sum(), rel=0.05)
    if label == "click":
        assert best["auc"] == pytest.approx(0.85, abs=0.01)
        assert labels.mean() == pytest.approx(0.25, abs=0.02)


@pytest.mark.slow
def test_clicks_follow_likeness_to_some_of_the_list(tmp_path: Path) -> None:
    """The item among the last ones raises clicks, in any place; bought ones count by their counts."""
    rows = fields(tmp_path / "log.tsv", *HISTORIES)
    clicks = np.array([int(row[0]) for row in rows])
    last = [elements(row[40]) for row in rows]
    places = np.array(
        [[*items, row[ITEM_FIELD]].index(row[ITEM_FIELD]) for row, items in zip(rows, last, strict=True)]
    )
    lengths = np.array([len(items) for items in last])
    is_listed = places < lengths
    rest = clicks[~is_listed & (lengths > 0)].mean()
    for is_old in (True, False):
        assert clicks[is_listed & ((places == 0) == is_old)].mean() > rest + 0.1
    times = np.array(
        [
            sum(
                int(n)
                for item, n in zip(elements(row[41]), elements(row[42]), strict=True)
                if item == row[ITEM_FIELD]
            )
            for row in rows
        ]
    )
    often, seldom = clicks[times >= 4].mean(), clicks[(times > 0) & (times < 4)].mean()
    assert often > seldom > clicks[times == 0].mean()


@pytest.mark.slow
def test_a_seed_gives_the_same_histories_in_any_pieces(tmp_path: Path) -> None:
    whole = fields(tmp_path / "whole.tsv", *ALL, "threads=1")
    head = fields(tmp_path / "head.tsv", *ALL, "rows=7_001", "threads=3")
    tail = fields(tmp_path / "tail.tsv", *ALL, "start_row=7_001", "rows=12_999")
    assert whole == head + tail
    other = fields(tmp_path / "other.tsv", *ALL, "seed=1")
    assert [row[41] for row in whole] != [row[41] for row in other]


@pytest.mark.slow
@pytest.mark.parametrize("words", [HISTORIES, [*ALL, "negatives_kept=0.25"]])
def test_a_generated_log_of_histories_is_read_back(tmp_path: Path, words: list[str]) -> None:
    """By the settings that dlrm-generate names."""
    clicks = generate(configured(tmp_path / "log.tsv", *words))
    assert isinstance(clicks, Clicks)
    rows = [line.split("\t") for line in (tmp_path / "log.tsv").read_text().splitlines()]
    given = [word for each in clicks.described_by.items() for word in shlex.split(setting(*each))]
    given.append(f"input.train={tmp_path}/log.tsv")
    manifest = run(tmp_path / "out", *given)
    table = table_of(manifest)
    assert (manifest.splits["train"].rows, manifest.splits["train"].rejects) == (len(rows), 0)
    at = 41 if len(manifest.labels) > 1 else 40
    # ids of one vocabulary: the same text has the same id, in the column and in the list
    ids: dict[str, int] = {}
    for row, item, last in zip(rows, table["item"].to_pylist(), table["last_items"].to_pylist(), strict=True):
        texts = [row[ITEM_FIELD], *elements(row[at])]
        assert [ids.setdefault(text, number) for text, number in zip(texts, [item, *last], strict=True)] == [
            item,
            *last,
        ]
    assert len({*ids.values()}) == len(ids)
    assert table["counts"].to_pylist() == [[float(n) for n in elements(row[at + 2])] for row in rows]


@pytest.mark.slow
def test_items_keep_their_places_for_life(tmp_path: Path) -> None:
    """A day is a function of seed and number; its best scores are true, and its lists have that day's items."""
    words = [*HISTORIES, "days=3", "rows=6000", "new_ids=0.2", "drift=0.1"]
    generate(configured(tmp_path / "days", *words))
    one = fields(tmp_path / "one.tsv", *HISTORIES, "rows=6000")
    paths = sorted((tmp_path / "days").glob("*/clicks.tsv"))
    days = [[line.split("\t") for line in path.read_text().splitlines()] for path in paths]
    assert days[0] == one
    shown = [{row[ITEM_FIELD] for row in rows} for rows in days]
    listed = [{item for row in rows for item in elements(row[40])} for rows in days]
    assert len(shown[2] - shown[0]) > 50
    assert all(len(items & now) > 0.9 * len(now) for items, now in zip(listed, shown, strict=True))
    for path in paths:
        assert 0.7 < json.loads(path.with_name("clicks.tsv.best.json").read_text())["auc"] < 0.9


EXTRAS = {
    "orders.rate=0.3": ["order"],
    HISTORIES[0]: ["last_items", "bought", "counts"],
    "weights=1": ["importance"],
}


@pytest.mark.parametrize("chosen", [*itertools.product([False, True], repeat=3)])
def test_a_description_has_kaggles_columns_and_the_requested_ones(
    tmp_path: Path, chosen: tuple[bool, ...]
) -> None:
    words = list(itertools.compress(EXTRAS, chosen))
    described = yaml.safe_load(describe(configured(tmp_path / "log.tsv", *words)))
    kaggle = yaml.safe_load((ROOT / "conf/dataset/criteo_kaggle.yaml").read_text())
    more = [name for word in words for name in EXTRAS[word]]
    names = [
        {"item": "cat_4", "click": "label"}.get(each["name"], each["name"]) for each in described["columns"]
    ]
    assert names == [*(each["name"] for each in kaggle["columns"]), *more]
    assert words or all(described[key] == kaggle[key] for key in ("name", "columns"))


@pytest.mark.slow
def test_a_description_is_not_taken_for_a_log(tmp_path: Path) -> None:
    """So a folder of logs can be read as a whole."""
    folder = tmp_path / "logs"
    for seed, name in enumerate(("a.tsv", "b.tsv")):
        generate(configured(folder / name, "rows=100", f"seed={seed}"))
    manifest = run(tmp_path / "out", f"dataset={folder}/a.tsv.yaml", f"input.train={folder}")
    assert [Path(source.path).name for source in manifest.sources] == ["a.tsv", "b.tsv"]


def test_inputs_of_models_have_no_histories(tmp_path: Path) -> None:
    words = ["format=dataset", "merlin=tiny", "histories.length=5"]
    with refused(ConfigError, "histories.length", "is of format=criteo"):
        refuse_if(configured(tmp_path / "x", *words).problems())
