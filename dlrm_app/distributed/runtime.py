"""Ranks, device and process group: one context manager around all distributed work.

A run started by hand is one rank. torchrun (also under Slurm) starts several and sets RANK, LOCAL_RANK,
WORLD_SIZE and LOCAL_WORLD_SIZE.
"""

import logging
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from threading import RLock
from typing import ParamSpec, TypeVar

import pyarrow
import torch
import torch.distributed as dist

from dlrm_app.distributed.collectives import (
    all_gather_objects,
    broadcast_from_first,
    leave_groups,
    while_others_wait,
)
from dlrm_app.distributed.library_errors import fixable
from dlrm_app.distributed.process_state import restored
from dlrm_app.distributed.ranks import Ranks, core_problems, count_cores, started_ranks
from dlrm_app.distributed.rendezvous import TIMEOUT, group_problems, join, name_interfaces
from dlrm_app.errors import DlrmError, Problem, refuse_if

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
NODE_GROUPS = ("_INTRA_PG", "_CROSS_PG", "_INTRA_PG_2D", "_CROSS_PG_2D")
"""Variables in which torchrec keeps the groups of table_row_wise and grid_shard for the life of the process."""


@dataclass(frozen=True)
class Runtime(Ranks):
    """This process's place among the ranks, once it has joined them.

    ``group``: None for the process group; or all ranks over separate connections, for messages at the same time as
    training.
    """

    num_threads: int
    group: dist.ProcessGroup | None = None

    @property
    def device(self) -> torch.device:
        """The device that this rank computes on."""
        return torch.device("cuda", self.gpu) if self.device_type == "cuda" else torch.device("cpu")

    def use_device(self) -> None:
        """Sets the current device. Call it first in each thread that may use a GPU: a new thread starts on GPU 0."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def together(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs ``step`` on every rank; if it fails on any, every rank raises the same error, which is shared.

        For steps outside of training, where an error on one rank must not leave the others waiting.
        """
        result: T | None = None
        failure: DlrmError | None = None
        try:
            result = step(*args, **kwargs)
        except DlrmError as error:
            if _failed:  # within a job of its own: other ranks may wait for this one there
                raise
            failure = error
        if self.world_size > 1:
            failure = next(
                (each for each in all_gather_objects(failure, self.group) if each is not None), None
            )
        if failure is not None:
            failure.is_shared = failure.is_shared or self.world_size > 1
            raise failure
        return result  # type: ignore[return-value]  # without a failure, ``step`` has returned

    def on_first(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs ``step`` on the first rank.

        Returns its result, or raises its error, on every rank; the result is pickled.

        For steps that only one rank can do, and for choices that depend on a folder's contents: ranks that list the
        folder at different times could choose differently. The other ranks wait as long as the step takes, and notice
        if the first rank is lost.
        """

        def step_or_wait() -> T | None:
            return while_others_wait(lambda: step(*args, **kwargs) if self.is_first else None, self.group)

        return broadcast_from_first(self.together(step_or_wait), self.group)  # type: ignore[return-value]

    @contextmanager
    def entered_on_first(self, context: AbstractContextManager[T]) -> Iterator[T]:
        """Enters ``context`` on the first rank for the time of the block. Shares its value, or its error."""
        with ExitStack() as stack:
            yield self.on_first(stack.enter_context, context)


_failed: list[BaseException] = []
"""The failure on this rank that other ranks may not know of: they may wait in a collective forever."""


def failure_of_ranks() -> BaseException | None:
    """The failure after which this process must end, because other ranks may wait for it; None if there is none."""
    return _failed[0] if _failed else None


_one_job = RLock()
_running: list[str] = []
"""The names of the jobs that run now: one, and those that it consists of."""


@contextmanager
def _one_at_a_time(job: str) -> Iterator[None]:
    """Raises DlrmError while another thread runs a job.

    The process group, the number of threads, the generators and the warning filters belong to the process: two jobs
    would change each other's results.
    """
    if not _one_job.acquire(blocking=False):
        other = next(iter(_running), "another job")
        rule = f"cannot run beside {other}, which another thread of this process runs"
        cure = (
            f"wait until {other} has ended, or run {job} in a process of its own (subprocess, or multiprocessing "
            "with spawn)"
        )
        raise DlrmError(Problem(job, rule, cure))
    try:
        _running.append(job)
        yield
    finally:
        _running.pop()
        _one_job.release()


@contextmanager
def start_runtime(
    num_threads: int | None, *, job: str = "this job", timeout: timedelta = TIMEOUT, on_cpu: bool = False
) -> Iterator[Runtime]:
    """Joins the process group, yields this rank's place in it, and leaves it at the end.

    Uses gloo on CPU; with GPUs, NCCL for CUDA tensors and gloo for others. A process group that the process has already
    is used, and kept. ``num_threads``: None for this rank's share of the cores. ``on_cpu``: uses the CPU even if there
    are GPUs. ``timeout``: how long a collective waits for another rank. The process's settings are restored at the end.

    If the block fails while other ranks may wait in a collective, the process group is not left, because that can hang
    or abort; ``failure_of_ranks`` then says that the process must end. Raises DlrmError, also while another thread of
    this process runs a ``job``.
    """
    with _one_at_a_time(job), _started(num_threads, timeout, on_cpu) as runtime:
        yield runtime


@contextmanager
def _started(num_threads: int | None, timeout: timedelta, on_cpu: bool) -> Iterator[Runtime]:
    if _failed:
        raise DlrmError(f"an earlier job failed on this rank alone ({_failed[0]}): start all ranks again")
    runtime = find_runtime(num_threads, on_cpu)
    runtime.use_device()
    with restored(runtime.device), _many_files():
        torch.set_num_threads(runtime.num_threads)
        # before torch's threads start, since they inherit it: gradients of memorised rows fall below 1e-38, and Intel's
        # CPUs take a hundred times as long for products of such numbers (docs/experiments/training.md)
        torch.set_flush_denormal(True)
        pyarrow.set_cpu_count(runtime.num_threads)  # its default is OMP_NUM_THREADS, which torchrun sets to 1
        if runtime.is_first and runtime.world_size > 1:
            logger.info(
                "rank 0's machine: %d rank(s), %d thread(s) each, on %s",
                runtime.local_world_size,
                runtime.num_threads,
                "the GPU of its local rank" if runtime.device.type == "cuda" else "CPU",
            )
        with _group(runtime, timeout):
            yield runtime


@contextmanager
def join_ranks(timeout: timedelta, *, job: str) -> Iterator[Runtime]:
    """Joins the process group for a series of jobs, each of which calls ``start_runtime``, and leaves it at the end.

    Changes no settings of the process. Failures are handled as in ``start_runtime``. One rank needs no group.
    """
    runtime = find_runtime(None, on_cpu=False)
    with _one_at_a_time(job), restored(runtime.device), _many_files():
        runtime.use_device()
        with _group(runtime, timeout) if runtime.world_size > 1 else nullcontext():
            yield runtime


@contextmanager
def _group(runtime: Runtime, timeout: timedelta) -> Iterator[None]:
    """Makes the process group and leaves it at the end, or uses the one that the process has and keeps it.

    If the block fails on this rank alone, the group is not left, and ``failure_of_ranks`` says why.
    """
    is_joined = dist.is_initialized()
    if is_joined:
        refuse_if(group_problems(runtime.device_type))
    with nullcontext() if is_joined else _joined(runtime, timeout):
        try:
            yield
            if runtime.world_size > 1:
                dist.barrier()  # no rank leaves while another still sends
        except BaseException as error:
            failure = fixable(error) or error
            is_known = isinstance(error, DlrmError) and error.is_shared
            if runtime.world_size > 1 and not is_known and not _failed:
                _failed.append(failure)
            if failure is not error:
                raise failure from error
            raise
        finally:
            if not _failed:
                leave_groups()
                if not is_joined:
                    dist.destroy_process_group()


@contextmanager
def _joined(runtime: Runtime, timeout: timedelta) -> Iterator[None]:
    """Makes the process group; afterwards undoes its changes to the process."""
    named, show_error = name_interfaces(runtime, os.environ), sys.excepthook
    try:
        join(runtime, timeout)
        yield
    finally:
        # torchrec's groups belong to the group that has ended
        if comm := sys.modules.get("torchrec.distributed.comm"):
            vars(comm).update(dict.fromkeys(NODE_GROUPS))
        sys.excepthook = show_error  # torch's hook puts [rank0]: before each line, once a group
        for variable in named:
            os.environ.pop(variable, None)


MANY_FILES = 1 << 16


@contextmanager
def _many_files() -> Iterator[None]:
    """Raises the soft limit of open files, as far as the hard one allows.

    Each of three gloo groups keeps a connection to every other rank: 512 ranks need more than the usual 1,024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, MANY_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def find_runtime(num_threads: int | None, on_cpu: bool) -> Runtime:
    ranks = started_ranks(on_cpu)
    if ranks.device_type == "cuda":
        # torchrun's ranks see the same GPUs; each of Slurm's tasks or Kubernetes' pods may see only its own one
        seen, share_gpus = torch.cuda.device_count(), dist.is_torchelastic_launched()
        if (ranks.local_rank if share_gpus else ranks.gpu) >= seen:
            raise DlrmError(
                f"{ranks.local_world_size} ranks were started on this machine, which has {seen} GPUs: "
                "start one rank per GPU (torchrun --nproc-per-node gpu), or hide the GPUs with CUDA_VISIBLE_DEVICES="
            )
    own = frozenset(os.sched_getaffinity(0))
    # torchrun may bind each rank to the cores of a NUMA node, which several ranks share: torchrun itself has all
    all_cores = own | os.sched_getaffinity(os.getppid()) if dist.is_torchelastic_launched() else own
    cores = count_cores(all_cores, os.environ, Path("/"))
    refuse_if(core_problems(ranks, cores, os.environ))
    share = max(1, min(len(own), cores // ranks.local_world_size))
    return Runtime(**asdict(ranks), num_threads=num_threads or share)
