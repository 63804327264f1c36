"""numba's ``njit``, for functions whose machine code is kept on disk.

numba checks only a function's own file to see if its machine code is up to date. But functions of other files that
it calls are compiled into it, so after a change of such a file numba would use old code. So machine code made from
other versions of this package's files is deleted before the first function is compiled or loaded.
"""

import hashlib
import logging
import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numba
from numba.core import event

from dlrm_app.files import write_text

__all__ = ["Untyped", "forget_other_versions", "njit", "njit_uncounted"]

logger = logging.getLogger(__name__)

Untyped: TypeAlias = Any
"""A value of numba, LLVM or an operator that has no Python type, such as an argument of compiled code."""

_STAMP = "compiled.sha256"
"""File in the package's __pycache__ with a checksum of the source files that the machine code was made from."""


def forget_other_versions(package: Path) -> None:
    """Deletes the machine code below ``package`` if any Python file there has changed since it was made.

    If the folder is not writable it holds none: numba then uses the user's cache, separately for each installation.
    """
    states = sorted(  # by os.walk, which takes a tenth of the time of Path.rglob
        (folder.removeprefix(str(package)), name, state.st_mtime_ns, state.st_size)
        for folder, _, names in os.walk(package)
        for name in names
        if name.endswith(".py")
        for state in [Path(folder, name).stat()]
    )
    digest = hashlib.sha256(repr(states).encode()).hexdigest()
    stamp = package / "__pycache__" / _STAMP
    try:
        if stamp.is_file() and stamp.read_text(encoding="utf-8") == digest:
            return
        for machine_code in package.rglob("__pycache__/*.nb[ic]"):
            machine_code.unlink(missing_ok=True)  # another process may delete it too
        stamp.parent.mkdir(exist_ok=True)
        write_text(stamp, digest)
    except OSError:
        return


@cache
def _forget_own() -> None:
    forget_other_versions(Path(__file__).parents[1])


def njit(*functions: Callable[..., Untyped], **options: Untyped) -> Untyped:
    """numba's ``njit``; machine code of other versions is deleted first."""
    _forget_own()
    return numba.njit(*functions, **options)


njit_uncounted = partial(njit, nogil=True, cache=True, _nrt=False)
"""``njit`` without reference counts, for a function that is called very often; the function must not create arrays."""


class _Watch(event.Listener):
    """Logs once that this process compiles."""

    has_logged = False

    def on_start(self, _event: event.Event) -> None:
        if not self.has_logged:
            logger.info("compiling (once for this version; takes some seconds) …")
        self.has_logged = True

    def on_end(self, _event: event.Event) -> None:
        """Does nothing; numba requires it."""


event.register("numba:compile", _Watch())
