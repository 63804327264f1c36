"""Messages between ranks: over the backend of their tensors' device, and none of our own that a step waits for."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dlrm_app.distributed.collectives import all_reduce_sum, new_group
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.distributed.signals import StopRequest
from dlrm_app.model.regularization import SyncedBatchNorm
from dlrm_app.training.instruments import LossMeter
from dlrm_app.training.step_parts import StepParts
from tests.cuda_without_gpu.make_believe import CPU, GPU, MakeBelieveGpu
from tests.loader.dataset_fixture import write_dataset
from tests.ranks import on_ranks, start_ranks
from tests.small_run import train_here

COLLECTIVES = (
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "reduce_scatter_tensor",
)


def everything(runtime: Runtime, device: torch.device) -> list[Any]:
    """What training, its watch and its log send between ranks."""
    meter = LossMeter(runtime)
    meter.add(torch.tensor(0.5 + runtime.rank).to(device), 1)
    request = StopRequest(runtime)
    request.agreed(), request.settle()
    parts = StepParts(nn.Identity(), runtime)
    normed = SyncedBatchNorm(3).to(device)(torch.arange(12.0).view(4, 3).to(device) + runtime.rank)
    return [meter.state(), meter.read(), meter.first_bad_step(), parts.mean_ms(0.5), normed.tolist()]


def on_both(runtime: Runtime) -> tuple[list[Any], list[Any]]:
    on_cpu = everything(runtime, CPU)
    with MakeBelieveGpu():
        return on_cpu, everything(mock.Mock(wraps=runtime, device=GPU, rank=runtime.rank, world_size=2), GPU)


def test_tensors_of_the_gpu_go_over_nccl_and_others_over_gloo() -> None:
    for on_cpu, on_gpu in on_ranks(on_both, 2):
        assert on_gpu == on_cpu


def send_over_gloo(_: Runtime) -> str:
    group = new_group()
    with MakeBelieveGpu():
        values = torch.ones(2, device=GPU)
        all_reduce_sum(values)
        with pytest.raises(AssertionError, match="a tensor of the GPU over gloo"):
            dist.all_reduce(values, group=group)
    return "refused"


def test_a_tensor_of_the_gpu_over_gloo_would_be_noticed() -> None:
    assert on_ranks(send_over_gloo, 2) == ["refused"] * 2


def noted_run(dataset: str, output: str, *overrides: str) -> list[list[tuple[str, bool]]]:
    """By step: the (name, whether asynchronous) of each message that our own code sent up to the next step."""
    steps: list[list[tuple[str, bool]]] = [[]]

    def noting(name: str, send: Callable[..., Any]) -> Callable[..., Any]:
        def sent(*inputs: Any, **options: Any) -> Any:
            if sys._getframe(1).f_globals["__name__"].startswith("dlrm_app."):
                steps[-1].append((name, bool(options.get("async_op"))))
            return send(*inputs, **options)

        return sent

    from dlrm_app.training import loop

    take_step = loop.take_step

    def begin_step(*inputs: Any) -> None:
        steps.append([])
        take_step(*inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "take_step", begin_step)
        for name in COLLECTIVES:
            patch.setattr(dist, name, noting(name, getattr(dist, name)))
        train_here(Path(output), f"data.path={dataset}", *overrides)
    return steps[1:]


@pytest.mark.slow
def test_a_step_waits_for_no_message_of_ours(tmp_path: Path) -> None:
    """Between two log lines: DDP sends gradients; the request to stop or save travels beside the next step."""
    write_dataset(tmp_path / "data", rows={"train": 1000})
    keys = ["trainer.log_every_steps=4", "checkpoint.every_minutes=30", "optimizer.dense.clip_norm=1"]
    work = partial(noted_run, str(tmp_path / "data"), str(tmp_path / "run"), *keys)
    for steps in start_ranks(work, 2, 2):
        assert len(steps) == 7
        for number in (1, 2, 3, 5, 6):
            sent = steps[number - 1]
            assert [name for name, is_beside in sent if not is_beside] == []
            assert [name for name, is_beside in sent if is_beside] == ["all_reduce"]
