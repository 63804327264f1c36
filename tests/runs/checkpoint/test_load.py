"""Optimizer states of one number a row load under any cut of their table: each part has the mean over its columns."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.sharded_tensor.shard import Shard

from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import DataError
from dlrm_app.runs.checkpoint import load
from dlrm_app.runs.checkpoint.load import await_file, find_checkpoint, load_tensors
from dlrm_app.runs.checkpoint.marker import Marker
from dlrm_app.runs.checkpoint.names import checkpoint_name, list_checkpoints
from dlrm_app.runs.checkpoint.progress import LossSums, Progress
from dlrm_app.runs.checkpoint.save import save_checkpoint
from dlrm_app.runs.checkpoint.storage import TensorReader
from dlrm_app.runs.checkpoint.tensors import local_pieces, shard_like_weight
from tests.ranks import on_ranks
from tests.refusals import refused

ROWS, DIM = 5, 12
WEIGHT, STATE = "model/sparse_arch.embedding_bags.t.weight", "table/t/sum"
CUTS: dict[str, list[tuple[int, int, int, int, int]]] = {
    "whole": [(0, 0, 5, 12, 0)],
    "rows": [(0, 0, 3, 12, 0), (3, 0, 2, 12, 1)],
    "halves": [(0, 0, 5, 6, 1), (0, 6, 5, 6, 0)],
    "third first": [(0, 0, 5, 4, 0), (0, 4, 5, 8, 1)],
    "three on two ranks": [(0, 0, 5, 4, 0), (0, 4, 5, 4, 1), (0, 8, 5, 4, 0)],
    "grid": [(0, 0, 3, 8, 0), (3, 0, 2, 8, 1), (0, 8, 3, 4, 0), (3, 8, 2, 4, 1)],
}
"""Shards: first row, first column, rows, columns, rank."""


def make(shards: list[ShardMetadata], size: tuple[int, ...], rank: int) -> ShardedTensor:
    properties = TensorProperties(dtype=torch.float32, requires_grad=False)
    local = [Shard(torch.zeros(each.shard_sizes), each) for each in shards if each.placement.rank() == rank]
    metadata = ShardedTensorMetadata(shards, torch.Size(size), tensor_properties=properties)
    return ShardedTensor._init_from_local_shards_and_global_metadata(local, metadata)


def tensors_of(cut: str, rank: int, more: int = 0) -> dict[str, Any]:
    """A table's weight, and its state as torchrec's fused kernel might place it: its pieces in any order.

    With so many ``more`` rows in the first piece and in the last ones.
    """
    stretched = [
        (r and r + more, c, rows + more * (1 + (rows == ROWS)), columns, on)
        for r, c, rows, columns, on in CUTS[cut]
    ]
    places = [
        ShardMetadata([r, c], [rows, columns], f"rank:{on}/cpu") for r, c, rows, columns, on in stretched
    ]
    weight = make(places, (ROWS + 2 * more, DIM), rank)
    sizes = [each.shard_sizes[0] for each in places]
    flat = [
        ShardMetadata([sum(sizes[:number])], [sizes[number]], each.placement)
        for number, each in enumerate(places)
    ]
    return {
        WEIGHT: weight,
        STATE: shard_like_weight(make(flat, (sum(sizes),), rank), weight, is_per_row=True),
    }


def numbers(cut: str) -> torch.Tensor:
    """Each weight's number, [ROWS, DIM]: that of its row within its piece."""
    whole = torch.zeros(ROWS, DIM)
    for place, (r, c, rows, columns, _) in enumerate(CUTS[cut]):
        column = torch.rand(rows, 1, generator=torch.Generator().manual_seed(place))
        whole[r : r + rows, c : c + columns] = column
    return whole


def save_and_load(
    folder: Path, before: str, after: str, runtime: Runtime
) -> list[tuple[list[float], list[float]]]:
    """(Numbers loaded, those expected) of each part, also where the table has two rows more since."""
    saved = tensors_of(before, runtime.rank)
    for weight, state in zip(saved[WEIGHT].local_shards(), saved[STATE].local_shards(), strict=True):
        (r, c), (rows, _) = weight.metadata.shard_offsets, weight.metadata.shard_sizes
        state.tensor.copy_(numbers(before)[r : r + rows, c])
    marker = Marker(Progress(), LossSums([], 0, 0, 0, []), "", "", {}, {}, 2, {}, 0, {}, "")
    save_checkpoint(folder, saved, local_pieces(saved), marker, runtime, None)
    compared = []
    for more in (0, 2):
        loaded = tensors_of(after, runtime.rank, more)
        load_tensors(TensorReader(folder), loaded, may_grow=bool(more))
        for weight, state in zip(loaded[WEIGHT].local_shards(), loaded[STATE].local_shards(), strict=True):
            (r, c), (rows, columns) = weight.metadata.shard_offsets, weight.metadata.shard_sizes
            expected = numbers(before)[r : r + rows, c : c + columns].mean(1)
            padded = torch.cat([expected, torch.zeros(rows - len(expected))])
            compared.append((state.tensor.tolist(), padded.tolist()))
    return compared


def save_and_load_all(folder: Path, runtime: Runtime) -> dict[tuple[str, str], Any]:
    pairs = [(before, after) for before in CUTS for after in CUTS]
    return {
        pair: save_and_load(folder / f"step-{number:09d}", *pair, runtime)
        for number, pair in enumerate(pairs)
    }


@pytest.mark.slow
def test_a_part_gets_the_mean_of_its_columns_states_weighted_by_width(tmp_path: Path) -> None:
    for found in on_ranks(partial(save_and_load_all, tmp_path), 2):
        for pair, parts in found.items():
            for values, expected in parts:
                assert values == pytest.approx(expected, rel=1e-6), pair


def size_of_states(runtime: Runtime) -> list[tuple[int, ...]]:
    """States of a table that rank 0 holds whole, as a torch optimizer keeps them: a number a weight, and one a row."""
    weight = tensors_of("whole", runtime.rank)[WEIGHT]
    per_weight, per_row = (
        (torch.zeros(0), torch.zeros(0)) if runtime.rank else (torch.zeros(ROWS, DIM), torch.zeros(ROWS, 1))
    )
    states = [
        shard_like_weight(per_weight, weight, is_per_row=False),
        shard_like_weight(per_row, weight, is_per_row=True),
    ]
    return [tuple(state.size()) for state in states]


def test_a_state_has_the_whole_tables_size_on_every_rank() -> None:
    assert on_ranks(size_of_states, 2) == [[(ROWS, DIM), (ROWS,)]] * 2


def choose_from_old_listing(run: Path, runtime: Runtime) -> list[tuple[str, int]]:
    """(Folder, step) that a rank resumes from, by resume=auto and by name; rank 1 does not see the last save yet."""
    for step in (1, 2):
        tensors = {"model/w": torch.full((3,), float(step))}
        marker = Marker(Progress(step=step), LossSums([], 0, 0, 0, []), "", "", {}, {}, 2, {}, 0, {}, "")
        folder = run / "checkpoints" / checkpoint_name(step)
        save_checkpoint(folder, tensors, local_pieces(tensors), marker, runtime, None)

    def list_late(parent: Path) -> list[Path]:
        return list_checkpoints(parent)[runtime.rank :]

    found = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("list_checkpoints", "choose_checkpoint"):
            choose = (
                list_late
                if name == "list_checkpoints"
                else lambda path, _: list_late(path / "checkpoints")[0]
            )
            patch.setattr(load, name, choose)
        for resume in ("auto", str(run)):
            checkpoint = find_checkpoint(resume, str(run), runtime)
            assert checkpoint is not None
            found.append((checkpoint.folder.name, checkpoint.marker.progress.step))
    return found


def test_all_ranks_take_the_first_ranks_checkpoint(tmp_path: Path) -> None:
    """On a network file system the listing of a folder may be a minute old."""
    assert on_ranks(partial(choose_from_old_listing, tmp_path), 2) == [[("step-000000002", 2)] * 2] * 2


def test_a_file_that_appears_late_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "complete.json"
    timer = threading.Timer(0.7, path.touch)
    timer.start()
    await_file(path)
    assert path.is_file()
    monkeypatch.setattr(load, "SECONDS_TO_APPEAR", 0.1)
    with refused(
        DataError,
        ".../other.json",
        "is not visible on ..., but on the first rank's machine",
        cure="give all machines the same folder",
    ):
        await_file(tmp_path / "other.json")
