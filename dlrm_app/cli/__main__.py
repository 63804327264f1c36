"""Runs ``dlrm-NAME key=value …`` as ``python -m dlrm_app.cli NAME key=value …``, which torchrun can start."""

import sys

from dlrm_app.api.commands import COMMANDS
from dlrm_app.cli.commands import run


def main() -> None:
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        sys.exit(
            f"error: {name!r} is not a command: write python -m dlrm_app.cli NAME with one of {', '.join(COMMANDS)}"
        )
    run(name)


if __name__ == "__main__":
    main()
