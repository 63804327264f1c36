"""torchrun whose last output is the failed rank's message, and a signal to ranks whose launcher was killed.

``python -m dlrm_app.distributed.launcher`` takes torchrun's arguments. torchrun prints forty lines of its own traceback
after a failed rank's message, and always exits with 1. Here the rank's message is the last output, and its exit code is
the launcher's.
"""

import ctypes
import logging
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""prctl(2)'s option: the signal that this process gets when the thread that started it ends."""

LAUNCHED = "DLRM_LAUNCHED"
"""Environment variable of a process that must end with the process that starts it."""


def stop_with_launcher() -> None:
    """Makes a rank of torchrun, or a trial, receive SIGTERM when its launcher is killed, so that it saves and ends.

    A launcher that is killed by SIGKILL (for example when memory runs out) cannot signal its ranks. They would train
    without end, and keep the run's folder locked. The kernel signals them even while they wait in a collective or
    import torch; checking the parent's id at each step would not. Other runs are not affected: one from a shell
    continues when the shell ends, as with nohup, and Slurm ends its own processes.
    """
    if {"TORCHELASTIC_RUN_ID", LAUNCHED} & os.environ.keys():
        stop_with_parent(os.getppid())


def stop_with_parent(parent: int) -> None:
    """Makes this process receive SIGTERM when the process ``parent``, which started it, ends in any way."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it has ended already
            os.kill(os.getpid(), signal.SIGTERM)


_handling: list[bool] = []


def handle_signals() -> None:
    """Makes runs of this process stop on signals. Commands call it; in other processes signals stay as they are."""
    _handling.append(True)


def handles_signals() -> bool:
    """True if ``handle_signals`` was called: the process is a command's."""
    return bool(_handling)


def main() -> int:
    """Runs torchrun.

    Returns 0, the exit code of the rank that failed first (1 if a signal ended it), or 128 + a signal to this process.
    """
    # every command imports this module, and only torchrun needs torch
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    # its messages say when a rank ends, which is printed below, and that the other ranks are ended
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    try:
        torchrun()
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode >= 0:  # the rank has printed the reason
            return int(failure.exitcode)
        ended_by = signal.Signals(-failure.exitcode).name
        print(f"rank {rank} (pid {failure.pid}) was ended by {ended_by}", file=sys.stderr)
        return 1
    except SignalException as error:  # the ranks got that signal too, and have ended
        return 128 + int(error.sigval)
    return 0


if __name__ == "__main__":
    sys.exit(main())
