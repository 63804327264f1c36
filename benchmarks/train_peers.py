"""One of facebookresearch/dlrm's trainers as it is, with the times of its steps written down; what train.py runs.

    python benchmarks/train_peers.py CHECKOUT/torchrec_dlrm/dlrm_main.py TIMES.json ARGUMENTS…

Nothing of the trainer's own code is changed. Around it: its learning rate schedule, which both call after each step,
writes the time down. For dlrm_s_pytorch.py, NUM_BATCHES random batches are drawn before the first step, and taken in
turn: drawing one takes longer than a step on it. The argument of torch's profiler that is gone is ignored, and
summaries are not written.
"""

import itertools
import json
import os
import runpy
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

NUM_BATCHES = 8


def main() -> None:
    script, times, arguments = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    ended = write_down_steps()
    if script.name == "dlrm_s_pytorch.py":
        draw_before()
        without_retired_arguments()
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")
    times.write_text(json.dumps(ended[1:]))  # a schedule takes a first step when it is made
    sys.stdout.flush()
    os._exit(0)


def write_down_steps() -> list[float]:
    """The times at which steps end, filled while the trainer runs."""
    ended: list[float] = []
    schedule = torch.optim.lr_scheduler.LRScheduler
    step = schedule.step

    def timed(self: Any, *arguments: Any, **options: Any) -> None:
        step(self, *arguments, **options)
        ended.append(time.time())

    schedule.step = timed
    return ended


def draw_before() -> None:
    """Random batches are drawn once and repeated."""
    loader = torch.utils.data.DataLoader
    draw = loader.__iter__

    def repeat(self: Any) -> Iterator[Any]:
        drawn = list(itertools.islice(draw(self), NUM_BATCHES))
        return itertools.islice(itertools.cycle(drawn), len(self))

    loader.__iter__ = repeat


def without_retired_arguments() -> None:
    """What the trainer asks of torch and tensorboard of its time."""
    profile = torch.autograd.profiler.profile
    torch.autograd.profiler.profile = lambda enabled, use_cuda, **options: profile(enabled, **options)
    silent = types.ModuleType("torch.utils.tensorboard")
    silent.SummaryWriter = lambda folder: types.SimpleNamespace(add_scalar=lambda *_: None)
    sys.modules["torch.utils.tensorboard"] = silent


if __name__ == "__main__":
    main()
