"""torchrun with the ranks' own last words, and what becomes of ranks whose launcher is gone.

``python -m dlrm_app.distributed.launcher`` takes torchrun's arguments. torchrun prints forty lines of its own code behind
whatever a rank says when it ends, and ends with 1 whatever the rank's code. Here the rank's message stays the last, and its
code is the launcher's.
"""

import ctypes
import logging
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


def main() -> int:
    """Runs torchrun. Gives the exit code: 0, that of the rank that failed first (1 where a signal ended it), or 128 + a signal to this."""
    # every command imports this module, and only torchrun needs torch
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    # says when a rank ends, which is said below, and that the others are ended for it
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    try:
        torchrun()
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode >= 0:  # it has said why
            return int(failure.exitcode)
        ended_by = signal.Signals(-failure.exitcode).name
        print(f"rank {rank} (pid {failure.pid}) was ended by {ended_by}", file=sys.stderr)
        return 1
    except SignalException as error:  # its ranks have ended as they end after that signal
        return 128 + int(error.sigval)
    return 0


if __name__ == "__main__":
    sys.exit(main())
