"""facebookresearch/dlrm's dlrm_main.py as it is, with the times of its steps written down; what train.py runs.

    python benchmarks/train_peers.py CHECKOUT/torchrec_dlrm/dlrm_main.py FOLDER ARGUMENTS…

Nothing of the trainer's own code is changed. Around it: its learning rate schedule, which it calls after each step,
writes the time into FOLDER/times.json; it has as many features, and ids of each, as FOLDER/shapes.json says.
"""

import json
import os
import runpy
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch


def main() -> None:
    script, folder, arguments = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    ended = write_down_steps()
    with_features(json.loads((folder / "shapes.json").read_text()))
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
    """As many features as ``shapes`` has, and of each as many random ids a
    row; the trainer itself knows Criteo's alone.
    """
    from torchrec.datasets import criteo, random

    criteo.DEFAULT_CAT_NAMES = [f"cat_{index}" for index in range(len(shapes["rows"]))]
    criteo.DEFAULT_INT_NAMES = [f"int_{index}" for index in range(shapes["num_dense"])]
    ids = shapes["ids"]
    random.RandomRecDataset = partial(random.RandomRecDataset, ids_per_features=ids, min_ids_per_features=ids)


if __name__ == "__main__":
    main()
