"""torchrun, but for the end: ``python -m dlrm_app.distributed.torchrun``, with torchrun's own arguments.

torchrun prints forty lines of its own code behind whatever a rank says when it ends, and ends with 1 whatever the
rank's code. Here the rank's message stays the last, and its code is the launcher's.
"""

import logging
import signal
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun


def main() -> int:
    """The exit code: 0, that of the rank that failed first (1 where a signal ended it), or 128 + a signal to this."""
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
