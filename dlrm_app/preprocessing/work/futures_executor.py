"""Runs units of work by any ``concurrent.futures.Executor``: processes, MPI's ranks, the workers of a Dask cluster.

Whoever runs a feed must see the input and the output under the same names; relative names start from the caller's
folder. The pass, which may take megabytes, is read from a file in OUTPUT/.work.
"""

import os
import pickle
import secrets
from collections.abc import Generator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Future, as_completed, wait
from concurrent.futures import Executor as Pool
from functools import lru_cache
from pathlib import Path
from typing import Any

from dlrm_app.errors import DlrmError, Problem
from dlrm_app.files import written_whole
from dlrm_app.forks import refuse_fork
from dlrm_app.journal import REPEAT, R
from dlrm_app.preprocessing.work.executor import Feed, Pass, T
from dlrm_app.preprocessing.work.work_folder import WORK, own_code


class FuturesExecutor:
    """Runs each feed as a call of ``pool``, which may be of other processes or machines that see ``output``.

    ``broken``: the problem that is reported if the pool cancels a call, or cannot run more.
    """

    def __init__(self, pool: Pool, output: Path, broken: Problem | None = None) -> None:
        self._pool, self._output = pool, output
        rule = "has ended, or has lost a process, as where memory runs out"
        self._broken = broken or Problem(f"executor={type(pool).__name__}", rule, f"start another, {REPEAT}")

    def run(self, work: Pass[T, R], feeds: Sequence[Feed[T]]) -> Generator[R, None, None]:
        """See ``executor.Executor``."""
        task = self._output / WORK / f"{work.journal.folder.name}-{secrets.token_hex(4)}.task"
        with written_whole(task) as temporary:
            temporary.write_bytes(pickle.dumps(work))
        folder, code, calls = Path.cwd(), own_code(), list[Future[list[R]]]()
        try:
            calls += (self._pool.submit(run_feed, folder / task, code, folder, feed) for feed in feeds)
            for call in as_completed(calls):
                yield from call.result()
        except (BrokenExecutor, CancelledError) as error:
            raise DlrmError(self._broken) from error
        finally:
            wait([call for call in calls if not call.cancel()])
            task.unlink(missing_ok=True)


def run_feed(task: Path, code: str, folder: Path, feed: Feed[Any]) -> list[Any]:
    """Does the pass in the file ``task`` on the items of ``feed``, whose paths are relative to ``folder``.

    ``code``: the checksum of the caller's dlrm-app. Raises DlrmError if this process's differs.
    """
    refuse_fork()
    if code != own_code():
        cure = f"install the same on all, start it again, {REPEAT}"
        rule = "has another dlrm-app than the caller"
        raise DlrmError(Problem(f"process {os.getpid()} of {os.uname().nodename}", rule, cure))
    if Path.cwd() != folder:
        os.chdir(folder)
    work = _read_pass(task)
    return [work(item)() for item in feed.items()]


@lru_cache(maxsize=1)
def _read_pass(task: Path) -> Pass[Any, Any]:
    """Reads a pass once for all feeds that this process runs."""
    work: Pass[Any, Any] = pickle.loads(task.read_bytes())
    return work
