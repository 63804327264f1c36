"""The tutorial of a served model: days move under a running server, which follows them, and the registry does too."""

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.pages import blocks_of
from tests.test_docs import link_clone

pytestmark = pytest.mark.long


def test_the_tutorial_of_serving_works_as_it_stands(tmp_path: Path) -> None:
    """The answers before and after the third day name the exports that gave them, and differ."""
    pytest.importorskip("mlflow")
    link_clone(tmp_path)
    (tmp_path / "out").mkdir()
    folder = tmp_path / "out" / "serving"
    try:
        for block in blocks_of("tutorial-serving.md"):
            block.do(tmp_path)
    finally:
        pid = folder / "serve.pid"
        if pid.exists():
            with suppress(ProcessLookupError):  # it has ended, as it should
                os.kill(int(pid.read_text()), signal.SIGKILL)
    answers = [(folder / name).read_text() for name in ("before.txt", "after.txt")]
    for answer, day in zip(answers, ("2026-11-27", "2026-11-28"), strict=True):
        assert re.search(rf"x-model: {day}/export [0-9a-f]{{12}}\s", answer)
        assert len(re.findall(r"0\.\d+", answer.partition('{"scores": ')[2])) == 3
    assert answers[0].splitlines()[-1] != answers[1].splitlines()[-1]
    versions = (folder / "versions.txt").read_text().splitlines()
    assert len(versions) == 4
    assert versions[-1] == "published: 3"
    log = (folder / "serve.log").read_text()
    assert log.count("takes over from") == 1
    assert "Traceback" not in log
