"""Divides the feeds of each pass among ranks. Rank 0 does all that is between passes, as one process does.

Rank 0 writes a pass and its feeds into a file, every rank takes each N-th feed, and all add to the same journal. Rank 0
yields the records that it finds there. A rank that is started again looks for the current file, and skips the items
whose records are there.

    OUTPUT/.work/ranks/<process of rank 0>-<number>.task   a pass and its feeds
    OUTPUT/.work/ranks/settings                            the configuration of rank 0, which all must have
"""

import json
import logging
import pickle
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic

from dlrm_app.dataset.manifest import MANIFEST
from dlrm_app.distributed.ranks import Ranks
from dlrm_app.errors import Problem, first_problems
from dlrm_app.files import is_file, write_json, written_whole
from dlrm_app.journal import Finish, Journal, R
from dlrm_app.locks import held_lock
from dlrm_app.preprocessing.work.executor import Executor, Feed, LocalExecutor, Pass, T
from dlrm_app.preprocessing.work.meeting import Meeting
from dlrm_app.preprocessing.work.work_folder import RANKS, WORK, own_code, remove_idle_work
from dlrm_app.records import Json, leaves
from dlrm_app.text import in_brief, json_text

logger = logging.getLogger(__name__)

_SETTINGS = "settings"
_MAX_DIFFERENCES = 8
_LIST_SECONDS = 0.5
"""Seconds between two looks at a journal, whose folder may hold thousands of files."""
_LEAVE_SECONDS = 10.0
"""Seconds to wait until other ranks have seen that the dataset is finished; one that dies then is not waited for."""


@dataclass(frozen=True)
class Sharing:
    """Work on ``output`` that is shared by ranks, all of which have the configuration ``settings``."""

    output: Path
    ranks: Ranks
    timeout_minutes: float
    num_threads: int
    settings: Json

    @property
    def folder(self) -> Path:
        return self.output / WORK / RANKS

    @contextmanager
    def leading(self) -> Iterator[Executor]:
        """Opens an executor whose passes all ranks share. For rank 0. OUTPUT/.work is deleted once all have left.

        Raises DlrmError if another rank fails or is missing.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            write_json(self.folder / _SETTINGS, self._own_settings())
            meeting = Meeting(self.folder, self.ranks, self.timeout_minutes)
            try:
                with meeting.entered():
                    meeting.wait_for_followers()
                    logger.info(
                        f"{self.ranks.world_size} ranks share the work, {self.num_threads} thread(s) each"
                    )
                    yield RankExecutor(meeting, LocalExecutor(self.num_threads))
                    meeting.say(has_left=True)
                    meeting.wait_for_leavers(_LEAVE_SECONDS)
            finally:
                remove_idle_work(self.output)

    def follow(self) -> None:
        """Does this rank's share of all passes, until the dataset is finished. For ranks other than 0.

        Raises DlrmError if rank 0 fails or is missing.
        """
        meeting = Meeting(self.folder, self.ranks, self.timeout_minutes)
        while not self.folder.is_dir():  # rank 0 makes it
            if self._is_over(meeting):
                return
            meeting.pause()
        with self._locked(), meeting.entered():
            while not self._is_over(meeting):
                meeting.pause()
                lead = meeting.lead
                if lead.process != meeting.own.lead:
                    if meeting.own.process in lead.seen:  # so it lives
                        meeting.follow(lead, self._other_settings(meeting))
                elif lead.task > meeting.own.task:
                    self._do_task(meeting, lead.task)
            meeting.say(has_left=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        rank = self.ranks.rank
        refusal = f"another process is rank {rank} of those that work on output={self.output}: wait for it or end it"
        with held_lock(self.folder / f"{rank}.lock", refusal):
            yield

    def _is_over(self, meeting: Meeting) -> bool:
        """True once the dataset is finished. Machines that share a disk may see the manifest later than the state."""
        return is_file(self.output / MANIFEST) or (not meeting.has_new_lead and meeting.lead.has_left)

    def _do_task(self, meeting: Meeting, number: int) -> None:
        work, feeds = pickle.loads(meeting.read(_task_file(self.folder, meeting.own.lead, number)))
        remaining: _Remaining[Any, Any] = _Remaining(work)
        mine = feeds[self.ranks.rank :: self.ranks.world_size]
        with closing(LocalExecutor(self.num_threads).run(remaining, mine)) as records:
            for _ in records:
                meeting.check()
                if meeting.has_new_lead:
                    return
        meeting.say(task=number)

    def _own_settings(self) -> Json:
        return {"ranks": self.ranks.world_size, "code": own_code(), **self.settings}

    def _other_settings(self, meeting: Meeting) -> list[Problem]:
        """The settings of rank 0 that are not this rank's."""
        theirs = dict(leaves(json.loads(meeting.read(self.folder / _SETTINGS))))
        ours, rank = dict(leaves(json.loads(json_text(self._own_settings())))), self.ranks.rank
        if theirs["code"] != ours["code"]:
            rule = "has another dlrm-app than rank 0"
            return [Problem(f"rank {rank}", rule, "install the same on all, then run the same command again")]
        keys = [key for key in sorted(theirs.keys() | ours.keys()) if theirs.get(key) != ours.get(key)]
        cure = "give all ranks the same settings"
        values = {key: [in_brief(each.get(key)) for each in (theirs, ours)] for key in keys}
        problems = [
            Problem(key, f"is {first} for rank 0, and {second} for rank {rank}", cure)
            for key, (first, second) in values.items()
        ]
        return first_problems(problems, _MAX_DIFFERENCES)


def _task_file(folder: Path, process: str, number: int) -> Path:
    return folder / f"{process}-{number}.task"


@dataclass(frozen=True)
class _Remaining(Generic[T, R]):
    """``work`` on the items that have no record yet, such as one of this rank's earlier process."""

    title: ClassVar[str] = "remaining"
    work: Pass[T, R]

    @property
    def journal(self) -> Journal[R]:
        return self.work.journal

    def __call__(self, item: T, /) -> Finish[R]:
        is_done = self.journal.is_done(item.name)
        return partial(self.journal.load, item.name) if is_done else self.work(item)


class RankExecutor:
    """Runs each pass on all ranks. For rank 0."""

    def __init__(self, meeting: Meeting, local: LocalExecutor) -> None:
        self._meeting, self._local = meeting, local

    def run(self, work: Pass[T, R], feeds: Sequence[Feed[T]]) -> Generator[R, None, None]:
        """See ``executor.Executor``."""
        if len(feeds) < 2:
            yield from self._local.run(work, feeds)
            return
        meeting, known, listed_at = self._meeting, set(work.journal.done()), time.monotonic()
        number = meeting.own.task + 1
        task = _task_file(meeting.folder, meeting.own.process, number)

        def news() -> list[R]:
            nonlocal listed_at
            listed_at = time.monotonic()
            names = [name for name in work.journal.done() if name not in known]
            known.update(names)
            return [work.journal.load(name) for name in names]

        with written_whole(task) as temporary:
            temporary.write_bytes(pickle.dumps((work, feeds)))
        meeting.say(task=number)
        with closing(self._local.run(work, feeds[:: meeting.ranks.world_size])) as own:
            for _ in own:
                if time.monotonic() - listed_at > _LIST_SECONDS:
                    meeting.check()
                    yield from news()
        while not meeting.all_have_done(number):
            meeting.pause()
            if time.monotonic() - listed_at > _LIST_SECONDS:
                yield from news()
        # the file stays until the end: a rank that is started again may ask for it between two passes
        yield from news()
