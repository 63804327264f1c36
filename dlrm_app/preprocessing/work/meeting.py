"""The processes that share the work of a dataset meet in files (``shared_folder``): preprocessing loads no torch.

A rank's file <rank>.state has what it says of itself; it changes every second as long as the process lives.
Rank 0 leads, the others follow. A killed process leaves its state behind, and clocks of machines differ. So a state
counts only if it answers a living process: rank 0 repeats the name of each process that it sees, and the others
repeat the name of the rank 0 that has seen them. A rank is missed by its reader's clock.
"""

import base64
import json
import logging
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from dlrm_app.distributed.ranks import Ranks
from dlrm_app.errors import ConfigError, DataError, DlrmError, Problem, refuse_if
from dlrm_app.preprocessing.work.packed import pack_error, unpack_error
from dlrm_app.preprocessing.work.shared_folder import SharedFolder
from dlrm_app.records import from_json
from dlrm_app.text import json_text

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.2
"""Seconds between two looks at the states of others."""
BEAT_SECONDS = 1.0
"""Seconds between two changes of a rank's own state."""
_SLOW_SECONDS = 10.0
"""Seconds of waiting for ranks to come until a line says so."""
_FAREWELL_SECONDS = 1.0
"""Seconds to wait, after an error, until idle ranks have seen it."""


@dataclass(frozen=True)
class RankState:
    """A rank's state, as it tells the others.

    process: a random name of its process
    lead: the process of rank 0 that it follows; empty until that has seen it
    task: the number of the last task that rank 0 has given out, or that another rank has done for ``lead``
    seen: of rank 0: the processes of all ranks, as it sees them
    has_left: it does nothing more; of rank 0: the dataset is finished
    failure: its error, as ``_failure`` writes it
    """

    process: str
    beat: int = 0
    lead: str = ""
    task: int = 0
    seen: tuple[str, ...] = ()
    has_left: bool = False
    failure: str = ""


def _failure(error: Exception, rank: int) -> str:
    """``error`` as text for other ranks; one that is a bug stays with its traceback on ``rank``."""
    if not isinstance(error, DlrmError):
        error = DlrmError(Problem(f"rank {rank}", "has failed", "its last message says why"))
    return base64.b64encode(pack_error(error)).decode()


class Meeting:
    """A rank's view of the others: rank 0 looks at all of them, the others look at rank 0."""

    def __init__(self, shared: SharedFolder, ranks: Ranks, timeout_minutes: float) -> None:
        self.shared, self.ranks = shared, ranks
        self._minutes = timeout_minutes
        self._own = RankState(secrets.token_hex(8))
        self._others = dict.fromkeys(range(1, ranks.world_size) if ranks.is_first else (0,), RankState(""))
        self._heard = dict.fromkeys(self._others, time.monotonic())
        self._guard, self._has_ended = threading.Lock(), threading.Event()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Shows this rank to the others while the block runs. An error of the block reaches them."""
        self.say()
        beats = threading.Thread(target=self._keep_beating, name="heartbeat", daemon=True)
        beats.start()
        try:
            yield
        except Exception as error:
            self.say(failure=_failure(error, self.ranks.rank))
            self.wait_for_leavers(_FAREWELL_SECONDS * self.shared.pace)
            raise
        finally:
            self._has_ended.set()
            beats.join()

    @property
    def own(self) -> RankState:
        return self._own

    @property
    def lead(self) -> RankState:
        """The state of rank 0."""
        return self._others[0]

    @property
    def has_new_lead(self) -> bool:
        """True if rank 0 is another process than the one that this rank follows."""
        return self.lead.process != self.own.lead

    @property
    def followers(self) -> list[RankState]:
        """The states of the ranks that follow this process."""
        return [state for state in self._others.values() if state.lead == self.own.process]

    def all_have_done(self, task: int) -> bool:
        """True if every other rank follows this process, which is rank 0, and has done ``task``; 0 is none."""
        return [state.task for state in self.followers] == [task] * len(self._others)

    def say(self, **changes: Any) -> None:
        """Changes this rank's state, until it has left or failed: then rank 0 may delete the folder."""
        with self._guard, suppress(FileNotFoundError):
            if self._own.has_left or self._own.failure:
                return
            self._own = replace(self._own, **changes, beat=self._own.beat + 1)
            self.shared.write(_state_file(self.ranks.rank), json_text(asdict(self._own)).encode())

    def follow(self, lead: RankState, problems: Sequence[Problem]) -> None:
        """Follows ``lead``. Raises ConfigError, on rank 0 too, with ``problems`` that keep this rank from it."""
        failure = _failure(ConfigError(*problems), self.ranks.rank) if problems else ""
        self.say(lead=lead.process, task=0, failure=failure)
        refuse_if(problems)

    def wait_for_followers(self) -> None:
        """Waits until every other rank follows this process, which is rank 0. Raises what ``check`` raises."""
        slow_at = time.monotonic() + _SLOW_SECONDS
        while not self.all_have_done(0):
            self.pause()
            if time.monotonic() > slow_at:
                slow_at = float("inf")
                absent = [str(rank) for rank, each in self._others.items() if each.lead != self.own.process]
                logger.info(f"waiting for rank {', '.join(absent)} of {self.ranks.world_size}")
        self.check()

    def wait_for_leavers(self, seconds: float) -> None:
        """Waits up to ``seconds`` until no other rank does anything more."""
        deadline = time.monotonic() + seconds
        while not all(state.has_left or state.failure for state in self.followers):
            if time.monotonic() > deadline:
                return
            time.sleep(TICK_SECONDS)

    def pause(self) -> None:
        """Waits a moment. Raises what ``check`` raises."""
        self.check()
        time.sleep(TICK_SECONDS * self.shared.pace)

    def check(self) -> None:
        """Raises DlrmError if another rank has failed, or has been silent for too long."""
        for rank, state in self._others.items():
            # what an earlier process said does not count
            counts = self.own.process == state.lead if self.ranks.is_first else self.own.lead == state.process
            if counts and state.failure:
                error = unpack_error(base64.b64decode(state.failure))
                error.is_shared = not self.ranks.is_first  # rank 0 reports it
                raise error
            if time.monotonic() - self._heard[rank] > 60 * self._minutes:
                rule = f"has not been heard of for timeout_minutes={self._minutes:g}"
                cure = (
                    "its last message, or its machine, says why; run the same command again, with any number of ranks: it "
                    "continues where it stopped"
                )
                raise DlrmError(Problem(f"rank {rank} of {self.ranks.world_size}", rule, cure))

    def _keep_beating(self) -> None:
        last = time.monotonic()
        while not self._has_ended.wait(TICK_SECONDS * self.shared.pace):
            with suppress(OSError, DataError):  # a full disk, or a store that fails, is reported by the work
                self._look()
                if time.monotonic() - last >= BEAT_SECONDS * self.shared.pace:
                    last = time.monotonic()
                    self.say()

    def _look(self) -> None:
        self.shared.look()
        for rank, before in self._others.items():
            state = self._read(rank)
            if state is not None and state != before:
                self._others[rank], self._heard[rank] = state, time.monotonic()
        if self.ranks.is_first:
            seen = (self.own.process, *(state.process for state in self._others.values()))
            if seen != self.own.seen:
                self.say(seen=seen)

    def _read(self, rank: int) -> RankState | None:
        """The state of ``rank``; None if it has not come yet."""
        try:
            return from_json(RankState, json.loads(self.shared.read(_state_file(rank))))
        except (FileNotFoundError, ValueError, DlrmError):
            return None


def _state_file(rank: int) -> str:
    return f"{rank}.state"
