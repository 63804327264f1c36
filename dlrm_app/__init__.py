"""Train deep learning recommendation models with TorchRec: ``import dlrm_app as dlrm``.

Importing this package imports nothing else; each name is loaded when it is first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlrm_app.api.functions import (
        check,
        days,
        doctor,
        evaluate,
        export,
        generate,
        load,
        plan,
        predict,
        preprocess,
        report,
        train,
        tune,
    )
    from dlrm_app.errors import ConfigError, DataError, DlrmError, Problem
    from dlrm_app.model.architectures import architecture
    from dlrm_app.progress import show_progress

__version__ = "0.1.0"
__all__ = [
    "generate",
    "check",
    "preprocess",
    "train",
    "tune",
    "evaluate",
    "predict",
    "load",
    "export",
    "plan",
    "days",
    "report",
    "doctor",
    "architecture",
    "show_progress",
    "DlrmError",
    "ConfigError",
    "DataError",
    "Problem",
]
_ELSEWHERE = {
    **dict.fromkeys(("DlrmError", "ConfigError", "DataError", "Problem"), "dlrm_app.errors"),
    "architecture": "dlrm_app.model.architectures",
    "show_progress": "dlrm_app.progress",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(_ELSEWHERE.get(name, "dlrm_app.api.functions")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
