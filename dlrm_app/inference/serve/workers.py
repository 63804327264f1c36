"""Several processes that serve at one port: started together, started again when one dies, ended together.

They are forks of a process that computes nothing, so they share its port and the memory of its imports. Each opens the
export for itself, follows the link for itself, and has a port on this machine alone, where the others read its metrics.
"""

import logging
import mmap
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from dlrm_app.distributed.launcher import stop_with_parent

logger = logging.getLogger(__name__)
_PAUSE = 1.0
"""Seconds before a worker that died is started again."""
_NEVER, _SERVES, _DIED = range(3)
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_METRICS_SECONDS = 2.0
"""Seconds to wait for another worker's metrics; one that is just starting is left out."""


@dataclass(frozen=True)
class Worker:
    """One of several processes that serve. ``own``: its own port, listening; ``ports``: the own ports of all."""

    number: int
    own: socket.socket
    ports: Sequence[int]
    begun: mmap.mmap
    """A byte for each worker, shared by all: _NEVER, or _SERVES, or _DIED after that."""

    @property
    def port(self) -> int:
        return self.ports[self.number]

    def say_begun(self) -> None:
        """Tells the first process that this worker serves."""
        self.begun[self.number] = _SERVES

    def metrics_of_all(self, own: bytes) -> bytes:
        """The metrics of all workers, ``own`` among them, with a label for the worker."""
        pages = {number: self._page(port) for number, port in enumerate(self.ports) if number != self.number}
        return with_workers({**pages, self.number: own})

    def _page(self, port: int) -> bytes:
        connection = HTTPConnection("127.0.0.1", port, timeout=_METRICS_SECONDS)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read()
        except (OSError, HTTPException):  # it is just being started
            return b""
        finally:
            connection.close()


class _Pages(Collector):
    def __init__(self, pages: Mapping[int, bytes]) -> None:
        self._pages = pages

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for number, page in sorted(self._pages.items()):
            for family in text_string_to_metric_families(page.decode()):
                same = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    same.add_sample(sample.name, {**sample.labels, "worker": str(number)}, sample.value)
        yield from families.values()


def with_workers(pages: Mapping[int, bytes]) -> bytes:
    """One page of the metrics in ``pages`` (worker → its page), with the label ``worker``."""
    registry = CollectorRegistry()
    registry.register(_Pages(pages))
    return generate_latest(registry)


def run_workers(count: int, work: Callable[[Worker], object]) -> None:
    """Runs ``work`` in ``count`` processes until a signal ends them. Returns in each of them, and in the first one.

    A worker that dies is started again. If one cannot begin, at the start or while no other one serves, all are
    ended, and so is this process, with its exit code. SIGTERM, SIGINT and SIGHUP to this process reach all. Raises
    KeyboardInterrupt after SIGINT.
    """
    owns = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports, begun = [own.getsockname()[1] for own in owns], mmap.mmap(-1, count)
    _Parent([Worker(number, own, ports, begun) for number, own in enumerate(owns)], work).run()


class _Parent:
    def __init__(self, workers: Sequence[Worker], work: Callable[[Worker], object]) -> None:
        self._workers, self._work = workers, work
        self._numbers: dict[int, int] = {}
        """Process → the number of its worker."""
        self._ended_by: int | None = None
        self._code = 0

    def run(self) -> None:
        for signal_number, action in zip(_SIGNALS, (self._end, self._end, self._pass_on), strict=True):
            signal.signal(signal_number, action)
        for worker in self._workers:
            if not self._start(worker):
                return
        while self._numbers:
            pid, status = os.wait()
            # others are children of the shell that became this process, or orphans of a container
            number = self._numbers.pop(pid, None)
            if number is None or self._ended_by is not None:
                continue
            if not self._replace(self._workers[number], pid, os.waitstatus_to_exitcode(status)):
                return
        if self._ended_by == signal.SIGINT:
            raise KeyboardInterrupt
        if self._code:
            raise SystemExit(self._code)

    def _replace(self, worker: Worker, pid: int, code: int) -> bool:
        """Starts another process for ``worker``, whose process ended; or ends all, if none can begin. As ``_start``."""
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        before = worker.begun[worker.number]
        if before == _SERVES:
            worker.begun[worker.number] = _DIED
        elif before == _NEVER or _SERVES not in worker.begun[:]:
            self._code = code if code > 0 else 1
            logger.error("worker %d (pid %d) could not begin (%s)", worker.number, pid, how)
            self._end(signal.SIGTERM)
            return True
        logger.warning("worker %d (pid %d) ended (%s); another one is started", worker.number, pid, how)
        time.sleep(_PAUSE)
        return self._start(worker)

    def _start(self, worker: Worker) -> bool:
        """Starts the process of ``worker``. Returns False in that process, once its work is done."""
        parent = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # none gets lost between the fork and its handlers
        pid = os.fork() if self._ended_by is None else None
        if pid != 0:
            if pid:
                self._numbers[pid] = worker.number
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            return True
        os.setpgrp()  # Ctrl-C in a terminal goes to the first process, which ends the others
        stop_with_parent(parent)
        for number, action in zip(_SIGNALS, (signal.SIG_DFL, signal.SIG_DFL, signal.SIG_IGN), strict=True):
            signal.signal(number, action)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        self._work(worker)
        return False

    def _end(self, number: int, _: object = None) -> None:
        self._ended_by = self._ended_by or number
        self._send(signal.SIGTERM)

    def _pass_on(self, number: int, _: object) -> None:
        self._send(number)

    def _send(self, number: int) -> None:
        for pid in [*self._numbers]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:  # it has just ended
                continue
