"""Runs units of work on the workers of a dask.distributed cluster, on this machine or on many.

If a worker is lost, other workers repeat its current items. Results are committed by rename, so the dataset is the
same.
"""

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from distributed import Client
from distributed.comm import CommClosedError
from distributed.scheduler import KilledWorker

from dlrm_app.errors import DlrmError, Problem
from dlrm_app.journal import R
from dlrm_app.preprocessing.work.executor import Executor, Feed, Pass, T
from dlrm_app.preprocessing.work.futures_executor import FuturesExecutor

logger = logging.getLogger(__name__)
ANSWER_SECONDS = 10
"""Seconds to wait for a scheduler to answer."""
PATIENCE_SECONDS = 60
"""Seconds to wait for the first worker to join."""
_ENDED = Problem(
    "the Dask scheduler",
    "has ended",
    "start one, or leave executor=dask out, then run the command again; it continues where it stopped",
)


@contextmanager
def open_cluster(address: str, output: Path) -> Iterator[Executor]:
    """Opens an executor on the cluster of the scheduler at ``address``, whose workers see ``output``.

    Raises DlrmError if there is no scheduler or no worker.
    """
    logger.info(
        f"asking the Dask scheduler at {address}, then waiting up to {PATIENCE_SECONDS} s for a worker"
    )
    try:
        client = Client(address, timeout=ANSWER_SECONDS)
    except (OSError, ValueError) as error:
        rule = f"has no Dask scheduler that answers within {ANSWER_SECONDS} s"
        cure = "start one with `dask scheduler`, and workers with `dask worker ADDRESS`"
        raise DlrmError(Problem(f"dask.address={address}", rule, cure)) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=PATIENCE_SECONDS)
        except TimeoutError as error:
            rule = f"has got no worker for {PATIENCE_SECONDS} s"
            cure = f"start some with `dask worker {address}`"
            raise DlrmError(Problem(f"the scheduler at {address}", rule, cure)) from error
        yield DaskExecutor(client, output)


class DaskExecutor:
    """Runs each feed as a task of the cluster. All threads of all workers run tasks."""

    def __init__(self, client: Client, output: Path) -> None:
        self._futures = FuturesExecutor(client.get_executor(pure=False), output, _ENDED)

    def run(self, work: Pass[T, R], feeds: Sequence[Feed[T]]) -> Generator[R, None, None]:
        """See ``executor.Executor``."""
        try:
            yield from self._futures.run(work, feeds)
        except KilledWorker as error:
            raise DlrmError(
                f"{error}. A unit that ends one worker after another needs more memory than they have: give them more, "
                "or fewer threads each, then run the same command again; it continues where it stopped"
            ) from error
        except CommClosedError as error:
            raise DlrmError(_ENDED) from error
