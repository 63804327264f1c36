"""The files of a checkpoint: exact in every cut, read where they are needed, written and read in little memory."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.checksums import checksum
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.errors import DataError
from dlrm_app.runs.checkpoint import storage
from dlrm_app.runs.checkpoint.load import load_tensors
from dlrm_app.runs.checkpoint.marker import Marker, read_marker
from dlrm_app.runs.checkpoint.progress import LossSums, Progress
from dlrm_app.runs.checkpoint.save import save_checkpoint
from dlrm_app.runs.checkpoint.storage import INDEX, TensorReader
from dlrm_app.runs.checkpoint.tensors import Tensors, local_pieces
from tests.refusals import refused

MARKER = Marker(Progress(), LossSums([], 0, 0, 0, []), "", "", {}, {}, 1, {}, 0, {}, "")


def saved(folder: Path, tensors: Tensors) -> TensorReader:
    with start_runtime(1) as runtime:
        save_checkpoint(folder, tensors, local_pieces(tensors), MARKER, runtime, None)
    return TensorReader(folder)


def some_tensors() -> Tensors:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(501, 12, generator=generator)
    return {
        "model/table": table,
        "model/half": table[:77].half(),
        "model/brain": table[:5].bfloat16(),
        "table/t/sum": table[:, 0].clone(),
        "dense/count": torch.tensor(3, dtype=torch.int64),
        "model/transposed": table[:9].t(),
        "model/empty": torch.zeros(0, 4),
    }


@pytest.mark.parametrize("block_bytes", [1, 100, 1 << 26])
def test_every_type_and_shape_is_restored(
    block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "BLOCK_BYTES", block_bytes)
    tensors = some_tensors()
    reader = saved(tmp_path / "step-000000001", tensors)
    loaded = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    load_tensors(reader, loaded)
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor), name


ROWS, COLUMNS = 97, 8


@given(cuts=st.sets(st.integers(1, ROWS - 1), max_size=5), data=st.data())
def test_any_box_is_read_from_any_cut(
    cuts: set[int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Pieces cut by rows, and halves of columns, in one file; boxes may lie across them or overlap each other."""
    folder = tmp_path_factory.mktemp("cut")
    table = torch.arange(ROWS * COLUMNS, dtype=torch.float32).view(ROWS, COLUMNS)
    write_cut(folder, table, [0, *sorted(cuts), ROWS], [0, 3, COLUMNS])
    bounds = [
        sorted(data.draw(st.lists(st.integers(0, size), min_size=2, max_size=2, unique=True)))
        for size in (ROWS, COLUMNS, ROWS, COLUMNS)
    ]
    boxes = [bounds[:2], bounds[2:]]
    pieces = {
        ("t", (top, left)): torch.full((bottom - top, right - left), -1.0)
        for (top, bottom), (left, right) in boxes
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "BLOCK_BYTES", 40)
        TensorReader(folder).fill(pieces)
    for (top, bottom), (left, right) in boxes:
        if (bottom - top, right - left) == tuple(pieces["t", (top, left)].shape):  # not replaced by the other
            assert torch.equal(pieces["t", (top, left)], table[top:bottom, left:right])


@given(cuts=st.sets(st.integers(1, ROWS - 1), max_size=5), numbers=st.sets(st.integers(0, ROWS - 1)))
def test_any_rows_are_read_from_any_cut(
    cuts: set[int], numbers: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    table = torch.arange(ROWS * COLUMNS, dtype=torch.float32).view(ROWS, COLUMNS)
    write_cut(folder, table, [0, *sorted(cuts), ROWS], [0, 3, COLUMNS])
    wanted = torch.tensor(sorted(numbers), dtype=torch.int64)
    assert torch.equal(TensorReader(folder).rows("t", wanted), table[wanted])


def write_cut(folder: Path, table: torch.Tensor, rows: list[int], columns: list[int]) -> None:
    """Writes a checkpoint's index and files for a float32 ``table`` by hand; a file for each piece's columns."""
    pieces = []
    for left, right in pairwise(columns):
        file, start = f"columns-{left}", 0
        parts = [table[top:bottom, left:right].contiguous() for top, bottom in pairwise(rows)]
        (folder / file).write_bytes(b"".join(part.numpy().tobytes() for part in parts))
        for top, part in zip(rows, parts, strict=False):
            pieces.append([[top, left], list(part.shape), file, start, part.nbytes])
            start += part.nbytes
    entry = {"dtype": "float32", "size": list(table.shape), "pieces": pieces}
    (folder / INDEX).write_text(json.dumps({"version": 2, "tensors": {"t": entry}}))


def bytes_read_so_far() -> int:
    """The bytes that this process has read from files, by the kernel's count."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_ranks_read_the_rows_that_they_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that 8 ranks saved, loaded by 128: in all little more than the table."""
    monkeypatch.setattr(storage, "BLOCK_BYTES", 1 << 15)
    table = torch.randn(64_000, 32)
    write_cut(tmp_path, table, list(range(0, 64_001, 8_000)), [0, 32])
    readers = [TensorReader(tmp_path) for _ in range(128)]
    assert all(reader.tensors for reader in readers)  # the index is read now
    shards = [(rank * 500, torch.empty(500, 32)) for rank in range(128)]
    before = bytes_read_so_far()
    for reader, (first, shard) in zip(readers, shards, strict=True):
        reader.fill({("t", (first, 0)): shard})
    read = bytes_read_so_far() - before
    assert torch.equal(torch.cat([shard for _, shard in shards]), table)
    assert read < 1.6 * table.nbytes  # blocks of 256 rows: at most one more at each end of 500 rows


def test_halves_of_columns_read_a_block_once(tmp_path: Path) -> None:
    table = torch.randn(4_000, 32)
    write_cut(tmp_path, table, [0, 4_000], [0, 32])
    reader = TensorReader(tmp_path)
    halves = {("t", (0, 16 * half)): torch.empty(4_000, 16) for half in range(2)}
    assert reader.tensors
    before = bytes_read_so_far()
    reader.fill(halves)
    assert bytes_read_so_far() - before < table.nbytes + 10_000
    assert torch.equal(torch.cat([*halves.values()], 1), table)


PEAKS = """
import sys
from pathlib import Path
import torch
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.runs.checkpoint.save import save_checkpoint
from dlrm_app.runs.checkpoint.storage import TensorReader
from dlrm_app.runs.checkpoint.tensors import local_pieces
from tests.runs.checkpoint.test_storage import MARKER

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))

folder = Path(sys.argv[1])
with start_runtime(1) as runtime:
    def save(name, tensors):
        save_checkpoint(folder / name, tensors, local_pieces(tensors), MARKER, runtime, None)

    save("step-000000001", {"model/w": torch.ones(3)})
    tensors = {name: torch.ones(1 << 20, 64) for name in ("model/a", "model/b")}
    for what in ("save", "load"):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
        before = peak()
        if what == "save":
            save("step-000000002", tensors)
        else:
            TensorReader(folder / "step-000000002").fill(local_pieces(tensors))
        print(what, peak() - before)
"""


@pytest.mark.long
def test_a_save_and_a_load_hold_no_table_twice(tmp_path: Path) -> None:
    """Beside 512 MiB of tensors: at most two blocks of 64 MiB, and what the allocators keep."""
    command = [sys.executable, "-c", PEAKS, str(tmp_path)]
    root = Path(__file__).parents[3]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root).stdout
    grown_mib = {what: float(size) for what, size in map(str.split, printed.splitlines())}
    assert grown_mib.keys() == {"save", "load"}
    assert max(grown_mib.values()) < 140


def test_checksums_are_made_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    plain_open = Path.open

    def noting(path: Path, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
        opened.extend([path.name] if "r" in mode and path.suffix == ".tensors" else [])
        return plain_open(path, mode, *arguments, **keywords)

    monkeypatch.setattr(Path, "open", noting)
    saved(folder := tmp_path / "step-000000001", some_tensors())
    assert opened == []
    files = read_marker(folder).files
    assert sorted(files) == [INDEX, "rank-00000.tensors"]
    for name, (num_bytes, digest) in files.items():
        assert (folder / name).stat().st_size == num_bytes
        assert checksum(folder / name) == digest


def test_a_file_that_ends_early_is_refused(tmp_path: Path) -> None:
    table = torch.randn(100, 4)
    write_cut(tmp_path, table, [0, 50, 100], [0, 4])
    file = tmp_path / "columns-0"
    file.write_bytes(file.read_bytes()[:-4])
    with refused(DataError, ".../columns-0", "ends within a tensor"):
        TensorReader(tmp_path).fill({("t", (0, 0)): torch.empty(100, 4)})


def test_values_without_a_piece_are_refused(tmp_path: Path) -> None:
    write_cut(tmp_path, torch.randn(100, 4), [0, 50, 100], [0, 4])
    index = json.loads((tmp_path / INDEX).read_text())
    del index["tensors"]["t"]["pieces"][1]
    (tmp_path / INDEX).write_text(json.dumps(index))
    with refused(DataError, str(tmp_path), "lacks 200 values of t"):
        TensorReader(tmp_path).fill({("t", (0, 0)): torch.empty(100, 4)})


@pytest.mark.parametrize("file", ["../other", "/etc/hostname"])
def test_a_file_outside_of_the_checkpoint_is_refused(file: str, tmp_path: Path) -> None:
    entry = {"dtype": "float32", "size": [1], "pieces": [[[0], [1], file, 0, 4]]}
    (tmp_path / INDEX).write_text(json.dumps({"version": 2, "tensors": {"t": entry}}))
    with refused(DataError, str(tmp_path / INDEX), "...outside the checkpoint..."):
        assert TensorReader(tmp_path).tensors


@pytest.mark.parametrize("version", [None, 1, 3])
def test_an_index_of_another_version_is_refused(version: int | None, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"version": version, "tensors": {}}))
    rule = f"is not an index of a checkpoint (it has version {version}, this program reads version 2)"
    with refused(DataError, str(tmp_path / INDEX), rule, cure="...dlrm-app that saved it"):
        assert TensorReader(tmp_path).tensors
