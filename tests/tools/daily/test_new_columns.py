"""A day whose log has new columns: allowed and learnt, or refused before it is encoded."""

from pathlib import Path

import numpy as np
import pytest

from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.errors import DataError
from tests.make_log import describe, write_csv
from tests.refusals import find_problem, refused
from tests.tools.daily.days_here import NAMES, days_words, learn, lines

ROWS = 2000
COLUMNS = [
    "{name: click, role: label}",
    "{name: order, role: label}",
    "{name: age, role: dense, kind: float}",
    "{name: shop, role: sparse, kind: integer}",
]
NEW = {
    "features": "{name: city, role: sparse, kind: integer}",
    "dense": "{name: price, role: dense, kind: float}",
    "label": "{name: order, role: label}",
}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days with all columns, of which the first is learnt without the new ones."""
    folder = tmp_path_factory.mktemp("columns")
    effects = np.random.default_rng(9).normal(size=30)
    for number, name in enumerate(NAMES[:2]):
        random = np.random.default_rng(number)
        shop = random.integers(0, 30, ROWS)
        click = random.random(ROWS) < 1 / (1 + np.exp(-2 * effects[shop]))
        rows = {
            "click": click.astype(int),
            "order": (click & (random.random(ROWS) < 0.5)).astype(int),
            "age": random.integers(18, 80, ROWS),
            "shop": shop,
            "city": random.integers(0, 9, ROWS),
            "price": random.integers(1, 99, ROWS),
            "seen": ["|".join(map(str, each)) for each in random.integers(0, 30, (ROWS, 3))],
        }
        path = folder / "log" / f"dt={name}"
        path.mkdir(parents=True)
        write_csv(path / "log.csv", rows)
    return folder


def described(folder: Path, output: Path, kinds: list[str], last: str) -> list[str]:
    """The words of dlrm-days of a description that has the new columns of ``kinds``."""
    columns = [each for each in COLUMNS if "order" not in each] + [NEW[kind] for kind in kinds]
    labels = ["labels: [click, {order: {given: click}}]"] if "label" in kinds else []
    path = describe(output.parent, columns, *labels, name=f"log_{'_'.join(kinds)}")
    words = [word for word in days_words(folder / "log", output, last) if "dataset=" not in word]
    return [*words, f"dataset={path}", "gate.max_known_rows=1", "days.export=false"]


@pytest.mark.long
@pytest.mark.parametrize("kinds", [["features"], ["dense"], ["label"], ["features", "dense", "label"]])
def test_new_columns_are_refused_before_their_day_is_encoded_or_learnt(
    log: Path, tmp_path: Path, kinds: list[str]
) -> None:
    output = tmp_path / "out"
    learn(described(log, output, [], NAMES[0]))
    words = described(log, output, kinds, NAMES[1])
    key = {"features": "features", "dense": "dense", "label": "dataset.labels"}
    with refused(DataError, NAMES[1], "failed") as caught:
        learn(words)
    for kind in kinds:
        find_problem(caught.value, f"...{key[kind]}", "...", f"...warm_start.allow=[{kind}]")
    find_problem(caught.value, "dlrm-train", "failed", "its settings are typed as train.KEY=VALUE")
    assert not (output / "days" / NAMES[1] / "dataset").exists()
    learn([*words, f"train.warm_start.allow=[{','.join(kinds)}]"])
    assert [*lines(output)] == NAMES[:2]
    names = {column.name for column in read_manifest(output / "days" / NAMES[1] / "dataset").sparse}
    assert ("city" in names) == ("features" in kinds)


@pytest.mark.long
def test_a_new_column_that_no_table_reads_is_no_new_feature(log: Path, tmp_path: Path) -> None:
    output, tables = tmp_path / "out", tmp_path / "tables.yaml"
    tables.write_text("embedding_dim: 8\nspecs:\n  - {name: shop, rows: 100, features: [shop]}\n")
    learn([*described(log, output, [], NAMES[0]), f"train.tables={tables}"])
    learn([*described(log, output, ["features"], NAMES[1]), f"train.tables={tables}"])
    assert [*lines(output)] == NAMES[:2]


@pytest.mark.slow
def test_a_day_attends_to_the_lists_that_share_a_vocabulary(log: Path, tmp_path: Path) -> None:
    seen = '{name: seen, role: sparse, kind: integer, separator: "|"}'
    path = describe(tmp_path, [*(each for each in COLUMNS if "order" not in each), seen], name="log_seen")
    for last in NAMES[:2]:
        words = [word for word in days_words(log / "log", tmp_path / "out", last) if "dataset=" not in word]
        shared = ["preprocess.encoding.shared=[[shop,seen]]", "train.tables.pooling=attention"]
        learn([*words, f"dataset={path}", "gate.max_known_rows=1", "days.export=false", *shared])
    assert [*lines(tmp_path / "out")] == NAMES[:2]
