"""Measures the time of a training step by part, with hooks around the model's own modules.

Marks are set where one part ends and the next begins: forward hooks of the model's own modules, hooks of the autograd
nodes that divide the backward pass, and calls of the pipeline and the optimizer. All time between two marks belongs to
the first one's part, so that the parts add up to the step. On a GPU marks are events of the computing stream: work
that another stream or the host does at the same time counts only while the computing stream waits for it.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torchrec.distributed.types import ShardedModule

from dlrm_app.distributed.collectives import all_reduce_sum
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.loader.batch import Batch
from dlrm_app.runs.events import PARTS

MODULES = {
    "sparse_arch": ("output_dist", "gradient_exchange"),  # the rest, without input_dist and lookup
    "arrival": ("output_dist", "gradient_exchange"),
    "dense_arch": ("mlps", "mlps_backward"),
    "inter_arch": ("interaction", "interaction_backward"),
    "over_arch": ("mlps", "mlps_backward"),
}
"""A model's modules by name: (part of the forward pass, part that begins with the gradient of the output)."""

MAX_STEPS = 128
"""Steps kept until they are read; older ones are dropped."""
Marks = list[tuple[str, Any]]
"""(part, moment at which it begins) for each part of a step; at the end of the step the part is empty."""


class StepParts:
    """Divides the steps of ``model`` into PARTS. ``is_alone``: this is the only rank.

    Only ``step`` measures. Hooks stay for the life of the model, and cost a microsecond each.
    """

    def __init__(
        self, model: nn.Module, optimizer: Any, pipeline: Any, device: torch.device, is_alone: bool
    ) -> None:
        self._clock: _HostClock | _DeviceClock = (
            _DeviceClock(device) if device.type == "cuda" else _HostClock()
        )
        self._steps: deque[Marks] = deque(maxlen=MAX_STEPS)
        self._marks: Marks = []
        self._part: str | None = None  # none: outside of steps
        self._num_gradients = 0
        self._hook_modules(model)
        self._wrap(optimizer, "zero_grad", "optimizer")
        self._wrap(optimizer, "step", "optimizer")
        for method in ("start_sparse_data_dist", "wait_sparse_data_dist"):
            self._wrap(pipeline, method, "input_dist")
        for method in ("copy_batch_to_gpu", "_copy_batch_to_gpu"):
            self._wrap(pipeline, method, "copy")
        if not is_alone:
            self._watch_gradients(model)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Measures one step."""
        self._part, self._num_gradients = "other", 0
        self._mark("other")
        try:
            yield
        finally:
            self._steps.append([*self._marks, ("", self._clock.now())])
            self._marks, self._part = [], None

    def waiting(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yields ``batches`` and counts the wait for each of them as ``data``."""

        def wait() -> Batch | None:
            with self.within("data"):
                return next(batches)

        return iter(wait, None)  # ends where ``batches`` do

    def take(self) -> list[Marks]:
        """The marks of each step since the last call, for ``seconds``; does not wait for the device."""
        steps = [*self._steps]
        self._steps.clear()
        return steps

    def seconds(self, marks: Marks) -> dict[str, float]:
        """Seconds of a step by part; waits until the device has reached the last of its ``marks``."""
        sums = dict.fromkeys(PARTS, 0.0)
        between = self._clock.seconds_between([moment for _, moment in marks])
        for (part, _), seconds in zip(marks, between, strict=False):  # none after the last
            sums[part] += seconds
        return sums

    def mean_ms(self, runtime: Runtime) -> dict[str, float]:
        """Milliseconds of a step by part since the last call, the mean over steps and ranks. Every rank must call it."""
        steps = [[*self.seconds(marks).values()] for marks in self.take()] or [[0.0] * len(PARTS)]
        values = 1000 * torch.tensor(steps, dtype=torch.float64).mean(0)
        means = all_reduce_sum(values.to(runtime.device)) / runtime.world_size
        return {part: round(mean, 3) for part, mean in zip(PARTS, means.tolist(), strict=True) if mean}

    @contextmanager
    def within(self, part: str) -> Iterator[None]:
        """Counts the time of the block as ``part``, then continues with the previous part."""
        before = self._part
        self._mark(part)
        try:
            yield
        finally:
            self._mark(before)

    def _mark(self, part: str | None) -> None:
        if self._part is not None and part is not None:
            self._part = part
            self._marks.append((part, self._clock.now()))

    def _wrap(self, holder: Any, name: str, part: str) -> None:
        method: Callable[..., Any] | None = getattr(holder, name, None)
        if method is None:
            return

        @wraps(method)
        def marked(*arguments: Any, **options: Any) -> Any:
            with self.within(part):
                return method(*arguments, **options)

        setattr(holder, name, marked)

    def _hook_modules(self, model: nn.Module) -> None:
        for path, module in model.named_modules():
            name = path.rpartition(".")[2]
            if name in MODULES:
                self._hook(module, *MODULES[name])
            if isinstance(module, ShardedModule):
                self._wrap(module, "input_dist", "input_dist")
                self._wrap(module, "compute_and_output_dist", "output_dist")
                for lookup in getattr(module, "_lookups", ()):  # a list: no children of the module
                    self._hook(lookup, "lookup", None)
                    for kernel in lookup.modules():
                        if hasattr(kernel, "emb_module"):  # torchrec's wrapper of fbgemm's module
                            kernel.register_forward_hook(self._watch_update)

    def _hook(self, module: nn.Module, part: str, backward: str | None) -> None:
        before: list[str | None] = []

        def begin(*_: Any) -> None:
            before.append(self._part)
            self._mark(part)

        def end(_: nn.Module, __: Any, output: Any) -> None:
            self._mark(before.pop())
            node = getattr(output, "grad_fn", None) if isinstance(output, torch.Tensor) else None
            if backward is not None and node is not None and self._part is not None:
                node.register_prehook(lambda _: self._mark(backward))

        module.register_forward_pre_hook(begin)
        module.register_forward_hook(end)

    def _watch_update(self, _: nn.Module, __: Any, output: Any) -> None:
        node = output.grad_fn if isinstance(output, torch.Tensor) else None
        if node is not None and self._part is not None:
            node.register_prehook(lambda _: self._mark("table_update"))
            node.register_hook(lambda *_: self._mark("gradient_exchange"))

    def _watch_gradients(self, model: nn.Module) -> None:
        """Marks ``gradient_exchange`` once every dense weight has its gradient: from there the step waits for other ranks."""
        dense = [p for name, p in model.named_parameters() if p.requires_grad and "sparse_arch" not in name]

        def count(_: torch.Tensor) -> None:
            self._num_gradients += 1
            if self._num_gradients == len(dense):
                self._mark("gradient_exchange")

        for parameter in dense:
            parameter.register_post_accumulate_grad_hook(count)  # type: ignore[no-untyped-call]


class _HostClock:
    """Reads the host's clock, where the host does all the work."""

    now = staticmethod(time.perf_counter)

    def seconds_between(self, moments: list[float]) -> list[float]:
        return [end - begin for begin, end in pairwise(moments)]


class _DeviceClock:
    """Records events on the computing stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def seconds_between(self, moments: list[torch.cuda.Event]) -> list[float]:
        moments[-1].synchronize()
        return [begin.elapsed_time(end) / 1000 for begin, end in pairwise(moments)]
