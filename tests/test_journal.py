"""The journal: work is done once its record is there, whatever ends the process before."""

import pickle
from dataclasses import dataclass
from pathlib import Path

import pytest

from dlrm_app.errors import DataError
from dlrm_app.journal import Journal, numbered


@dataclass(frozen=True)
class Rows:
    rows: int


@pytest.fixture
def journal(tmp_path: Path) -> Journal[Rows]:
    return Journal(tmp_path / "a" / "work", Rows).create()


def do(journal: Journal[Rows], name: str, rows: int) -> None:
    work = journal.begin(name)
    with work.write(".txt") as temporary:
        temporary.write_text(str(rows))
    assert work.finish(Rows(rows))() == Rows(rows)


def test_finished_work_is_found_again_in_order(journal: Journal[Rows]) -> None:
    for number in (10, 9, 100):
        do(journal, numbered(1, number), number)
    do(journal, numbered(0, 3), 3)
    again = Journal(journal.folder, Rows).create()
    assert again.done() == [numbered(0, 3), *(numbered(1, number) for number in (9, 10, 100))]
    assert [again.load(name).rows for name in again.done()] == [3, 9, 10, 100]
    assert again.is_done(numbered(0, 3))
    assert not again.is_done(numbered(0, 4))
    assert again.path(numbered(0, 3), ".txt").read_text() == "3"


def test_work_is_not_done_before_its_last_step(journal: Journal[Rows]) -> None:
    work = journal.begin("step")
    with work.write(".txt") as temporary:
        temporary.write_text("1")
    finish = work.finish(Rows(1))
    assert not journal.is_done("step")
    assert not work.path(".txt").exists()
    finish()
    assert journal.is_done("step")
    assert work.path(".txt").read_text() == "1"


def test_a_file_that_fails_leaves_nothing(journal: Journal[Rows]) -> None:
    def write_half(path: Path) -> None:
        path.write_text("half")
        raise ValueError("line 3")

    work = journal.begin("step")
    with pytest.raises(ValueError, match="line 3"), work.write(".txt") as temporary:
        write_half(temporary)
    assert list(journal.folder.iterdir()) == []


def test_files_of_killed_work_are_not_taken_for_finished(journal: Journal[Rows]) -> None:
    work = journal.begin("step")
    with work.write(".txt") as temporary:
        temporary.write_text("half")
    assert temporary.exists()
    assert journal.done() == []
    do(journal, "step", 2)
    assert journal.load("step") == Rows(2)


def test_forgotten_work_is_deleted_with_its_files(journal: Journal[Rows]) -> None:
    for name in (numbered(1, 0), numbered(1, 0, 3), numbered(10, 0)):
        do(journal, name, 1)
    journal.forget(numbered(1, 0))
    assert journal.done() == [numbered(1, 0, 3), numbered(10, 0)]
    assert not journal.path(numbered(1, 0), ".txt").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rows": "1"}', '{"lines": 1}', "\x00"])
def test_a_damaged_record_is_named(journal: Journal[Rows], text: str) -> None:
    journal.path("step", ".json").write_text(text)
    with pytest.raises(DataError) as error:
        journal.load("step")
    assert str(error.value).startswith(f"{journal.path('step', '.json')} is damaged")
    assert str(error.value).endswith("delete it and run the same command again")


def test_other_processes_can_add_to_it(journal: Journal[Rows]) -> None:
    do(pickle.loads(pickle.dumps(journal)), "elsewhere", 4)
    assert journal.load("elsewhere") == Rows(4)
