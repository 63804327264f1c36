"""What every test relies on."""

import gc
import os

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as the commands do, before torch loads OpenMP


def pytest_sessionfinish() -> None:
    """Frees what holds process groups while Python can still join their threads (see cli/launch.py)."""
    gc.collect()
