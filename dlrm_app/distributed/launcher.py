"""A process whose launcher is gone: it stops as if the launcher had passed SIGTERM on."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that this process gets when the thread that started it ends."""

RESUMABLE = 75
"""Exit code of a run that stopped early and can go on (EX_TEMPFAIL of sysexits.h): requeue it."""
LAUNCHED = "DLRM_LAUNCHED"
"""In the environment of a process that is to end with the one that starts it."""


def stop_with_launcher() -> None:
    """Lets a rank of torchrun, or a trial, get SIGTERM when its launcher is killed, so that it saves and ends.

    A launcher that is killed by SIGKILL, out of memory say, can tell its ranks nothing: they would train on with
    nobody to end them, and hold the run's folder. The kernel tells them even while they wait in a collective or load
    torch, which a look at their parent's number at each step would not. Only for those: a run started from a shell goes on when
    the shell ends, as nohup would have it, and Slurm ends what it starts by itself.
    """
    if {"TORCHELASTIC_RUN_ID", LAUNCHED} & os.environ.keys() and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
