"""One of facebookresearch/dlrm's trainers as it is, with the times of its steps written down; what train.py runs.

    python benchmarks/train_peers.py CHECKOUT/torchrec_dlrm/dlrm_main.py FOLDER ARGUMENTS…

Nothing of the trainer's own code is changed. Around it: its learning rate schedule, which both call after each step,
writes the time down, into FOLDER/times.json. dlrm_main.py has as many features, and ids of each, as FOLDER/shapes.json
says, and begins with the weights of FOLDER/initial.pt if there are any. For dlrm_s_pytorch.py, NUM_BATCHES random batches are drawn before the first step, and taken in
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
from functools import partial
from pathlib import Path
from typing import Any

import torch

NUM_BATCHES = 8


def main() -> None:
    script, folder, arguments = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    ended = write_down_steps()
    if script.name == "dlrm_s_pytorch.py":
        draw_before()
        without_retired_arguments()
    else:
        with_features(json.loads((folder / "shapes.json").read_text()))
        if (folder / "initial.pt").exists():
            with_initial_weights(folder / "initial.pt")
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")
    (folder / "times.json").write_text(json.dumps(ended[1:]))  # a schedule takes a first step when it is made
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


def with_features(shapes: dict[str, Any]) -> None:
    """As many features as ``shapes`` has, and of each as many random ids a row; the trainer itself knows Criteo's alone."""
    from torchrec.datasets import criteo, random

    criteo.DEFAULT_CAT_NAMES = [f"cat_{index}" for index in range(len(shapes["rows"]))]
    criteo.DEFAULT_INT_NAMES = [f"int_{index}" for index in range(shapes["num_dense"])]
    ids = shapes["ids"]
    random.RandomRecDataset = partial(random.RandomRecDataset, ids_per_features=ids, min_ids_per_features=ids)


def with_initial_weights(path: Path) -> None:
    """The model begins with those of ``path``, by name, none left over on either side."""
    from torchrec.distributed import model_parallel

    from dlrm_app.model.initial_weights import local_parts

    class Begun(model_parallel.DistributedModelParallel):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            weights, own = torch.load(path), self.state_dict()
            if weights.keys() != own.keys():
                sys.exit(f"the models' weights differ: {sorted(weights.keys() ^ own.keys())}")
            for name, held in own.items():
                for part, _, _ in local_parts(held):
                    part.detach().copy_(weights[name])

    model_parallel.DistributedModelParallel = Begun


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
