"""One save at a time, in the calling thread or in another; what goes wrong in it is raised where the run waits."""

import threading
from unittest import mock

import pytest
import torch

from dlrm_app.runs.checkpoint import pieces
from dlrm_app.runs.checkpoint.pieces import copy_pieces, local_pieces, not_finite
from dlrm_app.runs.checkpoint.writer import Writer


def writer(in_background: bool) -> Writer:
    return Writer(in_background)


def test_work_in_the_background_lets_the_caller_go_on() -> None:
    may_end, ended = threading.Event(), []
    background = writer(in_background=True)
    background.start(lambda: ended.append(may_end.wait(60)))
    assert ended == []
    may_end.set()
    background.finish()
    assert ended == [True]


def test_work_at_once_is_done_when_start_returns() -> None:
    done: list[int] = []
    writer(in_background=False).start(lambda: done.append(threading.get_ident()))
    assert done == [threading.get_ident()]


def test_a_failure_in_the_background_is_seen_and_raised_once() -> None:
    background = writer(in_background=True)
    assert not background.has_failed

    def fail() -> None:
        raise OSError("no space left")

    background.start(fail)
    background.abandon(60)  # waits, without raising
    assert background.has_failed
    with pytest.raises(OSError, match="no space left"):
        background.finish()
    assert not background.has_failed
    background.finish()


def test_copies_keep_the_values_that_training_changes() -> None:
    weight = torch.ones(3, 2)
    views, copies = local_pieces({"model/w": weight}), copy_pieces({"model/w": weight})
    weight.fill_(5)
    assert torch.equal(copies["model/w", (0, 0)], torch.ones(3, 2))
    assert views["model/w", (0, 0)] is weight


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 7, 99])
def test_one_value_that_is_no_number_is_found_wherever_it_lies(value: float, place: int) -> None:
    weight = 3e38 * torch.linspace(-1, 1, 100)
    tensors = {"model/a": torch.zeros(0, 4), "model/b": weight, "dense/c": torch.tensor(1.0)}
    assert not_finite(local_pieces(tensors)) == []
    weight[place] = value
    assert not_finite(local_pieces(tensors)) == ["model/b"]


@pytest.mark.parametrize("place", [(0, 0), (4, 1), (9, 2)])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_found_in_each_part(
    bad: float, place: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "COUNTABLE", 7)
    good, weight = torch.ones(10, 3), torch.ones(10, 3)
    weight[place] = bad
    with mock.patch("torch.aminmax", wraps=torch.aminmax) as extremes:
        assert not_finite(local_pieces({"good": good, "bad": weight, "none": torch.ones(0, 3)})) == ["bad"]
    assert [call.args[0].numel() for call in extremes.call_args_list] == [7, 7, 7, 7, 2] * 2
