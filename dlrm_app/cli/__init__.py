"""One file a command: compose, validate, call the job. No logic."""

import sys
from typing import Any

_show = sys.excepthook


def _excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    if issubclass(kind, KeyboardInterrupt):  # in the first second, while modules are imported
        print("interrupted", file=sys.stderr)
    else:
        _show(kind, error, trace)


sys.excepthook = _excepthook
