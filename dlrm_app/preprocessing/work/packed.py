"""Values that ranks hand each other: pickles, of which nothing but data is opened.

Others may be able to write to a folder, above all one in a store. A pickle names the classes and functions that make
its values; here these are records of this package, its errors, and what records hold.
"""

import io
import pickle
from dataclasses import is_dataclass
from typing import Any

from dlrm_app.errors import DlrmError, Problem

_HELD = {
    "builtins": {"Ellipsis", "frozenset", "set"},
    "datetime": {"date", "datetime", "timedelta", "timezone"},
    "numpy": {"dtype", "ndarray"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "pathlib": {"PosixPath", "PurePosixPath"},
}
"""Module → what makes the values that records hold, besides numbers, texts, lists and dicts."""


def unpack(data: bytes) -> Any:
    """The value of a pickle. Raises DlrmError if it would call anything else than records of data."""
    return Unpacker(io.BytesIO(data)).load()


def pack_error(error: DlrmError) -> bytes:
    """``error`` without its traceback. Not as a pickle of its own: Dask changes what these hold, where it is imported."""
    return pickle.dumps((type(error), error.args, vars(error)))


def unpack_error(data: bytes) -> DlrmError:
    kind, problems, facts = unpack(data)
    error: DlrmError = kind(*problems)
    vars(error).update(facts)
    return error


class Unpacker(pickle.Unpickler):
    """Opens a pickle; raises DlrmError where it names anything else than records of data."""

    def find_class(self, module: str, name: str) -> Any:
        is_own = module.partition(".")[0] == __name__.partition(".")[0]
        found = super().find_class(module, name) if is_own or name in _HELD.get(module, ()) else None
        if found is None or (is_own and not _is_record(found)):
            rule = f"hold {module}.{name}, which dlrm-preprocess does not write"
            cure = "find out who else writes there, delete the folder .work in output, and start again"
            raise DlrmError(Problem("the files in which ranks meet", rule, cure))
        return found


def _is_record(found: Any) -> bool:
    return isinstance(found, type) and (is_dataclass(found) or issubclass(found, DlrmError | str | tuple))
