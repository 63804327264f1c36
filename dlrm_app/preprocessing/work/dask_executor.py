"""Runs units of work on the workers of a dask.distributed cluster, on this machine or on many.

The workers must see the input and the output under the same names; relative names start from the caller's folder. If a
worker is lost, other workers repeat its current items. Results are committed by rename, so the dataset is the same.
"""

import logging
import os
import pickle
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from pathlib import Path

from distributed import Client, Future, as_completed, get_worker
from distributed.comm import CommClosedError
from distributed.scheduler import KilledWorker

from dlrm_app.errors import DlrmError, Problem
from dlrm_app.journal import R
from dlrm_app.preprocessing.work.executor import Executor, Feed, Pass, T
from dlrm_app.preprocessing.work.work_folder import own_code

logger = logging.getLogger(__name__)
ANSWER_SECONDS = 10
"""Seconds to wait for a scheduler to answer."""
PATIENCE_SECONDS = 60
"""Seconds to wait for the first worker to join."""


@contextmanager
def open_cluster(address: str) -> Iterator[Executor]:
    """Opens an executor on the cluster of the scheduler at ``address``.

    Raises DlrmError if there is no scheduler or no worker.
    """
    logger.info(
        f"asking the Dask scheduler at {address}, then waiting up to {PATIENCE_SECONDS} s for a worker"
    )
    try:
        client = Client(address, timeout=ANSWER_SECONDS)
    except (OSError, ValueError) as error:
        raise DlrmError(
            Problem(
                f"dask.address={address}",
                f"has no Dask scheduler that answers within {ANSWER_SECONDS} s",
                "start one with `dask scheduler`, and workers with `dask worker ADDRESS`",
            )
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=PATIENCE_SECONDS)
        except TimeoutError as error:
            raise DlrmError(
                Problem(
                    f"the scheduler at {address}",
                    f"has got no worker for {PATIENCE_SECONDS} s",
                    f"start some with `dask worker {address}`",
                )
            ) from error
        yield DaskExecutor(client)


class DaskExecutor:
    """Runs each feed as a task of the cluster. All threads of all workers run tasks."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def run(self, work: Pass[T, R], feeds: Sequence[Feed[T]]) -> Generator[R, None, None]:
        """See ``executor.Executor``."""
        # ``work`` may take megabytes. As the result of a task, instead of scattered, it is recomputed if it is lost.
        shared = self._client.submit(bytes, pickle.dumps(work), pure=False)
        code, folder = own_code(), str(Path.cwd())
        tasks = [self._client.submit(do, shared, code, folder, feed, pure=False) for feed in feeds]
        try:
            for task in as_completed(tasks):
                yield from _records(task)
                task.release()
        finally:
            with suppress(Exception):  # the original error is being raised already
                self._client.cancel(tasks)


def _records(task: Future) -> list[R]:
    try:
        records: list[R] = task.result()
    except KilledWorker as error:
        raise DlrmError(
            f"{error}. A unit that ends one worker after another needs more memory than they have: give them more, "
            "or fewer threads each, then run the same command again; it continues where it stopped"
        ) from error
    except (CancelledError, CommClosedError) as error:
        raise DlrmError(
            Problem(
                "the Dask scheduler",
                "has ended",
                "start one, or leave executor=dask out, then run the command again; it continues where it stopped",
            )
        ) from error
    return records


def do(work: bytes, code: str, folder: str, feed: Feed[T]) -> list[R]:
    """Runs on a worker: does the pickled ``work`` on the items of ``feed``, whose paths are relative to ``folder``.

    ``code``: the checksum of the caller's dlrm-app. Raises DlrmError if the worker's differs.
    """
    if code != own_code():
        raise DlrmError(
            Problem(
                f"the worker at {get_worker().address}",
                "has another dlrm-app than this process",
                "install the same on all, start the worker again, then run the same command again; it continues "
                "where it stopped",
            )
        )
    os.chdir(folder)
    act: Pass[T, R] = pickle.loads(work)
    return [act(item)() for item in feed.items()]
