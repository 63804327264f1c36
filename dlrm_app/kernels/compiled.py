"""numba's ``njit``, for functions whose machine code is kept on disk.

numba tells by a function's own file whether its machine code is still right, yet functions of other files that it calls
are compiled into it: after an update of one of those, it would go on with the old ones. So machine code made of other
versions of this package's files is deleted before any is loaded.
"""

import hashlib
import logging
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

from numba import njit
from numba.core import event

from dlrm_app.files import write_text

__all__ = ["forget_other_versions", "njit", "njit_uncounted"]

logger = logging.getLogger(__name__)

njit_uncounted = partial(njit, nogil=True, cache=True, _nrt=False)
"""For a function that is called very often: it counts no references to arrays, and so may make none of its own."""

_STAMP = "compiled.sha256"
"""In the package's __pycache__: what the files were when their machine code was made."""


def forget_other_versions(package: Path) -> None:
    """Deletes the machine code below ``package`` if any Python file there has changed since it was made.

    Where files cannot be written there is none: numba keeps it in the user's cache then, apart for each installation.
    """
    files = sorted(package.rglob("*.py"))
    states = [
        (str(file.relative_to(package)), file.stat().st_mtime_ns, file.stat().st_size) for file in files
    ]
    digest = hashlib.sha256(repr(states).encode()).hexdigest()
    stamp = package / "__pycache__" / _STAMP
    try:
        if stamp.is_file() and stamp.read_text(encoding="utf-8") == digest:
            return
        for machine_code in package.rglob("__pycache__/*.nb[ic]"):
            machine_code.unlink(missing_ok=True)  # another process may be at it too
        stamp.parent.mkdir(exist_ok=True)
        write_text(stamp, digest)
    except OSError:
        return


def _load_without(library: str, module: str) -> None:
    """Imports ``module`` as if ``library`` were not installed."""
    if library in sys.modules:
        return
    sys.modules[library] = None  # type: ignore[assignment]  # how Python marks what cannot be imported
    try:
        import_module(module)
    finally:
        del sys.modules[library]


class _Watch(event.Listener):
    """Says when this process begins to compile, once."""

    has_told = False

    def on_start(self, _event: event.Event) -> None:
        if not self.has_told:
            logger.info("compiling, which is done once for this version and takes seconds …")
        self.has_told = True

    def on_end(self, _event: event.Event) -> None:
        """Nothing to do."""


event.register("numba:compile", _Watch())
forget_other_versions(Path(__file__).parent)
# numba imports scipy.linalg, which takes longer than reading all of our machine code, to find out whether compiled
# functions could multiply matrices; none of ours does
_load_without("scipy.linalg", "numba.np.arraymath")
