"""The message of a rank that fails while other ranks may wait for it."""

import sys

from dlrm_app.distributed.ranks import Ranks
from dlrm_app.errors import DlrmError, ExitCode


def print_failure(error: BaseException, ranks: Ranks) -> int:
    """Prints why this rank ends, with the library's message, and returns its exit code."""
    from dlrm_app.distributed.library_errors import is_lost_peer  # torch is loaded by now

    rank = f"rank {ranks.rank}"
    if isinstance(error, DlrmError):
        print(f"error ({rank}): {error}", file=sys.stderr)
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        if ranks.is_first:
            print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    if is_lost_peer(error):
        print(
            f"{rank} lost contact with another rank: the last message of that rank says why; "
            f"if there is none, look at its machine and the network. The error here: {' '.join(str(error).split())}",
            file=sys.stderr,
        )
        return 1
    sys.excepthook(type(error), error, error.__traceback__)
    if "NCCL" in str(error):
        print(f"error ({rank}): an error of NCCL (docs/how-to/launching.md#errors-of-nccl)", file=sys.stderr)
    return 1
