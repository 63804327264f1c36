"""Records are the same once they were written as JSON and read again."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from dlrm_app.dataset.manifest import Shard
from dlrm_app.errors import DataError
from dlrm_app.journal import Journal
from dlrm_app.preprocessing.passes.contents import KnownShare
from dlrm_app.preprocessing.passes.encode_pass import EncodedSplit, EncodedUnit
from dlrm_app.preprocessing.passes.study import Moments, StudiedUnit
from dlrm_app.preprocessing.units.unit_text import TextRange
from dlrm_app.records import from_json
from tests.refusals import refused

RANGE = TextRange(source=1, unit=2, size=3, file_bytes=4, crc=5, is_last=True)
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
    text: TextRange


@pytest.mark.parametrize("record", RECORDS)
def test_json_and_back(record: StudiedUnit | EncodedUnit) -> None:
    assert from_json(type(record), json.loads(json.dumps(asdict(record)))) == record


def test_a_record_with_other_fields_is_damaged(tmp_path: Path) -> None:
    Journal(tmp_path, Small).commit(RANGE.name, Small(RANGE))
    assert Journal(tmp_path, Small).load(RANGE.name) == Small(RANGE)
    rule = "is damaged (expected the fields text, lines, splits...)"
    with refused(DataError, f"{tmp_path}/...", rule, cure="delete it..."):
        Journal(tmp_path, EncodedUnit).load(RANGE.name)
