"""Settings of the commands that a day calls: what is typed, what days have in common, what each has of its own."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from dlrm_app.config.days import with_words
from dlrm_app.dataset.manifest import Manifest, read_manifest
from dlrm_app.days.words import preprocess_words
from dlrm_app.errors import ConfigError
from tests.days.days_here import configured
from tests.loader.dataset_fixture import write_dataset

DAY = date(2026, 11, 2)
WORDS = ["input.days=logs/dt={day:%Y%m%d}/*", "dataset=x.yaml", "output=o", "days.from=2026-11-01"]


@pytest.fixture
def hashed(tmp_path: Path) -> Manifest:
    write_dataset(tmp_path / "before", 64)
    manifest = read_manifest(tmp_path / "before")
    return replace(manifest, sparse=[replace(c, encoding={"kind": "hash"}) for c in manifest.sparse])


def test_the_first_day_begins_vocabularies_unless_another_encoding_is_typed() -> None:
    words = preprocess_words(configured(WORDS), DAY, None, Path("o"))
    assert words[:6] == [
        "dataset=x.yaml",
        'input.train="logs/dt=20261102/*"',
        "split.val=0.05",
        "encoding=vocab",
        'encoding.day="2026-11-02"',
        "dense.target_columns=null",
    ]
    typed = ["preprocess.encoding=hash", "preprocess.encoding.num_embeddings=9"]
    words = preprocess_words(configured([*WORDS, *typed]), DAY, None, Path("o"))
    assert words[3:-1] == ["dense.target_columns=null", "encoding=hash", "encoding.num_embeddings=9"]
    words = preprocess_words(configured([*WORDS, "preprocess.experiment=kaggle_full"]), DAY, None, Path("o"))
    assert words[3:-1] == ["experiment=kaggle_full"]


def test_a_later_day_is_encoded_as_the_one_before(hashed: Manifest) -> None:
    typed = [
        "encoding=vocab",
        "encoding.shared=[[a,b]]",
        "encoding.expire_days=30",
        "dense.transform=log3",
        "rejects.max_fraction=0.1",
    ]
    config = configured([*WORDS, *(f"preprocess.{word}" for word in typed)])
    words = preprocess_words(config, DAY, hashed, Path("o"))
    assert words[3:-1] == [
        "rejects.max_fraction=0.1",
        "encoding=from_dataset",
        f'encoding.path="{hashed.folder}"',
    ]
    grown = replace(
        hashed, sparse=[replace(hashed.sparse[0], encoding={"kind": "vocab"}), *hashed.sparse[1:]]
    )
    assert preprocess_words(config, DAY, grown, Path("o"))[3:-1] == [
        "rejects.max_fraction=0.1",
        "encoding=vocab",
        f'encoding.grow_from="{hashed.folder}"',
        'encoding.day="2026-11-02"',
        "encoding.expire_days=30",
    ]


def test_words_of_other_commands_are_gathered_as_they_were_typed() -> None:
    words = ["train.model.top_mlp=[8,1]", "output=a b", "--cfg", 'train.data="x y"', "input.days='{day}'"]
    assert with_words(words) == [
        "output=a b",
        "--cfg",
        "input.days='{day}'",
        'train=["model.top_mlp=[8,1]","data=\\"x y\\""]',
    ]
    assert configured([*WORDS, 'train.data.path.x="a \\" b"']).train == ['data.path.x="a \\" b"']


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["input.days=logs/all"], "input.days must name the files of a day, with {day} for its date"),
        (["input.days=logs/{date}"], "input.days must name the files of a day"),
        (["days.from=1.11.2026"], "days.from must be a date such as 2026-11-01, yesterday or today"),
        (["days.to=2026-10-31"], "days.to must not lie before days.from (2026-11-01)"),
        (["days.accept=[monday]"], "days.accept[0] must be a date"),
        (["train.output=x"], "train.output is what dlrm-days gives each day itself"),
        (["train.resume=none"], "train.resume is what dlrm-days gives"),
        (["preprocess.input.test=x"], "preprocess.input.test is what dlrm-days gives"),
        (["export.quantize=int8"], "export settings are for days.export=true"),
    ],
)
def test_what_cannot_work_is_refused(words: list[str], problem: str) -> None:
    given = {word.partition("=")[0] for word in words}
    try:
        config = configured([*(word for word in WORDS if word.partition("=")[0] not in given), *words])
        problems = list(map(str, config.problems()))
    except ConfigError as error:
        problems = error.problems
    assert len(problems) == 1
    assert problems[0].startswith(problem)
