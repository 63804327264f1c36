"""Divides the feeds of each pass among ranks. Rank 0 does all that is between passes, as one process does.

Rank 0 writes a pass and its feeds into a file, every rank takes each N-th feed, and all add to the same journal. Rank 0
yields the records that it finds there. A rank that is started again looks for the current file, and skips the items
whose records are there. How they see each other's files is the affair of ``shared_folder``.
"""

import json
import logging
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic

from dlrm_app.distributed.ranks import Ranks
from dlrm_app.errors import Problem, first_problems
from dlrm_app.journal import Finish, Journal, R
from dlrm_app.preprocessing.work.executor import Executor, Feed, LocalExecutor, Pass, T
from dlrm_app.preprocessing.work.meeting import Meeting
from dlrm_app.preprocessing.work.shared_folder import SETTINGS, SharedFolder
from dlrm_app.preprocessing.work.work_folder import own_code, remove_idle_work
from dlrm_app.records import Json, leaves
from dlrm_app.text import in_brief, json_text

logger = logging.getLogger(__name__)

_MAX_DIFFERENCES = 8
_LIST_SECONDS = 0.5
"""Seconds between two looks at a journal, whose folder may hold thousands of files."""
_LEAVE_SECONDS = 10.0
"""Seconds to wait until other ranks have seen that the dataset is finished; one that dies then is not waited for."""


@dataclass(frozen=True)
class Sharing:
    """Work on ``output`` that ranks share through ``shared``; all of them have the configuration ``settings``."""

    output: Path
    shared: SharedFolder
    ranks: Ranks
    timeout_minutes: float
    num_threads: int
    settings: Json

    @contextmanager
    def leading(self) -> Iterator[Executor]:
        """Opens an executor whose passes all ranks share. For rank 0. OUTPUT/.work is deleted once all have left.

        Raises DlrmError if another rank fails or is missing.
        """
        self.shared.open(self.ranks.world_size)
        with self.shared.locked(0):
            self.shared.write(SETTINGS, json_text(self._own_settings()).encode())
            meeting = Meeting(self.shared, self.ranks, self.timeout_minutes)
            try:
                with meeting.entered():
                    meeting.wait_for_followers()
                    logger.info(
                        f"{self.ranks.world_size} ranks share the work, {self.num_threads} thread(s) each"
                    )
                    yield RankExecutor(meeting, LocalExecutor(self.num_threads))
                    self.shared.show()
                    meeting.say(has_left=True)
                    meeting.wait_for_leavers(_LEAVE_SECONDS * self.shared.pace)
            finally:
                remove_idle_work(self.output)
                self.shared.close()

    def follow(self) -> None:
        """Does this rank's share of all passes, until the dataset is finished. For ranks other than 0.

        Raises DlrmError if rank 0 fails or is missing.
        """
        meeting = Meeting(self.shared, self.ranks, self.timeout_minutes)
        while not self.shared.is_open():
            if self._is_over(meeting):
                return
            meeting.pause()
        with self.shared.locked(self.ranks.rank), meeting.entered():
            while not self._is_over(meeting):
                meeting.pause()
                lead = meeting.lead
                if lead.process != meeting.own.lead:
                    if meeting.own.process in lead.seen:  # so it lives
                        meeting.follow(lead, self._other_settings(meeting))
                elif lead.task > meeting.own.task:
                    self._do_task(meeting, lead.task)
            meeting.say(has_left=True)

    def _is_over(self, meeting: Meeting) -> bool:
        """True once the dataset is finished. Machines that share a disk may see the manifest later than the state."""
        return self.shared.is_finished() or (not meeting.has_new_lead and meeting.lead.has_left)

    def _do_task(self, meeting: Meeting, number: int) -> None:
        work, feeds = self.shared.unpack(self.shared.read(_task_file(meeting.own.lead, number)))
        self.shared.fetch(work)
        work.journal.create()
        remaining: _Remaining[Any, Any] = _Remaining(work)
        mine = feeds[self.ranks.rank :: self.ranks.world_size]
        executor = LocalExecutor(self.num_threads)
        with self.shared.showing(), closing(executor.run(remaining, mine)) as records:
            for _ in records:
                meeting.check()
                if meeting.has_new_lead:
                    return
        self.shared.show()
        meeting.say(task=number)

    def _own_settings(self) -> Json:
        return {"ranks": self.ranks.world_size, "code": own_code(), **self.settings}

    def _other_settings(self, meeting: Meeting) -> list[Problem]:
        """The settings of rank 0 that are not this rank's."""
        theirs = dict(leaves(json.loads(self.shared.read(SETTINGS))))
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


def _task_file(process: str, number: int) -> str:
    return f"{process}-{number}.task"


@dataclass(frozen=True)
class _Remaining(Generic[T, R]):
    """``work`` on the items that have no record yet, such as one of this rank's earlier process."""

    title: ClassVar[str] = "remaining"
    reads: ClassVar[tuple[str, ...]] = ()
    work: Pass[T, R]

    @property
    def journal(self) -> Journal[R]:
        return self.work.journal

    def __call__(self, item: T, /) -> Finish[R]:
        is_done = self.journal.is_done(item.name)
        return partial(self.journal.load, item.name) if is_done else self.work(item)


class _Looks:
    """The looks at a journal: one in ``seconds``, and fewer if looking takes most of that time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due_at = time.monotonic() + seconds

    @property
    def is_due(self) -> bool:
        return time.monotonic() > self._due_at

    @contextmanager
    def timed(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        took = time.monotonic() - began
        self._due_at = began + took + max(self._seconds, 4 * took)


class RankExecutor:
    """Runs each pass on all ranks. For rank 0."""

    def __init__(self, meeting: Meeting, local: LocalExecutor) -> None:
        self._meeting, self._local = meeting, local

    def run(self, work: Pass[T, R], feeds: Sequence[Feed[T]]) -> Generator[R, None, None]:
        """See ``executor.Executor``."""
        meeting, shared = self._meeting, self._meeting.shared
        if len(feeds) < 2:
            shared.fetch(work)
            yield from self._local.run(work, feeds)
            return
        known, looks = set(work.journal.done()), _Looks(_LIST_SECONDS * shared.pace)
        number = meeting.own.task + 1

        def news() -> list[R]:
            with looks.timed():
                shared.fetch_records(work.journal)
                names = [name for name in work.journal.done() if name not in known]
                known.update(names)
                return [work.journal.load(name) for name in names]

        shared.show()
        shared.write(_task_file(meeting.own.process, number), shared.pack((work, feeds)))
        meeting.say(task=number)
        shared.fetch(work)
        with closing(self._local.run(work, feeds[:: meeting.ranks.world_size])) as own:
            for _ in own:
                if looks.is_due:
                    meeting.check()
                    yield from news()
        while not meeting.all_have_done(number):
            meeting.pause()
            if looks.is_due:
                yield from news()
        # the file stays until the end: a rank that is started again may ask for it between two passes
        yield from news()
