"""A folder that all ranks of a machine share for a while."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlrm_app.distributed.collectives import broadcast_from_first
from dlrm_app.distributed.runtime import Runtime


@contextmanager
def scratch_folder(runtime: Runtime, prefix: str) -> Iterator[Path]:
    """Made and removed by the first rank, when all have left the block. Every rank must call it."""
    made = tempfile.mkdtemp(prefix=prefix) if runtime.is_first else ""
    folder = Path(broadcast_from_first(made))
    try:
        yield folder
        runtime.together(lambda: None)
    finally:
        if runtime.is_first:
            shutil.rmtree(folder, ignore_errors=True)
