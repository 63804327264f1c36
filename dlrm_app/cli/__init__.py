"""The commands: compose the configuration, validate it, call the job. No other logic."""

import sys
from typing import Any

_show = sys.excepthook


def _excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    if issubclass(kind, KeyboardInterrupt):  # during the imports
        print("interrupted", file=sys.stderr)
    else:
        _show(kind, error, trace)


sys.excepthook = _excepthook
