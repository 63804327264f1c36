"""Runs units of work on the workers of a dask.distributed cluster, on this machine or on many.

The workers must see the input and the output under the same names, relative ones from the same folder. A worker that
is lost costs the items it was at: others do them again, and as they land by rename the dataset is the same.
"""

import logging
import os
import pickle
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from distributed import Client, Future, as_completed, get_worker
from distributed.comm import CommClosedError
from distributed.scheduler import KilledWorker

from dlrm_app.config.datasets import DaskConfig, SlurmConfig
from dlrm_app.errors import DlrmError
from dlrm_app.preprocess.units.executor import Executor, Feed, Work
from dlrm_app.preprocess.units.journal import R, own_code
from dlrm_app.preprocess.units.parquet_units import ParquetUnit
from dlrm_app.preprocess.units.unit_text import UnitText

logger = logging.getLogger(__name__)
_ANSWER_PATIENCE = 10
"""Seconds to wait for a scheduler to answer."""
_PATIENCE = 60
"""Seconds to wait for the first worker of a running cluster to join."""
_QUEUE_PATIENCE = 24 * 3600
"""Seconds that a job may wait in Slurm's queue."""


@contextmanager
def open_cluster(config: DaskConfig) -> Iterator[Executor]:
    """An executor on the cluster that ``config`` names, or on one made of Slurm jobs that end with the block.

    Raises DlrmError if there is no scheduler at the address, or no worker.
    """
    if config.slurm.workers is None:
        with _connect(config.address) as client:
            _await_worker(client, _PATIENCE)
            yield DaskExecutor(client)
        return
    with slurm_cluster(config.slurm) as cluster, _connect(cluster) as client:
        cluster.scale(jobs=config.slurm.workers)
        _await_worker(client, _QUEUE_PATIENCE)
        yield DaskExecutor(client)


def slurm_cluster(config: SlurmConfig) -> Any:
    """A dask_jobqueue.SLURMCluster without jobs so far; each job will be one worker of ``cores`` threads."""
    from dask_jobqueue import SLURMCluster

    return SLURMCluster(
        queue=config.queue,
        account=config.account,
        cores=config.cores,
        processes=1,
        memory=config.memory,
        walltime=config.walltime,
    )


def _connect(address: Any) -> Client:
    if isinstance(address, str):
        logger.info(f"asking the Dask scheduler at {address}, for {_ANSWER_PATIENCE} s at most")
    try:
        return Client(address, timeout=_ANSWER_PATIENCE)
    except (OSError, ValueError) as error:
        raise DlrmError(
            f"no Dask scheduler answers at dask.address={address} within {_ANSWER_PATIENCE} s: "
            "start one with `dask scheduler`, and workers with `dask worker ADDRESS`"
        ) from error


def _await_worker(client: Client, patience: float) -> None:
    address = client.scheduler.address
    if not client.scheduler_info()["workers"]:
        logger.info(f"no worker has joined {address} yet: waiting for the first, up to {patience:.0f} s")
    try:
        client.wait_for_workers(1, timeout=patience)
    except TimeoutError as error:
        raise DlrmError(
            f"no worker has joined the scheduler at {address} for {patience:.0f} s: start some with "
            f"`dask worker {address}`"
        ) from error


class DaskExecutor:
    """Each feed is a task of the cluster, which runs as many of them as its workers have threads."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def run(self, work: Work[R], feeds: Sequence[Feed]) -> Generator[R, None, None]:
        """See ``dlrm_app.preprocess.units.executor.Executor``."""
        # ``work`` may be megabytes. As the result of a task, not scattered, it can be made again when it is lost.
        shared = self._client.submit(bytes, pickle.dumps(work), pure=False)
        code, folder = own_code(), str(Path.cwd())
        tasks = [self._client.submit(do, shared, code, folder, feed, pure=False) for feed in feeds]
        finished: Any = as_completed(tasks)
        try:
            for task in finished:
                yield from _records(task)
                task.release()
        finally:
            with suppress(Exception):  # what went wrong is being raised already
                self._client.cancel(tasks)


def _records(task: Future) -> list[Any]:
    try:
        records: list[Any] = task.result()
    except KilledWorker as error:
        raise DlrmError(
            f"{error}. A unit that ends one worker after the other needs more memory than they have: give them more, "
            "or fewer threads each, then run the same command again; it continues where it stopped"
        ) from error
    except (CancelledError, CommClosedError) as error:
        raise DlrmError(
            "the Dask scheduler has ended: start one, or leave executor=dask out, then run the command again; it "
            "continues where it stopped"
        ) from error
    return records


def do(work: bytes, code: str, folder: str, feed: Feed) -> list[Any]:
    """On a worker: does the pickled ``work`` on the items of ``feed``, whose paths are relative to ``folder``.

    ``code``: the checksum of the dlrm-app that asks for it. Raises DlrmError if this is another.
    """
    if code != own_code():
        raise DlrmError(
            f"the worker at {get_worker().address} has another dlrm-app than this process: install the same on all, "
            "start the worker again, then run the same command again; it continues where it stopped"
        )
    os.chdir(folder)
    act: Work[Any] = pickle.loads(work)
    return [_do_once(act, item) for item in feed.items()]


def _do_once(work: Work[R], item: Any) -> R:
    """A gzip file is one task, from its start; units of it that a lost worker has landed are not done again."""
    if isinstance(item, UnitText | ParquetUnit):
        with suppress(FileNotFoundError):
            return work.journal.load(item.source, item.unit)
    return work(item)()
