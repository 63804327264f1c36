"""A model on a day of a newer vocabulary scores as on that day encoded with its own: what it does not know is rare."""

import json
from pathlib import Path

import pytest

from dlrm_app.cli.commands import run_words
from dlrm_app.evaluation.result import EvaluationResult
from dlrm_app.records import from_json
from tests.days.days_here import NAMES, write_log
from tests.small_run import SMALL


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("newer")
    write_log(folder / "log", "max_cardinality=300", "new_ids=0.2", rows=1500, days=3)
    return folder


def encode(folder: Path, day: str, name: str, *words: str) -> Path:
    source = f"input.train={folder}/log/dt={day}/clicks.tsv".replace("=", "='", 1) + "'"
    keys = [
        "dataset=criteo_kaggle",
        source,
        "split.val=0.2",
        "threads=1",
        "dense.target_columns=null",
        *words,
    ]
    run_words("preprocess", [*keys, f"output={folder}/{name}"], folder / "log.txt")
    return folder / name


def metrics(model: Path, dataset: Path, output: Path) -> dict[str, float]:
    words = [f"checkpoint={model}", f"data.path={dataset}", "split=val", "threads=1", f"output={output}"]
    run_words("evaluate", words, output.with_suffix(".log"))
    found = from_json(EvaluationResult, json.loads(output.read_text())).models[0].metrics
    return {key: value for key, value in found.items() if key != "seconds"}


def test_ids_given_since_are_read_as_rare(folder: Path) -> None:
    """Also ids that were freed and given to others since, with vocabularies that lose what was not seen for a day."""
    growth = ["encoding=vocab", "encoding.expire_days=1"]
    first = encode(folder, NAMES[0], "first", *growth, f"encoding.day={NAMES[0]}")
    second = encode(
        folder, NAMES[1], "second", *growth, f"encoding.day={NAMES[1]}", f"encoding.grow_from={first}"
    )
    third = encode(
        folder, NAMES[2], "third", *growth, f"encoding.day={NAMES[2]}", f"encoding.grow_from={second}"
    )
    train = [
        *SMALL,
        "trainer.threads=1",
        "report.enabled=false",
        f"data.path={first}",
        f"output={folder}/run",
    ]
    run_words("train", train, folder / "log.txt")
    own = encode(folder, NAMES[1], "own", "encoding=from_dataset", f"encoding.path={first}")
    expected = metrics(folder / "run", own, folder / "own.json")
    assert metrics(folder / "run", second, folder / "second.json") == expected
    assert 0.5 < metrics(folder / "run", third, folder / "third.json")["auc"] < 1
