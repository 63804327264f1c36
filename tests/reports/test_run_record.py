"""What a report reads: runs that go on meanwhile, empty ones, and folders of other programs."""

import random
from pathlib import Path

import pytest

from dlrm_app.errors import DataError
from dlrm_app.reports.run_page import write_report
from dlrm_app.reports.run_record import read_run
from tests.refusals import is_like, refused
from tests.training.run_fixture import write_run


def test_a_run_that_goes_on_is_read_up_to_the_last_whole_line(tmp_path: Path) -> None:
    """Another process appends: the file may end within any byte."""
    run = tmp_path / "run"
    write_run(run)
    (run / "result.json").unlink()
    whole = (run / "metrics.jsonl").read_bytes()
    chance = random.Random(3)
    for size in [0, 1, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(20))]:
        (run / "metrics.jsonl").write_bytes(whole[:size])
        record = read_run(run)
        num_events = sum(map(len, (record.train, record.evals)))
        # the last line is whole without its newline, too
        assert num_events - whole[:size].count(b"\n") in (0, 1)
        assert "Not finished" in write_report(run).read_text()


@pytest.mark.parametrize(
    "text",
    ["", "[1, 2]", "hello", "3", "a: 1", "trainer: 5", "trainer: {global_batch_size: many}", "a: [", "\x00"],
)
def test_a_folder_of_another_program_is_called_what_it_is(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(DataError) as caught:
        write_report(tmp_path)
    (problem,) = caught.value.problems
    rules = (
        "holds no run (no config.yaml)",
        "was damaged after it was written (...)",
        "is not what dlrm-train wrote",
    )
    assert any(is_like(problem, f"{tmp_path}...", rule) for rule in rules), problem


@pytest.mark.parametrize("name", ["environment.json", "dataset.json", "curves.json", "result.json"])
@pytest.mark.parametrize("content", [b"{", b"[1]", b"3", b"\xff\xfe"])
def test_a_file_of_another_program_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "run" / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        write_report(tmp_path / "run")
    assert [problem.key for problem in caught.value.problems] == [f"{tmp_path}/run/{name}"]


@pytest.mark.parametrize(
    "line",
    [
        "[1]",
        "3",
        "null",
        '{"loss": 1}',
        '{"event": "train", "step": "1"}',
        '{"event": "eval", "split": "val", "epoch": "x", "step": 3, "auc": 1}',
        "\x80",
    ],
)
def test_a_line_that_is_not_an_event_is_named(tmp_path: Path, line: str) -> None:
    write_run(tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_bytes(line.encode("latin-1") + b"\n" + path.read_bytes())
    with refused(DataError, f"{path}:1", "is not an event of a run (...)"):
        write_report(tmp_path / "run")
