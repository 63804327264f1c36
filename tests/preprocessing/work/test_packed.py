"""What ranks hand each other: records come back as they were, and a pickle that would run code is refused unrun."""

import os
import pickle
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlrm_app.errors import ConfigError, DataError, DlrmError, Problem
from dlrm_app.logs.sources.source import DamagedFileError, InputFile
from dlrm_app.logs.sources.store import Address
from dlrm_app.preprocessing.work.packed import pack_error, unpack, unpack_error
from dlrm_app.preprocessing.work.stored_folder import SharedInStore
from dlrm_app.stores.fetch import KeptFolder
from dlrm_app.stores.mirror import Mirror
from tests.refusals import refused

SOURCE = InputFile(0, Address("s3://logs/a", "s3://logs/a", "a"), "train", 9, 1, "text", {"dt": "2026-11-22"})
VALUES: list[Any] = [
    {"a": (1, 2.5, None, True, "x", b"y"), "b": [date(2026, 11, 22), datetime(2026, 11, 22, tzinfo=UTC)]},
    [frozenset({"train"}), {"val"}, Path("/data/made"), SOURCE],
]


class Calls:
    """An object whose pickle calls ``function`` with ``arguments``."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("value", VALUES)
def test_records_and_what_they_hold_come_back(value: Any, protocol: int) -> None:
    assert unpack(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("array", [np.arange(6).reshape(2, 3), np.array([], np.float16), np.float32(0.5)])
def test_arrays_come_back(array: Any, protocol: int) -> None:
    found = unpack(pickle.dumps(array, protocol))
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("kind", [DlrmError, DataError, ConfigError])
@pytest.mark.parametrize("has_dask", [False, True])
def test_errors_come_back(kind: type[DlrmError], has_dask: bool) -> None:
    """Also where Dask has been imported, which changes how exceptions are pickled."""
    if has_dask:
        pytest.importorskip("distributed", reason="dask is not installed: pip install distributed")
    problems = [Problem("label", "must be 0 or 1", "say how", 2), Problem("input", "is gone")]
    found = unpack_error(pack_error(kind(*problems)))
    assert type(found) is kind
    assert found.problems == problems
    damaged = unpack_error(pack_error(DamagedFileError(problems[0], source=3)))
    assert isinstance(damaged, DamagedFileError)
    assert (damaged.source, damaged.problems) == (3, problems[:1])


def forged(place: Path) -> list[Any]:
    own = "dlrm_app.preprocessing.work.packed"
    return [
        Calls(os.mkdir, str(place)),
        Calls(os.system, f"mkdir {place}"),
        Calls(eval, f"__import__('os').mkdir({str(place)!r})"),
        Calls(getattr, SOURCE, "path"),
        Calls(np.save, str(place), np.zeros(1)),
        # what a module of this package has imported, and functions of it
        f"c{own}\npickle\n.".encode(),
        f"c{own}\nunpack\n(tR.".encode(),
        f"\x80\x04\x8c{chr(len(own))}{own}\x8c\x0cpickle.loads\x93.".encode("latin-1"),
    ]


@pytest.mark.parametrize("number", range(8))
def test_what_would_call_something_else_is_refused_and_not_called(number: int, tmp_path: Path) -> None:
    value = forged(tmp_path / "made")[number]
    data = value if isinstance(value, bytes) else pickle.dumps([value])
    with refused(DlrmError, "...in which ranks meet", "hold ..., which dlrm-preprocess does not write"):
        unpack(data)
    assert not [*tmp_path.iterdir()]


def test_credentials_of_an_input_are_not_packed_for_a_store(tmp_path: Path) -> None:
    kept = KeptFolder.of("s3://bucket/made")
    shared = SharedInStore(kept, tmp_path, Mirror(kept), is_first=True)
    assert shared.unpack(shared.pack([SOURCE])) == [SOURCE]
    secret = Address("https://host/a", "https://me:word@host/a", "a")
    with refused(ConfigError, "https://host/a", "has credentials in its URL...", cure="...environment..."):
        shared.pack([secret])
