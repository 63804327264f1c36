"""Units cut a text into its lines, each in one unit, the same for plain and compressed files."""

import gzip
import random
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from isal import isal_zlib

from dlrm_app.errors import DataError
from dlrm_app.logs.sources import text_units as units
from dlrm_app.logs.sources.source import InputFile
from dlrm_app.logs.sources.text_units import MAX_LINE, TextFeed
from tests.refusals import is_like, refused

COMPRESS = {
    "text": bytes,
    "gzip": gzip.compress,
    "zstd": lambda text: pa.compress(text, "zstd", asbytes=True),
}
COMPRESSED = ["gzip", "zstd"]


def source_of(path: Path, form: str = "text") -> InputFile:
    status = path.stat()
    return InputFile(0, str(path), "train", status.st_size, status.st_mtime_ns, form)


def read_plain(path: Path, unit_bytes: int) -> list[tuple[bytes, int, int, bool]]:
    """Every unit by a feed of its own: (lines, size, crc, whether it is the last)."""
    source = source_of(path)
    count = max(-(-source.bytes // unit_bytes), 1)
    found = []
    for unit in range(count):
        (text,) = [told(text) for text in TextFeed(source, unit_bytes, unit, unit + 1).items()]
        found.append(text)
    return found


def told(text: units.TextUnit) -> tuple[bytes, int, int, bool]:
    """By blocks and loaded, in turn: (lines, size, crc, whether it is the last)."""
    if text.unit % 2:
        text.load()
    lines = b"".join(block.text[block.start : block.stop].tobytes() for block in text.blocks())
    told = text.finish()
    return lines, told.size, told.crc, told.is_last


@pytest.fixture(autouse=True)
def _usual_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "PIECE_BYTES", units.PIECE_BYTES)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=12)).map(b"\n".join), st.integers(1, 30), st.integers(1, 40))
def test_units_together_are_the_text(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, unit_bytes: int, piece: int
) -> None:
    folder = tmp_path_factory.mktemp("units")
    units.PIECE_BYTES = piece  # set anew by every case, and put back by the fixture
    (folder / "plain").write_bytes(text)
    found = read_plain(folder / "plain", unit_bytes)
    whole = text + b"\n" * (bool(text) and not text.endswith(b"\n"))
    assert b"".join(part for part, *_ in found) == whole
    for part, *_ in found:
        assert part == b"" or part.endswith(b"\n")
    assert sum(size for _, size, *_ in found) == len(text)
    crc = 0
    for _, size, part_crc, _ in found:
        crc = isal_zlib.crc32_combine(crc, part_crc, size)
    assert crc == isal_zlib.crc32(text)
    assert [is_last for *_, is_last in found] == [False] * (len(found) - 1) + [True]
    for form in COMPRESSED:
        (folder / form).write_bytes(COMPRESS[form](text))
        source = source_of(folder / form, form)
        assert [told(text) for text in TextFeed(source, unit_bytes).items()] == found
        skipping = TextFeed(source, unit_bytes, skip=frozenset({0, 2}))
        assert [told(text) for text in skipping.items()] == [
            unit for n, unit in enumerate(found) if n not in (0, 2)
        ]


def test_a_unit_is_read_once_in_any_order_of_calls(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"one\ntwo\n")
    (text,) = TextFeed(source_of(tmp_path / "log"), 64).items()
    assert text.finish() == text.finish()
    assert list(text.blocks()) == []
    for text in TextFeed(source_of(tmp_path / "log"), 64).items():
        assert text.load() is text.load()
        assert list(text.blocks()) == [text.load()]
    for text in TextFeed(source_of(tmp_path / "log"), 64).items():
        next(text.blocks())


@pytest.mark.parametrize("form", COMPRESS)
def test_a_line_over_many_units_is_cut_short_but_counted_once(tmp_path: Path, form: str) -> None:
    text = b"first\n" + b"x" * (10 << 20) + b"\nlast\n"
    path = tmp_path / "long"
    path.write_bytes(COMPRESS[form](text))
    unit_bytes = 3 << 20
    source = source_of(path, form)
    feeds = (
        [TextFeed(source, unit_bytes)]
        if source.is_compressed
        else [TextFeed(source, unit_bytes, n, n + 1) for n in range(4)]
    )
    found = [told(text)[0] for feed in feeds for text in feed.items()]
    assert found[0].startswith(b"first\nxxx")
    assert found[0].count(b"\n") == 2
    assert len(found[0].split(b"\n")[1]) > MAX_LINE
    assert found[1:] == [b"", b"", b"last\n"]


@pytest.mark.parametrize("form", COMPRESSED)
def test_a_file_of_several_members_is_one_text(tmp_path: Path, form: str) -> None:
    path = tmp_path / "members"
    path.write_bytes(COMPRESS[form](b"one\ntw") + COMPRESS[form](b"o\nthree\n"))
    found = [told(text)[0] for text in TextFeed(source_of(path, form), 5).items()]
    assert b"".join(found) == b"one\ntwo\nthree\n"


@pytest.mark.parametrize("form", COMPRESSED)
@pytest.mark.parametrize("kept", [5, 30, -8, -1])
def test_a_file_cut_short_is_named(tmp_path: Path, kept: int, form: str) -> None:
    path = tmp_path / "cut.log"
    text = b"".join(b"%d some text\n" % number for number in range(100))
    path.write_bytes(COMPRESS[form](text)[:kept])
    with refused(DataError, "...cut.log", "is cut short..."):
        list(map(told, TextFeed(source_of(path, form), 64).items()))


def is_damage(error: DataError, path: Path) -> bool:
    (problem,) = error.problems
    return any(
        is_like(problem, str(path), rule)
        for rule in ("is damaged: ...", "is cut short, or other bytes follow...")
    )


@pytest.mark.parametrize("form", COMPRESSED)
def test_a_damaged_file_is_named(tmp_path: Path, form: str) -> None:
    path = tmp_path / "damaged.log"
    data = bytearray(COMPRESS[form](random.Random(0).randbytes(300) * 50))
    data[40:60] = bytes(20)
    data[2:3] = data[2:3] if form == "gzip" else b"\x00"
    path.write_bytes(bytes(data))
    with pytest.raises(DataError) as caught:
        list(map(told, TextFeed(source_of(path, form), 64).items()))
    assert is_damage(caught.value, path)


@pytest.mark.parametrize("surplus", [b"x", b"\0x", b"<html>not found</html>" * 100_000])
def test_bytes_after_gzip_data_are_damage_but_padding_is_not(tmp_path: Path, surplus: bytes) -> None:
    path = tmp_path / "long.gz"
    whole = gzip.compress(b"one\ntwo\n") + gzip.compress(b"three\n" * 1000)
    path.write_bytes(whole + surplus)
    with pytest.raises(DataError) as caught:
        list(map(told, TextFeed(source_of(path, "gzip"), 64).items()))
    assert is_damage(caught.value, path)
    path.write_bytes(whole + bytes(1000))  # as some tapes and tools pad it
    list(map(told, TextFeed(source_of(path, "gzip"), 64).items()))
