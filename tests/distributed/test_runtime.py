"""What collectives say when the other end is gone is told from errors of one's own."""

import os
import resource
import socket
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

import pyarrow
import pytest
import torch
import torch.distributed as dist
from torchrec.distributed import comm

from dlrm_app.distributed import collectives as groups
from dlrm_app.distributed import runtime as module
from dlrm_app.distributed.library_errors import is_lost_peer
from dlrm_app.distributed.ranks import Ranks
from dlrm_app.distributed.rendezvous import join_process_group
from dlrm_app.distributed.runtime import NODE_GROUPS, join_ranks, start_runtime
from dlrm_app.errors import ConfigError, DlrmError, Problem
from tests.ranks import start_ranks
from tests.refusals import refused


def lose_each_other() -> list[str]:
    """What two ranks are told of which the second falls silent; asked again, they know that the connection is lost."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=2))
    dist.all_reduce(torch.ones(1000))
    time.sleep(5 * dist.get_rank())
    told = []
    for _ in range(2):
        with pytest.raises(RuntimeError) as error:
            dist.all_reduce(torch.ones(1000))
        told.append(str(error.value))
    return told


@pytest.mark.slow
def test_ranks_know_that_they_lost_each_other() -> None:
    for told in start_ranks(lose_each_other, 2, 2):
        assert len(told) == 2
        assert all(is_lost_peer(RuntimeError(text)) for text in told), told


def test_a_failed_allocation_is_reported_with_its_cure() -> None:
    with (
        refused(
            DlrmError,
            "",
            "...out of memory: ...; lower trainer.global_batch_size or evaluation.batch_size...",
        ),
        start_runtime(1),
    ):
        torch.empty(2**58)


def test_arrow_decodes_with_the_ranks_number_of_threads() -> None:
    """torchrun sets OMP_NUM_THREADS=1, which Arrow takes for its own."""
    pyarrow.set_cpu_count(1)
    with start_runtime(3):
        assert pyarrow.cpu_count() == 3


def test_the_gpu_is_chosen_before_the_group_with_both_backends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NCCL makes its communicator on the current device: chosen later, every rank would be on GPU 0."""
    calls: list[tuple[object, ...]] = []
    place = Ranks(rank=5, local_rank=1, world_size=8, local_world_size=4, device_type="cuda")
    monkeypatch.setattr(module, "started_ranks", lambda on_cpu: place)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(("set_device", device)))

    def fork(devices: list[torch.device]) -> AbstractContextManager[None]:
        calls.append(("fork_rng", *devices))
        return nullcontext()

    monkeypatch.setattr(torch.random, "fork_rng", fork)

    def init(backend: str, **options: object) -> None:
        calls.append(("init", backend, options["timeout"]))

    monkeypatch.setattr(torch.distributed, "init_process_group", init)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: calls.append(("barrier",)))
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: calls.append(("destroy",)))
    for key, value in {"RANK": "5", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(key, value)
    with start_runtime(1) as runtime:
        assert runtime.device == torch.device("cuda", 1)
    assert calls == [
        ("set_device", torch.device("cuda", 1)),
        ("fork_rng", torch.device("cuda", 1)),
        ("init", "cpu:gloo,cuda:nccl", module.TIMEOUT),
        ("barrier",),
        ("destroy",),
    ]


def test_a_process_shows_errors_after_a_group_as_it_did_before() -> None:
    """torch names the rank before each line, and would do so once for every group that the process was in."""
    show = sys.excepthook
    with start_runtime(1):
        assert sys.excepthook is not show
    assert sys.excepthook is show


def test_a_second_group_of_a_process_has_node_groups_of_its_own() -> None:
    """torchrec keeps those of the first, which end with it: table_row_wise and grid_shard would fail."""
    for _ in range(2):
        with start_runtime(1):
            assert set(NODE_GROUPS) <= vars(comm).keys()
            assert [dist.get_rank(group) for group in comm.intra_and_cross_node_pg()] == [0, 0]


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Ranks(rank=2, local_rank=2, world_size=4, local_world_size=4, device_type="cuda")
    monkeypatch.setattr(module, "started_ranks", lambda on_cpu: place)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with (
        refused(
            DlrmError, "", "4 ranks were started on this machine, which has 2 GPUs: start one rank per GPU..."
        ),
        start_runtime(1),
    ):
        pass


def test_a_rank_takes_its_only_gpu_unless_all_see_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slurm's --gpus-per-task=1 and Kubernetes' pods show each rank its own as GPU 0."""
    place = Ranks(rank=2, local_rank=2, world_size=4, local_world_size=4, device_type="cuda")
    monkeypatch.setattr(module, "started_ranks", lambda on_cpu: place)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    runtime = module.find_runtime(1, on_cpu=False)
    assert runtime.device == torch.device("cuda", 0)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with refused(
        DlrmError, "", "4 ranks were started on this machine, which has 1 GPUs: start one rank per GPU..."
    ):
        module.find_runtime(1, on_cpu=False)


def test_a_port_that_another_program_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": "2"}
        for name, value in meeting.items():
            monkeypatch.setenv(name, value)
        with refused(DlrmError, "", f"rank 0 cannot meet the others at 127.0.0.1:{port}...--master-port..."):
            join_process_group("gloo", timedelta(seconds=5))


def test_ranks_may_open_as_many_files_as_the_hard_limit_allows() -> None:
    """Three gloo groups of 512 ranks have 1,533 connections; the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        with start_runtime(1):
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 1 << 16), hard)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(256, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_ranks_bound_to_shared_cores_use_their_share_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight ranks of a machine with 96 cores, four on each of two NUMA nodes: twelve threads each, not six."""
    cores = {0: frozenset(range(48)), os.getppid(): frozenset(range(96))}
    monkeypatch.setattr(os, "sched_getaffinity", cores.__getitem__)
    monkeypatch.setattr(module, "count_cores", lambda allowed, *_: len(allowed))
    monkeypatch.setattr(dist, "is_torchelastic_launched", lambda: True)
    monkeypatch.setattr(module, "started_ranks", lambda _: Ranks(0, 0, 8, 8, "cpu"))
    assert module.find_runtime(None, False).num_threads == 12


def jobs_of_one_group() -> list[object]:
    """Two jobs, then a failure of the first rank, and a step that takes longer than the group's timeout."""
    told: list[object] = []
    with join_ranks(timedelta(seconds=2), job="these jobs") as ranks:
        world = dist.group.WORLD
        for _ in range(2):
            with start_runtime(1) as runtime:
                groups.new_group()
                told.append(runtime.on_first(lambda: runtime.rank))
                told.append(dist.group.WORLD is world)
        told.append(len(groups._groups))
        try:
            ranks.on_first(fail)
        except ConfigError as error:
            told.append((error.is_shared, error.problems))
        told.append(ranks.on_first(take_long))
    return [*told, dist.is_initialized()]


def fail() -> None:
    raise ConfigError(Problem("input", "has no rows"))


def take_long() -> str:
    time.sleep(4)
    return "done"


@pytest.mark.slow
def test_jobs_share_a_group_and_wait_for_the_first_rank() -> None:
    failure = (True, [Problem("input", "has no rows")])
    told = [0, True, 0, True, 0, failure, "done", False]
    assert start_ranks(jobs_of_one_group, 2, 2) == [told, told]
