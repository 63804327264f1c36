"""Progress of long work in a log file."""

import pytest

from dlrm_app import progress
from dlrm_app.progress import work_bar


def test_a_log_file_gets_few_lines_and_short_work_gets_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(work_bar(range(1000), desc="short")) == list(range(1000))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "LINE_SECONDS", 1e-9)
    with work_bar(desc="reading", total=3, unit=" rows") as bar:
        for _ in range(3):
            bar.update(1)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("|")[0].strip() for line in lines] == [
        f"reading: {share:>3}%" for share in (33, 67, 100)
    ]
    assert "\r" not in "".join(lines)
