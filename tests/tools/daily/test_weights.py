"""Days of a log with weights whose negatives were sampled: rows to train on, judgements and refusals."""

import shutil
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm_app.dataset.manifest import Manifest, read_manifest
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.tools.daily.gate import judge_before
from dlrm_app.tools.daily.measure import shifts, weigh, weights_of, write_measures
from dlrm_app.tools.daily.rows import Earlier, write_rows
from dlrm_app.tools.daily.usual import ComparedDay
from tests.make_log import write_csv
from tests.preprocessing.running import run as preprocess_here
from tests.refusals import refused
from tests.small_run import evaluate_here
from tests.tools.daily.days_here import NAMES, configured, days_words, learn, lines
from tests.tools.daily.test_gate import a_day
from tests.weighted_log import describe, draw_rows

SHARE = 0.2
FIRST, SECOND = date(2026, 11, 1), date(2026, 11, 2)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three days, of whose negatives a fifth was kept."""
    folder = tmp_path_factory.mktemp("days")
    describe(folder, f"negatives_kept: {SHARE}")
    for number, name in enumerate(NAMES[:3]):
        rows, _ = draw_rows(12_000, seed=number, base=-2.0)
        keep = np.random.default_rng(number).random(12_000) < SHARE
        path = folder / "log" / f"dt={name}"
        path.mkdir(parents=True)
        write_csv(path / "log.csv", rows.filter(keep | (rows["clicked"].to_numpy() == 1)))
    return folder


@pytest.fixture(scope="module")
def days(log: Path) -> list[Manifest]:
    given = [f"dataset={log}/log.yaml", "encoding.num_embeddings=100", "split.val=0.2", "split.by=content"]
    paths = [log / "log" / f"dt={name}" / "log.csv" for name in NAMES[:2]]
    return [
        preprocess_here(log / str(number), *given, f"input.train={path}") for number, path in enumerate(paths)
    ]


@pytest.mark.slow
def test_rows_of_days_have_the_sums_of_their_weights(days: list[Manifest], tmp_path: Path) -> None:
    first, second = days
    earlier = [Earlier(FIRST, first, "train", 0.3), Earlier(FIRST, first, "val", 1.0)]
    write_rows(second, SECOND, earlier, tmp_path / "rows")
    made = read_manifest(tmp_path / "rows")
    assert made.negatives_kept == {"train": SHARE, "val": SHARE, "test": SHARE}
    for name, split in made.splits.items():
        tables = [pq.ParquetFile(made.folder / shard.path).read() for shard in split.shards]
        weights, clicks = (
            np.concatenate([table[column].to_numpy() for table in tables]).astype(float)
            for column in ("importance", "clicked")
        )
        assert split.weights is not None
        assert split.weights.all == pytest.approx(weights.sum(), rel=1e-9), name
        assert split.weights.positives == pytest.approx(weights @ clicks, rel=1e-9)


@pytest.mark.parametrize("factor", [0.001, 1000.0])
def test_a_day_of_other_weights_is_held_back(days: list[Manifest], tmp_path: Path, factor: float) -> None:
    """The weights of the second day in another unit, its rows as they were."""
    first, second = days
    other = shutil.copytree(second.folder, tmp_path / "other")
    for path in other.glob("*/*.parquet"):
        table = pq.ParquetFile(path).read()
        place = table.column_names.index("importance")
        scaled = pa.array(table["importance"].to_numpy() * np.float32(factor))
        pq.write_table(table.set_column(place, table.schema.field(place), scaled), path)
    gate = configured([*days_words(tmp_path, tmp_path, NAMES[2])]).gate
    (tmp_path / "first").mkdir()
    write_measures(first, tmp_path / "first")

    def judged(dataset: Manifest) -> list[str]:
        found = shifts(dataset, [tmp_path / "first"])
        day = a_day(12_000, positives=3000, weights=weights_of(dataset), shift=found)
        before = a_day(12_000, positives=3000, weights=weights_of(first))
        return [each.rule for each in judge_before(ComparedDay(day, [before], gate)) if each.holds]

    assert judged(second) == []
    footers = {shard: replace(shard, bytes=(other / shard.path).stat().st_size) for shard in second.shards}
    splits = {
        name: replace(split, shards=[footers[shard] for shard in split.shards])
        for name, split in second.splits.items()
    }
    assert judged(replace(second, path=other, splits=splits)) == ["weights", "shift"]


def test_weights_are_measured_as_numpy_does(days: list[Manifest]) -> None:
    tables = [pq.ParquetFile(days[0].folder / shard.path).read() for shard in days[0].shards]
    weights, clicks = (
        np.concatenate([table[column].to_numpy() for table in tables]).astype(float)
        for column in ("importance", "clicked")
    )
    found = weights_of(days[0])
    for name, some in (("rows", weights), ("positives", weights[clicks == 1])):
        assert found[name].rows == len(some)
        assert found[name].mean == pytest.approx(some.mean(), rel=1e-6)
        assert found[name].spread == pytest.approx(some.std() / some.mean(), rel=1e-6)
        share = some.sum() ** 2 / (some**2).sum() / len(some)
        assert found[name].measured["effective share"][0] == pytest.approx(share, rel=1e-6)
    random = np.random.default_rng(3)
    drawn = [np.log((some := random.choice(weights, 2000)).sum() ** 2 / (some**2).sum()) for _ in range(300)]
    (share_of_sample,) = [
        weigh([(random.choice(weights, 2000).astype(np.float32), np.zeros(2000, bool))])["rows"]
    ]
    assert share_of_sample.error == pytest.approx(np.std(drawn), rel=0.3)


def test_days_of_other_samples_are_refused(days: list[Manifest], tmp_path: Path) -> None:
    first, second = days
    other = replace(first, negatives_kept={})
    rule = f"has kept 1 of the negatives, {second.folder} 0.2, and rows that are learnt together must be..."
    with refused(DataError, str(first.folder), rule):
        write_rows(second, SECOND, [Earlier(FIRST, other, "val", 1.0)], tmp_path / "rows")


@pytest.mark.long
def test_days_learn_and_judge_weighted_samples(log: Path) -> None:
    """Each day's model predicts the clicks of all rows of the next day."""
    words = [word for word in days_words(log / "log", log / "out", NAMES[2]) if "dataset=" not in word]
    learn([*words, f"dataset={log}/log.yaml", "train.trainer.calibrate=true", "gate.max_known_rows=1"])
    found = lines(log / "out")
    assert [found[name]["published"] for name in NAMES[:3]] == [True] * 3
    for name in NAMES[1:3]:
        scores = found[name]["next_day"]
        assert scores["calibration"] == pytest.approx(1, abs=0.15)
        folder = log / "out" / "days" / name
        model = log / "out" / "days" / NAMES[NAMES.index(name) - 1] / "model"
        metrics = evaluate_here(f"checkpoint={model}", f"data.path={folder}/rows").models[0].metrics
        assert scores["auc"] == pytest.approx(metrics["auc"], rel=1e-9)
        assert scores["effective"] == pytest.approx(
            [metrics["effective_positives"], metrics["effective_negatives"]]
        )
        assert metrics["weight"] > metrics["num_samples"]


def test_sampling_within_days_is_refused_before_any_work(log: Path, tmp_path: Path) -> None:
    words = days_words(log / "log", tmp_path / "out", NAMES[0])
    rule = "samples the rows to train on alone, and dlrm-days learns the rows held back on the next day"
    with refused(ConfigError, "preprocess: sampling.negatives", rule):
        learn([*words, "preprocess.sampling.negatives=0.1"])
    assert not any((tmp_path / "out" / "days").iterdir())
