"""Threads compute on their rank's GPU, not on GPU 0, where torch puts each new one."""

import threading
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch

from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.runs.checkpoint import save as checkpoints
from dlrm_app.runs.checkpoint.marker import Marker
from dlrm_app.runs.checkpoint.progress import LossSums, Progress
from dlrm_app.runs.checkpoint.save import Checkpoints
from tests.composed import compose_config

MARKER = Marker(Progress(), LossSums([], 0, 0, 0, []), "", "", {}, {}, 1, {}, 0, {}, "")
ON_GPU_3 = Runtime(rank=3, local_rank=3, world_size=1, local_world_size=1, device_type="cuda", num_threads=1)


@pytest.mark.parametrize("in_background", [True, False])
def test_a_save_begins_with_the_ranks_gpu(in_background: bool, tmp_path: Path) -> None:
    config = compose_config("train", TrainConfig, ["data.path=unused"]).checkpoint
    done: list[tuple[str, int]] = []
    set_device = mock.patch("torch.cuda.set_device", side_effect=lambda device: note(f"{device}"))
    save = mock.patch.object(checkpoints, "save_checkpoint", side_effect=lambda *_: note("save"))

    def note(what: str) -> None:
        done.append((what, threading.get_ident()))

    with (
        set_device,
        save,
        Checkpoints(tmp_path, replace(config, asynchronous=in_background), ON_GPU_3) as saves,
    ):
        saves.save({"w": torch.ones(1)}, MARKER)
    (device, thread), (saved, same_thread) = done
    assert (device, saved) == ("cuda:3", "save")
    assert thread == same_thread
    assert (thread != threading.get_ident()) == in_background
