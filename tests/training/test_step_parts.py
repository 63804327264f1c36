"""The parts of a step: ranges planted in a real step belong to their parts, and the parts add up to the step."""

import itertools
import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import DeviceType, ProfilerActivity, profile, record_function

from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.runs.events import PARTS
from dlrm_app.training import step_parts
from dlrm_app.training.setup import Trainable
from dlrm_app.training.step_parts import StepParts, divided, parts_of, seconds_by_part
from tests.loader.dataset_fixture import write_dataset
from tests.plain_training import BATCH, compose_train
from tests.random_batches import NUM_DENSE, TABLES, draw, to_batch
from tests.ranks import on_ranks
from tests.small_run import train_here
from tests.trainable import trainable_of

PLANTED = {*PARTS} - {"copy", "input_dist", "other"}
THEIRS = {
    "fbgemm::split_embedding_backward_codegen_": "table_update",
    "## All2All_Pooled_bwd": "gradient_exchange",
}
"""Ranges of the libraries' own, in place of planted ones."""
FORWARD_AND_BACKWARD = {
    "over_arch": ("mlps", "mlps_backward"),
    "dense_arch": ("mlps", "mlps_backward"),
    "inter_arch": ("interaction", "interaction_backward"),
}


class Plant(torch.autograd.Function):
    """Its input; a range of the forward pass, and one of the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, part: str, backward: str) -> torch.Tensor:
        plant(part)
        ctx.part = backward
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        plant(ctx.part)
        return gradient, None, None


def plant(part: str) -> None:
    with record_function(f"planted {part}"):
        pass


def plant_everywhere(trainable: Trainable) -> None:
    for path, module in trainable.model.named_modules():
        if parts := FORWARD_AND_BACKWARD.get(path.rpartition(".")[2]):
            module.register_forward_hook(
                lambda _, __, output, parts=parts: (
                    Plant.apply(output, *parts) if isinstance(output, torch.Tensor) else output
                )
            )
        for lookup in getattr(module, "_lookups", ()):
            lookup.register_forward_hook(lambda *_: plant("lookup"))
        if hasattr(module, "compute_and_output_dist"):  # both are within its ranges
            module._output_dists[0].register_forward_hook(lambda *_: plant("output_dist"))
    step = trainable.optimizer.step

    def later(*arguments: Any) -> Any:
        plant("optimizer")
        return step(*arguments)

    trainable.optimizer.step = later  # type: ignore[method-assign]


def batches() -> Iterator[Any]:
    for seed in itertools.count():
        plant("data")
        yield to_batch(*draw(seed, BATCH))


def planted_parts(pipeline: str, runtime: Runtime) -> dict[str, set[str]]:
    """Planted part → the parts in which its ranges were found, in a step that the pipeline is under way in."""
    config = compose_train(f"trainer.pipeline={pipeline}", "optimizer=adagrad", "model=dlrm")
    trainable = trainable_of(config, TABLES, NUM_DENSE, runtime)
    plant_everywhere(trainable)
    parts = StepParts(trainable.model, runtime)
    stream = parts.waiting(batches())
    found: dict[str, set[str]] = {}

    def note(events: Any, on_gpu: bool, is_alone: bool) -> dict[str, float]:
        for event, part in parts_of(events, is_alone):
            of_library = next((THEIRS[name] for name in THEIRS if event.name.startswith(name)), None)
            if of_library or event.name.startswith("planted"):
                found.setdefault(of_library or event.name.removeprefix("planted "), set()).add(part)
        return seconds_by_part(events, on_gpu, is_alone)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_parts, "seconds_by_part", note)
        began, num_steps = time.perf_counter(), max(step_parts.FIRST_STEPS)
        for _ in range(num_steps):
            with parts.step():
                trainable.pipeline.progress(stream)
    ms = parts.mean_ms((time.perf_counter() - began) / num_steps)  # a busy machine may wait long for batches
    assert {"input_dist", "mlps", "mlps_backward", "lookup", "table_update", "optimizer"} <= set(ms)
    return found


@pytest.mark.parametrize("pipeline", ["base", "sparse_dist"])
def test_planted_ranges_are_found_in_their_parts(pipeline: str) -> None:
    with start_runtime(num_threads=1) as runtime:
        found = planted_parts(pipeline, runtime)
    assert found == {part: {part} for part in PLANTED - {"gradient_exchange"}}


@pytest.mark.slow
def test_planted_ranges_are_found_in_their_parts_on_two_ranks() -> None:
    expected = {part: {part} for part in PLANTED}
    assert on_ranks(partial(planted_parts, "sparse_dist"), 2) == [expected] * 2


def event(
    name: str, start: float, end: float, around: FunctionEvent | None = None, **more: Any
) -> FunctionEvent:
    """A range of the host from ``start`` to ``end``, in microseconds."""
    made = FunctionEvent(0, name, 0, start, end, device_type=DeviceType.CPU, **more)  # type: ignore[no-untyped-call]
    if around is not None:
        made.set_cpu_parent(around)
        around.append_cpu_child(made)
    return made


def test_times_by_hand() -> None:
    """On CPU the time of the host without what lies within; on a GPU that of the kernels, on whatever thread."""
    outside = event("aten::add", 0, 5)
    step = event(step_parts.STEP, 10, 110)
    forward = event("## forward 3 ##", 20, 60, step)
    mlp = event("## over_arch ##", 30, 50, forward)
    product = event("aten::addmm", 35, 45, mlp, sequence_nr=7)
    update = event(f"{step_parts.BACKWARD}: AddmmBackward0", 70, 90, step, sequence_nr=7)
    product.append_kernel("gemm", 0, 400)
    update.append_kernel("gemm", 0, 700)
    mlp.append_kernel("## over_arch ##", 0, 10_000)  # the range's own span on the GPU
    events = [outside, step, forward, mlp, product, update]
    on_cpu, on_gpu = (seconds_by_part(events, on_gpu, is_alone=True) for on_gpu in (False, True))
    assert on_cpu == pytest.approx({"other": 60e-6, "mlps": 20e-6, "mlps_backward": 20e-6})
    assert {part: each for part, each in on_gpu.items() if each} == pytest.approx(
        {"mlps": 400e-6, "mlps_backward": 700e-6}
    )


def test_parts_add_up_to_the_step() -> None:
    samples = [{"mlps": 1.0, "other": 1.0, "data": 9.0}, {"mlps": 2.0, "other": 0.0}]
    assert divided(8.0, 2.0, samples, on_gpu=False) == {"mlps": 4.5, "other": 1.5, "data": 2.0}
    assert divided(8.0, 2.0, samples, on_gpu=True) == {"mlps": 1.5, "other": 4.5, "data": 2.0}
    assert divided(8.0, 2.0, [{}], on_gpu=True) == {"other": 6.0, "data": 2.0}, "no kernel was recorded"
    assert divided(3.0, 2.0, samples, on_gpu=True) == {"mlps": 0.75, "other": 0.25, "data": 2.0}
    assert divided(3.0, 4.0, samples, on_gpu=False) == {"mlps": 0.0, "other": 0.0, "data": 3.0}


class Tally:
    """What ``StepParts`` profiles of 40 steps of a linear layer."""

    def __init__(self, runtime: Runtime, may_profile: bool = True) -> None:
        self.parts, self.profiled, layer = StepParts(nn.Linear(4, 4), runtime), 0, nn.Linear(4, 4)
        for _ in range(40):
            before = len(self.parts._samples)
            with self.parts.step(may_profile):
                layer(torch.ones(2, 4))
            self.profiled += len(self.parts._samples) > before


def test_profiling_keeps_to_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with start_runtime(num_threads=1) as runtime:
        monkeypatch.setattr(step_parts, "MAX_SHARE", 0.0)
        assert Tally(runtime).profiled == len(step_parts.FIRST_STEPS)
        monkeypatch.setattr(step_parts, "MAX_SHARE", 1e9)
        assert Tally(runtime).profiled > 10


def test_a_step_whose_events_are_lost_is_profiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that does other work, too: the share of the time is not all of a report."""
    lost = iter([{"data": 0.1}, {"data": 0.2}])
    monkeypatch.setattr(step_parts, "MAX_SHARE", 0.0)
    original = step_parts.seconds_by_part
    monkeypatch.setattr(step_parts, "seconds_by_part", lambda *given: next(lost, None) or original(*given))
    with start_runtime(num_threads=1) as runtime:
        tally = Tally(runtime)
    assert tally.profiled == len(step_parts.FIRST_STEPS)
    assert tally.parts.mean_ms(0.01).keys() - {"data"}


def test_no_step_is_profiled_while_another_profiler_runs() -> None:
    with start_runtime(num_threads=1) as runtime:
        assert Tally(runtime, may_profile=False).profiled == 0
        with profile(activities=[ProfilerActivity.CPU]) as others:
            tally = Tally(runtime)
        assert tally.profiled == 0
        assert tally.parts.mean_ms(0.01) == {}
    assert sum(each.name == "aten::linear" for each in others.events()) == 40


def test_a_run_within_a_profiler_of_its_caller(tmp_path: Path) -> None:
    """The caller's recording is whole, and no step is divided."""
    write_dataset(tmp_path / "data", rows={"train": 2100})
    with profile(activities=[ProfilerActivity.CPU]) as of_caller:
        train_here(tmp_path / "run", f"data.path={tmp_path}/data", "report.enabled=true")
    assert sum(each.name.startswith("## forward") for each in of_caller.events()) == 16
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert {str(each["step_ms"]) for each in lines if each["event"] == "train"} == {"{}"}


def test_waits_are_timed_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only batches move."""
    now = [0.0]

    def slow() -> Iterator[int]:
        for number in range(4):
            now[0] += 0.25
            yield number

    with start_runtime(num_threads=1) as runtime:
        monkeypatch.setattr(step_parts.time, "perf_counter", lambda: now[0])
        parts = StepParts(nn.Identity(), runtime)
        parts._samples.append({"mlps": 1.0})
        stream: Iterator[Any] = parts.waiting(slow())  # type: ignore[arg-type]
        for _ in range(4):
            with parts.step(may_profile=False):
                next(stream)
        assert parts.mean_ms(1.0) == {"data": 250.0, "mlps": 750.0}
        with parts.step(may_profile=False):
            assert next(stream, None) is None
        assert parts.mean_ms(1.0) == {"mlps": 1000.0}
