"""Ranks that share a preprocessing, as threads of a test's process, which can be killed and started again."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dlrm_app.config.datasets import PreprocessConfig
from dlrm_app.distributed.ranks import Ranks
from dlrm_app.journal import Journal
from dlrm_app.preprocessing.preprocess import preprocess
from dlrm_app.preprocessing.summary import Dataset
from dlrm_app.preprocessing.work.meeting import Meeting
from tests.preprocessing.running import configure


def rank_of(rank: int, num_ranks: int) -> Ranks:
    return Ranks(rank, rank, num_ranks, num_ranks, "cpu")


class SharedRun:
    """Starts ranks that make ``output``, in threads."""

    def __init__(self, output: Path, *given: str) -> None:
        self.given = [*given, "threads=1", f"output={output}"]
        self._pool = ThreadPoolExecutor(16)

    def start(self, num_ranks: int, *ranks: int, more: tuple[str, ...] = ()) -> list[Future[Dataset]]:
        """Starts ``ranks`` of ``num_ranks``, or all of them."""
        config = configure(*self.given, *more)
        return [self._pool.submit(_as_rank, config, rank, num_ranks) for rank in ranks or range(num_ranks)]


_place = threading.local()


def _as_rank(config: PreprocessConfig, rank: int, num_ranks: int) -> Dataset:
    _place.rank = rank
    try:
        return preprocess(config, rank_of(rank, num_ranks))
    finally:
        _place.rank = None


def share(output: Path, num_ranks: int, *given: str) -> list[Dataset]:
    """What each of ``num_ranks`` ranks returns. Raises the error of the first rank that fails."""
    return [each.result() for each in SharedRun(output, *given).start(num_ranks)]


def kill_ranks(monkeypatch: pytest.MonkeyPatch, dies: Callable[[int, str], bool]) -> Counter[int]:
    """Kills a rank, as Ctrl-C does, where ``dies(rank, "commit" or "pause")``; returns how often each was killed."""
    killed = Counter[int]()

    def deadly(action: Callable[..., Any], what: str) -> Callable[..., Any]:
        def act(*arguments: Any) -> Any:
            rank = getattr(_place, "rank", None)
            if rank is not None and dies(rank, what):
                killed[rank] += 1
                raise KeyboardInterrupt
            return action(*arguments)

        return act

    monkeypatch.setattr(Journal, "commit", deadly(Journal.commit, "commit"))
    monkeypatch.setattr(Meeting, "pause", deadly(Meeting.pause, "pause"))
    return killed
