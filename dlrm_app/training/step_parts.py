"""Divides the time of training steps into parts, by the ranges that torch.profiler records of single steps.

torchrec and torch name the ranges: lookup, exchanges, forward and backward pass, optimizer. Only the dense part's
modules have no names, so hooks name them while a step is profiled. A backward operation belongs to the part of the
forward operation with its sequence number. A part's time is that of its ranges without those of other parts within
them: the host's time on CPU, the time of the kernels that they started on a GPU.

The wait for batches is measured in every step, by a clock around ``next``.
"""

import os
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from torch.autograd import profiler as autograd_profiler
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import DeviceType, ProfilerActivity, profile, record_function

from dlrm_app.distributed.collectives import all_reduce_sum
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.loader.batch import Batch
from dlrm_app.runs.events import PARTS

STEP, WAIT = "## step ##", "## wait for a batch ##"
"""Ranges of a whole step, and of ``next(batches)``: some pipelines have none for it."""
MODULES = {"dense_arch": "mlps", "over_arch": "mlps", "inter_arch": "interaction"}
"""A model's modules by name → the part that their forward pass belongs to."""
BACKWARD = "autograd::engine::evaluate_function"
RANGES = {
    STEP: "other",
    "## forward": "other",
    "## backward": "mlps_backward",
    WAIT: "data",
    "## copy_batch": "copy",
    "## inplace_copy_batch": "copy",
    "## wait_for_batch": "copy",
    "## start_sparse_data_dist": "input_dist",
    "## wait_sparse_data_dist": "input_dist",
    "## runtime_forward_assemble_KJT": "input_dist",
    "## all2all_data:kjt": "input_dist",
    "## KJT": "input_dist",
    "[splits_dist]": "input_dist",
    "[tensors_dist]": "input_dist",
    "[lookup]": "lookup",
    "## sharded_module_prefetch": "lookup",
    "[output_dist": "output_dist",
    "## _PendingEmbeddings wait()": "output_dist",
    "## _Pending wait()": "output_dist",
    "## EmbeddingBagCollectionAwaitable wait()": "output_dist",
    "## EmbeddingCollectionAwaitable wait()": "output_dist",
    "## zero_grad": "optimizer",
    "## optimizer": "optimizer",
    **{f"## {name} ##": part for name, part in MODULES.items()},
}
"""Beginning of a range's name → its part. All other ranges belong to the part of the range around them."""
IN_BACKWARD = {
    "lookup": "table_update",
    "interaction": "interaction_backward",
    "output_dist": "gradient_exchange",
    "input_dist": "gradient_exchange",
}
"""Part of a forward operation → part of its backward operation; the others, the loss too, belong to mlps_backward."""

FIRST_STEPS = (3, 12)
"""Steps of this process that are profiled: an early one, for short runs, and one after the warm-up."""
MAX_SHARE = 0.005
"""The most of a run's time that profiling later steps takes."""
MAX_LOST = 5
"""Steps in a row that are profiled again because kineto has lost their events: it converts the processor's clock into
the system's, which goes wrong while other programs interrupt it, and drops what then lies outside the profiled time."""
MAX_SAMPLES = 16
"""The most profiled steps that count between two lines of the log."""


def parts_of(events: Iterable[FunctionEvent], is_alone: bool = True) -> Iterator[tuple[FunctionEvent, str]]:
    """Each event of the host in profiled steps, with its part. ``events``: in the order of their beginnings.

    Between its operations the backward pass waits for gradients of other ranks, unless this rank ``is_alone``.
    """
    ranges = RANGES if is_alone else {**RANGES, "## backward": "gradient_exchange"}
    on_host = [event for event in events if event.device_type == DeviceType.CPU]
    parts: dict[int, str] = {}  # id of an event → its part
    forward: dict[int, str] = {}  # sequence number of a forward operation → its part
    for event in on_host:
        around = None if event.cpu_parent is None else parts.get(id(event.cpu_parent))
        if event.name.startswith(BACKWARD):
            part = _backward_part(forward.get(event.sequence_nr), around)
        else:
            named = next((ranges[name] for name in ranges if event.name.startswith(name)), around)
            if named is None:  # outside of steps
                continue
            part = named
            if event.sequence_nr >= 0:  # the last one with a number is the operation that has a gradient
                forward[event.sequence_nr] = part
        parts[id(event)] = part
        yield event, part


def _backward_part(forward: str | None, around: str | None) -> str:
    if forward is None:  # gradients are added up, and sent to other ranks
        return around or "mlps_backward"
    return IN_BACKWARD.get(forward, "mlps_backward")


def seconds_by_part(events: Iterable[FunctionEvent], on_gpu: bool, is_alone: bool) -> dict[str, float]:
    """Part → its seconds in the profiled steps."""
    seconds: Counter[str] = Counter()
    for event, part in parts_of(events, is_alone):
        # the profiler also counts a range's own span on the GPU as a kernel of it
        kernels = sum(kernel.duration for kernel in event.kernels if kernel.name != event.name)
        seconds[part] += 1e-6 * (kernels if on_gpu else event.self_cpu_time_total)
    return dict(seconds)


class StepParts:
    """Profiles some steps of ``model`` by part, and times all waits for batches."""

    def __init__(self, model: nn.Module, runtime: Runtime) -> None:
        self._modules = [
            (name, module)
            for path, module in model.named_modules()
            if (name := path.rpartition(".")[2]) in MODULES
        ]
        self._runtime = runtime
        self._on_gpu = runtime.device.type == "cuda"
        self._samples: deque[dict[str, float]] = deque(maxlen=MAX_SAMPLES)
        self._num_new = self._num_lost = 0
        self._num_steps = self._num_read = 0
        self._waited = 0.0
        self._started = time.perf_counter()
        self._spent = self._last_cost = 0.0

    @contextmanager
    def step(self, may_profile: bool = True) -> Iterator[None]:
        """Counts one step, and profiles it if that is due. ``may_profile``: False while another profiler is running."""
        self._num_steps += 1
        if not (may_profile and self._is_due()) or autograd_profiler._is_profiler_enabled:
            yield
            return
        begun = time.perf_counter()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_gpu else [])]
        profiler = profile(activities=activities)
        with ExitStack() as stack:
            start_quietly(profiler)
            stack.callback(profiler.stop)
            for name, module in self._modules:
                stack.enter_context(_named(module, f"## {name} ##"))
            with record_function(STEP):
                ready = time.perf_counter()
                yield
            ended = time.perf_counter()
        is_alone = self._runtime.world_size == 1
        events: Iterable[FunctionEvent] = profiler.events() or []  # type: ignore[no-untyped-call]
        sample = seconds_by_part(events, self._on_gpu, is_alone)
        if sample.keys() - {"data"}:
            self._samples.append(sample)
            self._num_new += 1
            self._num_lost = 0
        else:
            self._num_lost += 1
        self._last_cost = time.perf_counter() - ended + ready - begun
        self._spent += self._last_cost

    def _is_due(self) -> bool:
        budget = MAX_SHARE * (time.perf_counter() - self._started)
        if self._num_steps in FIRST_STEPS or 0 < self._num_lost <= MAX_LOST:
            return True
        return self._num_steps > max(FIRST_STEPS) and self._spent + self._last_cost < budget

    def waiting(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yields ``batches``, and times the wait for each of them."""

        def wait() -> Batch | None:
            begun = time.perf_counter()
            try:
                with record_function(WAIT):
                    return next(batches)
            finally:
                self._waited += time.perf_counter() - begun

        return iter(wait, None)  # ends where ``batches`` do

    def mean_ms(self, seconds_per_step: float) -> dict[str, float]:
        """Milliseconds of a step by part, which add up to ``seconds_per_step``. Every rank must call it.

        The waits are those since the last call; the other parts share the rest as in the steps that were profiled
        since, or in the last one. The mean over ranks; empty before a step is profiled.
        """
        num_steps, self._num_read = self._num_steps - self._num_read, self._num_steps
        waited, self._waited = self._waited / max(1, num_steps), 0.0
        samples, self._num_new = [*self._samples][-max(1, self._num_new) :], 0
        values = torch.zeros(len(PARTS) + 1, dtype=torch.float64)
        if samples:
            ms = divided(seconds_per_step, waited, samples, self._on_gpu)
            values = torch.tensor([*(1000 * ms.get(part, 0.0) for part in PARTS), 1.0], dtype=torch.float64)
        *sums, num_ranks = all_reduce_sum(values.to(self._runtime.device)).tolist()
        return {part: round(total / num_ranks, 3) for part, total in zip(PARTS, sums, strict=True) if total}


def divided(seconds: float, waited: float, samples: list[dict[str, float]], on_gpu: bool) -> dict[str, float]:
    """Part → its seconds of a step that took ``seconds``, ``waited`` of them for its batch.

    samples: the seconds of profiled steps by part. A GPU may compute for less than the step takes: the rest is
    ``other``.
    """
    waited = min(waited, seconds)
    means: Counter[str] = Counter()
    for sample in samples:
        means.update({part: each / len(samples) for part, each in sample.items() if part != "data"})
    measured = sum(means.values())
    rest = seconds - waited
    if on_gpu and measured < rest:
        return {**means, "data": waited, "other": means["other"] + rest - measured}
    scale = rest / measured if measured else 0.0
    return {**{part: scale * each for part, each in means.items()}, "data": waited}


def start_quietly(profiler: profile) -> None:
    """Starts ``profiler`` without kineto's two lines for each recording: it reads its log level once, at the first."""
    name = "KINETO_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ.setdefault(name, "6")
    try:
        profiler.start()
    finally:
        if before is None:
            del os.environ[name]


@contextmanager
def _named(module: nn.Module, name: str) -> Iterator[None]:
    ranges: list[ExitStack] = []

    def begin(*_: object) -> None:
        ranges.append(ExitStack())
        ranges[-1].enter_context(record_function(name))

    def end(*_: object) -> None:
        ranges.pop().close()

    handles = [module.register_forward_pre_hook(begin), module.register_forward_hook(end, always_call=True)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
