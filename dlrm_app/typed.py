"""Formats commands as they are typed: settings, in quotes where they need them."""

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

_PLAIN = re.compile(r"[\w./+@%:-]([\w./+@%: -]*[\w./+@%:-])?", re.ASCII)
"""Values that need no quotes; in other values ``= [ ( , ~`` and quotes would have a meaning."""
_WORDS = ("null", "true", "false")


def setting(key: str, value: object) -> str:
    """``key=value`` as it is typed, quoted for Hydra and for the shell if needed."""
    return shlex.quote(word(key, value))


def word(key: str, value: object) -> str:
    """``key=value`` as a program's argument, quoted for Hydra if needed."""
    return f"{key}={as_typed(os.fspath(value) if isinstance(value, os.PathLike) else value, _word)}"


def words_of(settings: Mapping[str, object]) -> list[str]:
    """The arguments of a command that has ``settings``."""
    return [word(key, value) for key, value in settings.items()]


def _word(text: str) -> str:
    """``text``, in quotes if Hydra would read something else otherwise."""
    if not _PLAIN.fullmatch(text) or text.lower() in _WORDS or _is_number_written_otherwise(text):
        return quoted(text)
    return text


def _is_number_written_otherwise(text: str) -> bool:
    """True if ``text``, such as 0E0 or 1_000, would be read as a number and written back differently."""
    for kind in (int, float):
        with suppress(ValueError):
            return str(kind(text)) != text
    return False


def quoted(text: str) -> str:
    """``text`` in quotes, so that Hydra reads it unchanged."""
    # a backslash has a meaning only before a quote, the closing one included
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', text)
    return '"' + re.sub(r"(\\+)$", r"\1\1", escaped) + '"'


def as_typed(value: object, write: Callable[[str], str] = quoted) -> str:
    """``value``, of any type, as it is typed after ``key=``. ``write`` formats texts."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{as_typed(each, write)}' for key, each in value.items())}}}"
    if isinstance(value, str):
        return write(value)
    if isinstance(value, Sequence):
        return f"[{','.join(as_typed(each, write) for each in value)}]"
    return str(value)


def install_command(extra: str) -> str:
    """``pip install`` with the names of ``extra``'s packages, which also works if no index has this package."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        stated = requires("dlrm-app") or []
    except PackageNotFoundError:  # runs from a source tree, not installed
        stated = []
    parts = [re.fullmatch(r"(.+?)\s*;\s*extra == ['\"](\w+)['\"]", text) for text in stated]
    packages = [part[1] for part in parts if part is not None and part[2] == extra]
    return shlex.join(["pip", "install", *(packages or [f"dlrm-app[{extra}]"])])


def next_line(program: str, settings: Mapping[str, object], *words: str) -> str:
    """``next: PROGRAM key=value … words``: the line with the next command."""
    return " ".join(["next:", program, *(setting(key, value) for key, value in settings.items()), *words])
