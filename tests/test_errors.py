"""Errors hold records, which every way of passing them on keeps."""

import pickle

import pytest

from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import (
    ConfigError,
    DataError,
    DlrmError,
    Problem,
    SharedError,
    first_line,
    first_problems,
    joined,
    refuse_all,
)
from tests.ranks import on_ranks
from tests.refusals import find_problem, refused

EVEN = Problem("a.rows", "must be even", "add one", 3)
MISSING = Problem("data", "does not exist")


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (EVEN, "a.rows must be even, got 3: add one"),
        (MISSING, "data does not exist"),
        (Problem("a", "must be text", value=None), "a must be text, got null"),
        (Problem("a", "must be text", value=True), "a must be text, got true"),
        (Problem("", "the disk is full", "free some"), "the disk is full: free some"),
        (EVEN.within("train", "."), "train.a.rows must be even, got 3: add one"),
        (EVEN.within("mine.yaml"), "mine.yaml: a.rows must be even, got 3: add one"),
        (Problem("", "is no YAML").within("mine.yaml"), "mine.yaml is no YAML"),
        (EVEN.also("or leave it out"), "a.rows must be even, got 3: add one, or leave it out"),
        (MISSING.also("make one"), "data does not exist: make one"),
    ],
)
def test_a_problem_reads_as_one_line(problem: Problem, text: str) -> None:
    assert str(problem) == text


def test_an_error_prints_its_problems() -> None:
    assert str(ConfigError(EVEN)) == f"1 problem in the configuration:\n  - {EVEN}"
    assert str(ConfigError(EVEN, MISSING)) == f"2 problems in the configuration:\n  - {EVEN}\n  - {MISSING}"
    assert str(DataError(MISSING, EVEN)) == f"{MISSING}\n  - {EVEN}"
    assert str(DlrmError("the disk is full")) == "the disk is full"


@pytest.mark.parametrize("kind", [DlrmError, ConfigError, DataError, SharedError])
def test_pickling_keeps_the_records(kind: type[DlrmError]) -> None:
    error = kind(EVEN, MISSING)
    error.is_shared = True
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.problems, str(copy), copy.is_shared) == (kind, [EVEN, MISSING], str(error), True)


def test_joined_errors_keep_every_record_once() -> None:
    assert joined([DataError(MISSING)]).problems == [MISSING]
    found = joined([ConfigError(EVEN), DataError(MISSING, EVEN), DlrmError("no room")])
    assert isinstance(found, ConfigError)
    assert found.problems == [EVEN, MISSING, Problem("", "no room")]


def test_looks_add_their_records_to_the_problems() -> None:
    def look() -> None:
        raise DataError(MISSING)

    refuse_all([])
    with refused(ConfigError, "a.rows", "must be even") as caught:
        refuse_all([EVEN], look)
    assert caught.value.problems == [EVEN, MISSING]
    with refused(DataError, "data", "does not exist"):
        refuse_all([], look)


def test_many_problems_are_counted() -> None:
    assert first_problems([EVEN, MISSING], 2) == [EVEN, MISSING]
    assert first_problems([EVEN, MISSING, EVEN], 1) == [EVEN, Problem("", "… and 2 more")]


def test_an_error_without_a_message_is_named_by_its_type() -> None:
    assert first_line(ValueError("first\nsecond")) == "first"
    assert first_line(EOFError()) == "EOFError"


def test_the_helper_of_the_tests_tells_problems_apart() -> None:
    error = ConfigError(EVEN, MISSING)
    assert find_problem(error, "a.rows", "must ...", "add one") == EVEN
    for other in (("a.row", "must be even"), ("a.rows", "must be"), ("a.rows", "must be even", "add two")):
        with pytest.raises(AssertionError, match="no problem is"):
            find_problem(error, *other)
    with pytest.raises(DataError), refused(ConfigError, "data", "does not exist"):
        raise DataError(MISSING)


def _refused_on_all(runtime: Runtime) -> tuple[str, list[Problem], bool, int]:
    """What this rank raises if the last rank alone refuses its configuration."""

    def look() -> None:
        if runtime.rank == runtime.world_size - 1:
            raise ConfigError(EVEN, MISSING)

    with pytest.raises(DlrmError) as caught:
        runtime.together(look)
    error = caught.value
    return str(error), error.problems, error.is_shared, error.exit_code


def test_every_rank_raises_the_record_of_the_one_that_failed() -> None:
    error = ConfigError(EVEN, MISSING)
    assert on_ranks(_refused_on_all, 2) == [(str(error), error.problems, True, 2)] * 2
