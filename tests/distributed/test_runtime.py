"""What collectives say when the other end is gone is told from errors of one's own."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dlrm_app.distributed.runtime import _is_lost_peer, start_runtime
from dlrm_app.errors import DlrmError

SILENT_PEER = """
import sys, time
from datetime import timedelta
import torch
import torch.distributed as dist

rank = int(sys.argv[1])
dist.init_process_group(
    "gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2, timeout=timedelta(seconds=2)
)
dist.all_reduce(torch.ones(1000))
time.sleep(5 * rank)
for _ in range(2):  # the second time the connection is known to be lost
    try:
        dist.all_reduce(torch.ones(1000))
    except RuntimeError as error:
        print(" ".join(str(error).split()))
"""


def test_a_rank_whose_peer_was_silent_and_the_peer_itself_know_that_they_lost_each_other(
    tmp_path: Path,
) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SILENT_PEER, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=100)[0] for rank in ranks]
    for lines in said:
        assert len(lines.splitlines()) == 2
        for line in lines.splitlines():
            assert _is_lost_peer(RuntimeError(line)), line


def test_an_error_of_one_s_own_is_not_taken_for_a_lost_peer() -> None:
    assert not _is_lost_peer(RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x3 and 4x3)"))
    assert not _is_lost_peer(ValueError("Connection reset"))


def test_an_allocation_that_fails_is_told_with_what_to_do() -> None:
    with pytest.raises(DlrmError, match=r"out of memory: .*; lower the batch sizes"), start_runtime(1):
        torch.empty(2**58)
