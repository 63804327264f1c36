"""Ranges of files that are not here have the bytes of the whole file, each part compared with its own checksum."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.checksums import PartChecksums, data_checksum
from dlrm_app.errors import DataError
from dlrm_app.runs.checkpoint.ranges import FileParts, parts_name, ranges_read, write_parts
from dlrm_app.stores import parts as stores_parts
from tests.refusals import refused
from tests.stores.memory_store import MemoryFolder

NAME = "rank-00000.tensors"


@given(sizes=st.lists(st.integers(0, 40)), part=st.integers(1, 17))
def test_parts_have_the_checksums_of_slices_of_the_file(sizes: list[int], part: int) -> None:
    data = random.Random(0).randbytes(sum(sizes))
    checksums, begin = PartChecksums(part), 0
    for size in sizes:
        checksums.update(memoryview(data)[begin : begin + size])
        begin += size
    assert checksums.result() == [data_checksum(data[at : at + part]) for at in range(0, len(data), part)]


@given(st.integers(1, 100), st.integers(1, 17), st.data())
def test_the_parts_that_ranges_touch_cover_them_and_no_other_part(size: int, part: int, draw: Any) -> None:
    edge = st.integers(0, size)
    ranges = [tuple(sorted(pair)) for pair in draw.draw(st.lists(st.tuples(edge, edge)))]
    wanted = {place for begin, end in ranges for place in range(begin, end)}
    parts = FileParts(size, part, [str(number) for number in range(-(-size // part))])
    found = parts.touched([(begin, end) for begin, end in ranges])
    assert {*found} == {place // part * part for place in wanted}
    assert [end for end, _ in found.values()] == [min(begin + part, size) for begin in found]
    assert [digest for _, digest in found.values()] == [str(begin // part) for begin in found]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, MemoryFolder]:
    """A checkpoint whose tensors are in the store alone."""
    data = random.Random(0).randbytes(1000)
    store = MemoryFolder("s3://bucket/run", objects={NAME: data})
    monkeypatch.setattr(stores_parts, "_stored", lambda folder: store)
    digests = [data_checksum(data[at : at + 64]) for at in range(0, 1000, 64)]
    write_parts(tmp_path / parts_name(NAME), FileParts(1000, 64, digests))
    return tmp_path, store


def test_ranges_that_are_not_here_are_fetched_and_deleted_again(folder: tuple[Path, MemoryFolder]) -> None:
    path, store = folder
    with ranges_read(path, {NAME: [(10, 20), (500, 700), (990, 1000)]}) as path_of:
        found = path_of(NAME).read_bytes()
    assert len(found) == 1000
    for begin, end in ((10, 20), (500, 700), (990, 1000)):
        assert found[begin:end] == store.objects[NAME][begin:end]
    assert found[64:448] == bytes(384)
    assert [each.name for each in path.iterdir()] == [parts_name(NAME)]


def test_a_part_with_other_bytes_is_named(folder: tuple[Path, MemoryFolder]) -> None:
    path, store = folder
    data = bytearray(store.objects[NAME])
    data[600] ^= 1
    store.objects[NAME] = bytes(data)
    with ranges_read(path, {NAME: [(10, 20)]}):
        pass
    wrong = refused(DataError, f"s3://bucket/run/{NAME}", "has other bytes than were written (checksum)")
    with wrong, ranges_read(path, {NAME: [(599, 600)]}):
        pass
