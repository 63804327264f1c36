"""Records are the same once they were written as JSON and read again."""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dlrm_app.dataset.splits import Shard
from dlrm_app.encoding.row_samples import KnownShare
from dlrm_app.errors import DataError
from dlrm_app.journal import Journal
from dlrm_app.logs.sources.units import UnitExtent
from dlrm_app.preprocessing.passes.encode_pass import EncodedSplit, EncodedUnit
from dlrm_app.preprocessing.passes.study import Moments, StudiedUnit
from dlrm_app.records import ALWAYS, IF_SET, NOT_WRITTEN, Format, from_json
from tests.refusals import refused

RANGE = UnitExtent(source=1, unit=2, size=3, file_bytes=4, crc=5, is_last=True)
RECORDS = [
    StudiedUnit(RANGE, (Moments(3, 1 / 3, 0.1), Moments()), ()),
    EncodedUnit(
        RANGE,
        7,
        {
            "train": EncodedSplit(5, 2, 1, (0, 3), Shard("a", 5, 9, "sha256:0", [4, 1]), KnownShare(4, 3)),
            "test": EncodedSplit(1, None, 0, (0, 0), None, KnownShare()),
        },
    ),
]


@dataclass(frozen=True)
class Small:
    extent: UnitExtent


@pytest.mark.parametrize("record", RECORDS)
def test_json_and_back(record: StudiedUnit | EncodedUnit) -> None:
    assert from_json(type(record), json.loads(json.dumps(asdict(record)))) == record


def test_a_record_with_other_fields_is_damaged(tmp_path: Path) -> None:
    Journal(tmp_path, Small).commit(RANGE.name, Small(RANGE))
    assert Journal(tmp_path, Small).load(RANGE.name) == Small(RANGE)
    rule = "is damaged (Object missing required field `lines`)"
    with refused(DataError, f"{tmp_path}/...", rule, cure="delete it..."):
        Journal(tmp_path, EncodedUnit).load(RANGE.name)


@dataclass(frozen=True)
class Kept:
    """A record of every kind of field; ``pair`` has values of two types."""

    pair: tuple[int, str]
    note: str = field(default="", metadata=IF_SET)
    place: Path | None = field(default=None, metadata=NOT_WRITTEN)
    format: str = field(default="kept", metadata=ALWAYS)
    version: int = field(default=2, metadata=ALWAYS)


KEPT = Format(Kept, "delete {folder}")


@pytest.mark.parametrize("name", ["kept.json", "kept.yaml"])
def test_a_written_record_is_read_back(tmp_path: Path, name: str) -> None:
    record = Kept((3, "x"))
    KEPT.write(tmp_path / name, replace(record, place=tmp_path))
    assert KEPT.read(tmp_path / name) == record
    value = yaml.safe_load((tmp_path / name).read_text())
    assert value == {"pair": [3, "x"], "format": "kept", "version": 2}
    (tmp_path / name).write_text(json.dumps({**value, "note": "a note", "place": "x", "colour": "red"}))
    assert KEPT.read(tmp_path / name) == replace(record, note="a note")


DAMAGED = "is damaged, or not a kept file"


@pytest.mark.parametrize(
    ("change", "rule", "cure"),
    [
        (
            {"version": 3},
            "has version 3 of kept, this program reads version 2",
            "use a newer dlrm-app, the one that wrote it, or delete ...",
        ),
        (
            {"version": 1},
            "has version 1 of kept, this program reads version 2",
            "use an older dlrm-app, the one that wrote it, or delete ...",
        ),
        (
            {"format": "other", "version": 3},
            "is of the format 'other', not 'kept'",
            "give another file, or delete ...",
        ),
        ({"version": "2"}, f"{DAMAGED} (version must be of type int, got '2')", "delete ..."),
        ({"pair": [3]}, f"{DAMAGED} (Expected `array` of length 2, got 1 - at `$.pair`)", "delete ..."),
        ({"pair": ["3", "x"]}, f"{DAMAGED} (Expected `int`, got `str` - at `$.pair[0]`)", "delete ..."),
        (None, f"{DAMAGED} (expected the fields pair, note...)", "delete ..."),
        ([], f"{DAMAGED} (expected a mapping, got [])", "delete ..."),
    ],
)
def test_a_file_that_is_not_the_record_is_refused(tmp_path: Path, change: Any, rule: str, cure: str) -> None:
    """None: a file without its version."""
    value = {"pair": [3, "x"], "format": "kept", "version": 2}
    if change is None:
        del value["version"]
    whole = {**value, **change} if isinstance(change, dict) else value if change is None else change
    (tmp_path / "kept.json").write_text(json.dumps(whole))
    with refused(DataError, f"{tmp_path}/kept.json", rule, cure):
        KEPT.read(tmp_path / "kept.json")


def test_every_changed_value_of_a_sealed_record_is_noticed(tmp_path: Path) -> None:
    sealed, path = Format(Kept, "", is_sealed=True), tmp_path / "kept.json"
    sealed.write(path, Kept((3, "x")))
    assert sealed.read(path) == Kept((3, "x"))
    path.write_text(path.read_text().replace("3", "4"))
    with refused(DataError, str(path), f"{DAMAGED} (its values are not those that were written)"):
        sealed.read(path)
