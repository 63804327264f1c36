"""``python -m dlrm_app.training.report RUN``: writes RUN/report.html again, also of a run that is still going."""

import sys
from pathlib import Path

from dlrm_app.errors import DlrmError
from dlrm_app.training.report.page import write_report


def main() -> None:
    """Exit codes: 0 well, 1 no run there, 2 wrong usage."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    try:
        print(write_report(Path(sys.argv[1])))
    except DlrmError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
