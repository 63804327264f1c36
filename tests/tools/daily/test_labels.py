"""Days of a log with several labels: their rows, judgements of each label, and labels that a day has lost."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm_app.dataset.manifest import read_manifest
from tests.labelled_log import describe_labels, draw_labelled
from tests.make_log import write_csv
from tests.tools.daily.days_here import NAMES, days_words, learn, lines

ROWS = 12_000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four days; the last has lost its likes."""
    folder = tmp_path_factory.mktemp("labels")
    describe_labels(folder)
    for number, name in enumerate(NAMES[:4]):
        rows = draw_labelled(ROWS, seed=number)[0]
        if number == 3:
            rows = rows.set_column(rows.column_names.index("like"), "like", pa.nulls(ROWS))
        path = folder / "log" / f"dt={name}"
        path.mkdir(parents=True)
        write_csv(path / "log.csv", rows)
    words = [word for word in days_words(folder / "log", folder / "out", NAMES[3]) if "dataset=" not in word]
    words += [f"dataset={folder}/log.yaml", "days.replay=0.3", "gate.max_known_rows=1", "days.keep=9"]
    learn(words)
    return folder


@pytest.mark.long
def test_every_label_is_judged(log: Path) -> None:
    found = lines(log / "out")
    assert [found[name]["published"] for name in NAMES[:3]] == [True] * 3
    for name in NAMES[1:3]:
        rules = {verdict["rule"] for verdict in found[name]["rules"]}
        for label in ("order", "like"):
            day = found[name]["labels"][label]
            assert day["next_day"]["auc"] > 0.55
            assert day["holdout"]["difference"] is not None
            assert {f"auc of {label}", f"new auc of {label}", f"clicks of {label}"} <= rules


@pytest.mark.slow
def test_a_day_that_has_lost_a_label_is_held_back(log: Path) -> None:
    last = lines(log / "out")[NAMES[3]]
    assert not last["published"]
    assert last["held"].startswith("100% of like is missing, 30% on the days before")


@pytest.mark.slow
def test_rows_of_days_count_every_label(log: Path) -> None:
    """Those of the day itself, and those that are replayed."""
    made = read_manifest(log / "out" / "days" / NAMES[2] / "rows")
    for name, split in made.splits.items():
        tables = [pq.ParquetFile(made.folder / shard.path).read() for shard in split.shards]
        for label, counts in split.labels.items():
            values = np.concatenate([table[label].to_numpy() for table in tables])
            assert (counts.rows, counts.positives) == ((~np.isnan(values)).sum(), (values == 1).sum()), name
