"""Reads ranges of a checkpoint's files from a store: a rank fetches its own rows, not what other ranks need.

A save to a store gives each part of a file a checksum; a range is fetched as the parts that it touches, and each of
these is compared.

    rank-00000.tensors      the values (storage.py)
    rank-00000.parts.json   the checksums of its parts
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from dlrm_app.files import write_json
from dlrm_app.records import read_record
from dlrm_app.stores.parts import bring_ranges

PART_BYTES = 1 << 20
"""The bytes of a part: with 16 requests at a time as fast as a disk, and small beside a rank's rows."""
Range = tuple[int, int]
"""Begin and end, in bytes."""


@dataclass(frozen=True)
class FileParts:
    """The size of a file, and the checksums of its parts of ``part_bytes``."""

    bytes: int
    part_bytes: int
    checksums: list[str]

    def touched(self, ranges: Iterable[Range]) -> dict[int, tuple[int, str]]:
        """Begin → (end, checksum) of the parts that the ``ranges`` touch, in their order in the file."""
        numbers = {
            number
            for begin, end in ranges
            if begin < end
            for number in range(begin // self.part_bytes, -(-end // self.part_bytes))
        }
        return {
            number * self.part_bytes: (
                min((number + 1) * self.part_bytes, self.bytes),
                self.checksums[number],
            )
            for number in sorted(numbers)
        }


def parts_name(tensors: str) -> str:
    """The name of the file with the checksums of the parts of the file ``tensors``."""
    return f"{tensors.removesuffix('.tensors')}.parts.json"


def write_parts(path: Path, parts: FileParts) -> None:
    write_json(path, asdict(parts))


@contextmanager
def ranges_read(folder: Path, ranges: Mapping[str, Iterable[Range]]) -> Iterator[Callable[[str], Path]]:
    """Fetches the ``ranges`` of files of the checkpoint ``folder`` that are not here; they are deleted after the block.

    Yields a function from a file's name to the path of a file that has its ranges. Raises DataError.
    """
    missing = [
        name for name in ranges if not (folder / name).is_file() and (folder / parts_name(name)).is_file()
    ]
    if not missing:
        yield folder.joinpath
        return
    with TemporaryDirectory(prefix=".ranges-", suffix=".tmp", dir=folder) as temporary:
        for name in missing:
            parts = read_record(folder / parts_name(name), FileParts, "take it from a copy")
            bring_ranges(folder, name, Path(temporary, name), parts.bytes, parts.touched(ranges[name]))
        yield lambda name: Path(temporary if name in missing else folder, name)
