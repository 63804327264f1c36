"""Whether there is an NVIDIA driver. Standard library only: scripts/setup.py asks before anything is installed."""

from __future__ import (
    annotations,
)  # setup.py is to refuse old Pythons with a message, not with a syntax error

import ctypes
import shutil
from pathlib import Path


def find_driver() -> str | None:
    """How an NVIDIA driver shows itself; None where it does not."""
    if Path("/proc/driver/nvidia").is_dir():
        return "/proc/driver/nvidia is there"
    if shutil.which("nvidia-smi"):
        return "nvidia-smi is on the path"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return "libcuda.so.1 can be loaded"
