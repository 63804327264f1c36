"""The parts of a step: delays planted in a model, by a clock that only they move, come out where they were planted."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch

from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.runs.checkpoint.marker import Progress
from dlrm_app.runs.events import PARTS
from dlrm_app.training import loop, step_parts
from dlrm_app.training.setup import Trainable, build_trainable
from dlrm_app.training.step_parts import StepParts
from tests.plain_training import BATCH, compose_train
from tests.random_batches import NUM_DENSE, TABLES, draw, to_batch

PLANTED = {
    "data": 1.0,
    "lookup": 2.0,
    "output_dist": 4.0,
    "mlps": 8.0,
    "interaction": 16.0,
    "mlps_backward": 32.0,
    "interaction_backward": 64.0,
    "gradient_exchange": 128.0,
    "table_update": 256.0,
    "optimizer": 512.0,
}
FORWARD_AND_BACKWARD = {
    "over_arch": ("mlps", "mlps_backward"),
    "inter_arch": ("interaction", "interaction_backward"),
    "arrival": ("output_dist", "gradient_exchange"),
}


class Clock:
    """Stands still but for delays."""

    def __init__(self) -> None:
        self.time = 0.0

    def delay(self, part: str) -> None:
        self.time += PLANTED[part]


class Delay(torch.autograd.Function):
    """Its input, later; and its gradient too."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, clock: Clock, part: str, backward: str) -> torch.Tensor:
        clock.delay(part)
        ctx.later = clock, backward
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        clock, part = ctx.later
        clock.delay(part)
        return gradient, None, None, None


def plant(trainable: Trainable, clock: Clock) -> None:
    """Before there is anything that measures, so that delays lie within the modules."""
    for path, module in trainable.model.named_modules():
        if parts := FORWARD_AND_BACKWARD.get(path.rpartition(".")[2]):
            module.register_forward_hook(
                lambda _, __, output, parts=parts: (
                    Delay.apply(output, clock, *parts) if isinstance(output, torch.Tensor) else output
                )
            )
        for lookup in getattr(module, "_lookups", ()):
            lookup.register_forward_hook(lambda *_: clock.delay("lookup"))
    step = trainable.optimizer.step

    def later(*arguments: Any) -> Any:
        clock.delay("optimizer")
        return step(*arguments)

    trainable.optimizer.step = later  # type: ignore[method-assign]


def plant_updates(trainable: Trainable, clock: Clock) -> int:
    """A delay within each table's update: hooks of one node run in their order. Gives how many kernels there are."""

    def later(_: Any, __: Any, output: torch.Tensor) -> None:
        if output.grad_fn is not None:
            output.grad_fn.register_prehook(lambda _: clock.delay("table_update"))

    kernels = [
        kernel
        for module in trainable.model.modules()
        for lookup in getattr(module, "_lookups", ())
        for kernel in lookup.modules()
        if hasattr(kernel, "emb_module")
    ]
    for kernel in kernels:
        kernel.register_forward_hook(later)
    return len(kernels)


def slow_batches(clock: Clock) -> Iterator[Any]:
    for seed in itertools.count():
        clock.delay("data")
        yield to_batch(*draw(seed, BATCH))


@pytest.mark.parametrize("pipeline", ["base", "sparse_dist"])
def test_delays_come_out_where_they_were_planted(pipeline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(step_parts._HostClock, "now", lambda _: clock.time)
    config = compose_train(f"trainer.pipeline={pipeline}", "optimizer=adagrad")
    with start_runtime(num_threads=1) as runtime:
        trainable = build_trainable(config, TABLES, NUM_DENSE, runtime)
        plant(trainable, clock)
        parts = StepParts(trainable.model, trainable.optimizer, trainable.pipeline, runtime.device, True)
        num_kernels = plant_updates(trainable, clock)
        stream = parts.waiting(slow_batches(clock))
        for number in range(6):
            if number == 3:  # batches are under way by then
                parts.take()
            with parts.step():
                trainable.pipeline.progress(stream)
        steps = parts.take()
        trainable.pipeline.progress(stream)
        assert parts.take() == [], "nothing is measured outside of a step"
    expected = {**dict.fromkeys(PARTS, 0.0), **PLANTED}
    expected["table_update"] *= num_kernels
    assert [parts.seconds(step) for step in steps] == [expected] * 3


@pytest.mark.parametrize(
    ("device", "log_every_steps", "measured"),
    [("cuda", 100, range(10, 101, 10)), ("cuda", 4, range(4, 101, 4)), ("cpu", 100, range(1, 101))],
)
def test_on_a_gpu_one_step_of_ten_is_measured_and_some_before_each_line_of_the_log(
    device: str, log_every_steps: int, measured: range
) -> None:
    run, steps = mock.MagicMock(), []
    run.config = compose_train(f"trainer.log_every_steps={log_every_steps}")
    run.runtime.device_type, run.progress = device, Progress()
    run.trainable.pipeline.progress.return_value = (torch.tensor(0.5), None, None)

    @contextmanager
    def step() -> Iterator[None]:
        steps.append(run.progress.step + 1)
        yield

    run.instruments.parts.step = step
    for _ in range(100):
        loop.take_step(run, iter(()), mock.Mock())
    assert steps == [*measured]
