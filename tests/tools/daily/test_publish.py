"""The published day in trackers: its export, or its run without one, under the name of the days' folder."""

from pathlib import Path

import pytest

from dlrm_app.runs import tracking
from dlrm_app.tools.daily.publish import track_published


@pytest.mark.parametrize("part", ["export", "model"])
def test_the_published_day_is_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    told = []
    monkeypatch.setattr(tracking, "publish", lambda *given: told.append(given))
    day = tmp_path / "shop" / "days" / "2026-11-02"
    for name in {"model", part}:
        (day / name).mkdir(parents=True)
    track_published(day)
    assert told == [(day / "model", day / part, "shop")]
