"""What every test relies on."""

import gc
import os

from hypothesis import settings

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as the commands do, before torch loads OpenMP

settings.register_profile("no deadline", deadline=None)  # time tells of the machine, and first calls compile
settings.load_profile("no deadline")


def pytest_sessionfinish() -> None:
    """Frees what holds process groups while Python can still join their threads (see cli/launch.py)."""
    gc.collect()
