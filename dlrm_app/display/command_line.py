"""Commands that a user is told to type: they work as they stand, whatever is in a name."""

import re
import shlex
import sys

_PLAIN = re.compile(r"[\w./+@%:-]([\w./+@%: -]*[\w./+@%:-])?", re.ASCII)
"""Values that are read as they are; in others ``= [ ( , ~`` and quotes would mean something."""
_WORDS = ("null", "true", "false")


def setting(key: str, value: object) -> str:
    """``key=value`` as it is typed, quoted for the reader of settings and for the shell where that is needed."""
    text = str(value)
    if not _PLAIN.fullmatch(text) or text.lower() in _WORDS or _is_number_written_otherwise(text):
        text = quoted(text)
    return shlex.quote(f"{key}={text}")


def _is_number_written_otherwise(text: str) -> bool:
    """Whether ``text``, as 0E0 or 1_000, would be read as a number and come back as another text."""
    for kind in (int, float):
        try:
            return str(kind(text)) != text
        except ValueError:
            continue
    return False


def quoted(text: str) -> str:
    """``text`` in the quotes in which the reader of settings takes it as it stands."""
    # a backslash means something only before a quote, the closing one too
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', text)
    return '"' + re.sub(r"(\\+)$", r"\1\1", escaped) + '"'


def typed_settings(*without: str) -> list[str]:
    """The settings that this process was started with, as they were typed, but those of the keys or groups ``without``."""
    settings = [argument for argument in sys.argv[1:] if "=" in argument and not argument.startswith("-")]
    return [shlex.quote(each) for each in settings if each.partition("=")[0].lstrip("+") not in without]
