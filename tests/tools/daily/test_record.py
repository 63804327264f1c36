"""day.json comes back as it was written; one of another version is refused."""

import json
from dataclasses import asdict
from pathlib import Path

from dlrm_app.errors import DataError
from dlrm_app.tools.daily.record import DAYS, RECORD, DayRecord, read_records
from tests.refusals import refused

DAY = DayRecord(day="2026-11-02", rows=9, positives=2, unseen={"c0": 0.5}, sources=[], published=True)


def test_a_record_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / DAYS / DAY.day / RECORD
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(asdict(DAY)))
    assert read_records(tmp_path) == [DAY]
    path.write_text(json.dumps({**asdict(DAY), "version": 2}))
    rule = "has version 2 of dlrm-day, this program reads version 1"
    with refused(DataError, ".../days/2026-11-02/day.json", rule, cure="...delete..."):
        read_records(tmp_path)
