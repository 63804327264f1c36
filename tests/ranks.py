"""Ranks on processes of this machine, without a launcher: torch is imported once for all of them."""

import multiprocessing
import os
import pickle
from collections.abc import Callable
from functools import cache, partial
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

import torch
import torch.distributed as dist

from dlrm_app.cli.launch import end_process, run_or_explain
from dlrm_app.cli.process import quiet_libraries
from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.launcher import handle_signals
from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.training.train import train
from tests.composed import compose_config

CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = [__name__, "pytest", "hypothesis", "sklearn.metrics"]
CONTEXT.set_forkserver_preload(PRELOADED)
"""Ranks import the module of their test, and find loaded what most of these import."""
SECONDS_TO_TRY = 120  # the first process waits for the server, which imports them


@cache
def start_method() -> BaseContext:
    """Makes ranks: as forks of the server, or as new processes if its forks cannot use the GPUs.

    New processes surely can, and import everything again, 10 to 15 seconds a rank. Forks can if nothing that the server
    imports starts the driver: torch asks NVML instead (tests/conftest.py), where there is one that answers.
    """
    if torch.cuda.device_count() == 0 or use_gpu(CONTEXT) is None:
        return CONTEXT
    return multiprocessing.get_context("spawn")


def use_gpu(context: BaseContext) -> str | None:
    """The reason why a process that ``context`` starts cannot use the first GPU; None if it can."""
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_use_gpu, args=(sender,), daemon=True)
    process.start()
    sender.close()
    try:
        return _receive(receiver, SECONDS_TO_TRY)
    except (EOFError, TimeoutError) as error:
        return repr(error)
    finally:
        process.kill()


def _use_gpu(sender: Connection) -> None:
    try:
        torch.zeros(1, device="cuda").cpu()
        fault = None
    except Exception as error:
        fault = f"{error}".partition("\n")[0]
    sender.send_bytes(pickle.dumps(fault))


def on_ranks(work: Callable[[Runtime], Any], num_ranks: int, ranks_per_node: int | None = None) -> list[Any]:
    """The result of ``work`` on each rank. It and its result are pickled; ``ranks_per_node``: as if on nodes."""
    return start_ranks(partial(_in_group, work), num_ranks, ranks_per_node or num_ranks)


def train_on_ranks(num_ranks: int, *overrides: str) -> None:
    """``dlrm-train *overrides`` on ``num_ranks`` ranks of one thread."""
    config = compose_config("train", TrainConfig, ["trainer.threads=1", *overrides])
    start_ranks(partial(train, config), num_ranks, num_ranks)


def _in_group(work: Callable[[Runtime], Any]) -> Any:
    with start_runtime(num_threads=1) as runtime:
        return work(runtime)


def start_ranks(
    work: Callable[[], Any], num_ranks: int, ranks_per_node: int, seconds: float | None = None
) -> list[Any]:
    """What ``work``, which joins the group itself, gives on each rank.

    Raises EOFError when a rank dies, TimeoutError when one is silent for ``seconds``; no rank outlives the error.
    """
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # where they meet
    numbers = {"MASTER_PORT": store.port, "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": ranks_per_node}
    method = start_method()
    receivers, processes = [], []
    for rank in range(num_ranks):
        receiver, sender = method.Pipe(duplex=False)
        numbers |= {"RANK": rank, "LOCAL_RANK": rank % ranks_per_node}
        processes.append(
            method.Process(target=_work_on_rank, args=(work, dict(numbers), sender), daemon=True)
        )
        processes[-1].start()
        sender.close()  # so that a rank that dies is an EOFError here
        receivers.append(receiver)
    try:
        return [_receive(receiver, seconds) for receiver in receivers]
    except BaseException:
        for process in processes:
            process.kill()
        raise


def _receive(receiver: Connection, seconds: float | None) -> Any:
    if not receiver.poll(seconds):
        raise TimeoutError(f"a rank gave no answer within {seconds} s")
    return pickle.loads(receiver.recv_bytes())


def _work_on_rank(work: Callable[[], Any], numbers: dict[str, int], sender: Connection) -> None:
    os.environ.update({name: str(number) for name, number in numbers.items()})
    os.environ.update(MASTER_ADDR="localhost", TORCHELASTIC_USE_AGENT_STORE="True")
    multiprocessing.set_start_method("fork", force=True)  # whose locks leave nothing behind
    quiet_libraries()
    handle_signals()
    sender.send_bytes(pickle.dumps(run_or_explain(work)))
    end_process(0)  # as the commands end
