"""Python files of a user that register architectures: ``plugins=[mine.py]``. They are executed only if they are typed.

A run records each file with its checksum, as ``mine.py@sha256:…``, and is resumed, evaluated and exported
only with the same content. The files that a run's configuration names are never executed by themselves: it
may come from someone else.
"""

import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from dlrm_app.checksums import checksum
from dlrm_app.errors import ConfigError, Problem
from dlrm_app.model.architectures import find_architecture, registering

_MARK = "@sha256:"
_KEY = "plugins"


def load_plugins(given: Sequence[str]) -> list[str]:
    """Executes the files ``given``, unless they were executed before, and returns each with its checksum.

    Raises ConfigError for a file that is not a local Python file, has another checksum than ``given`` names, or fails.
    """
    return [_load(*each.partition(_MARK)[::2]) for each in given]


def _load(name: str, expected: str) -> str:
    path = Path(name).expanduser().absolute()
    if path.suffix != ".py" or not path.is_file():
        raise ConfigError(
            Problem(_KEY, "must be local Python files", "give the path of a file NAME.py", name)
        )
    digest = checksum(path)
    if expected and digest != f"sha256:{expected}":
        rule = f"names a file that has changed: it is {digest} now"
        cure = "give the file that the run was made with"
        raise ConfigError(Problem(_KEY, rule, cure, f"{name}{_MARK}{expected}"))
    module_name = f"dlrm_plugin_{path.stem}_{digest.removeprefix('sha256:')[:16]}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
        try:
            with registering(digest):
                spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            lines = [
                frame.lineno
                for frame in traceback.extract_tb(error.__traceback__)
                if frame.filename == str(path)
            ]
            place = f"{name}:{lines[-1]}" if lines else name
            rule = f"has a file that fails, {place}: {type(error).__name__}: {error}"
            raise ConfigError(Problem(_KEY, rule)) from error
    return f"{name}@{digest}"


def refuse_other_plugins(kind: str, plugins: Sequence[str], run: str) -> None:
    """Raises ConfigError unless architecture ``kind`` is there, from the file that ``run`` recorded in ``plugins``."""
    found = find_architecture(kind)
    recorded = {f"sha256:{digest}" for _, _, digest in (each.partition(_MARK) for each in plugins)}
    if found is not None and (found.origin is None or not recorded or found.origin in recorded):
        return
    files = ", ".join(plugins)
    if found is not None:
        rule = (
            f"was made with model.kind={kind} of {files}, and another file registers it now ({found.origin})"
        )
        raise ConfigError(Problem(run, rule, "give plugins= the same file"))
    name = plugins[0].partition(_MARK)[0] if plugins else "FILE.py"
    rule = f"has model.kind={kind}, which is not registered here"
    made = f"; it was made with {files}" * bool(files)
    raise ConfigError(Problem(run, f"{rule}{made}", f"add plugins=[{name}]"))
