"""What the Tab key offers: Hydra's answers, without names of files that the shell would take for commands."""

import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO

_PLAIN = re.compile(r"[\w./=:@,+%-]+")


def print_completion(asked: str, answer: Callable[[], object]) -> None:
    """Prints what ``answer`` prints to ``asked``, which is ``query=bash``, ``install=zsh``, …

    bash expands the words that it is offered (``compgen -W``): a file called ``$(rm -r x).yaml`` would be run.
    """
    said = StringIO()
    try:
        with redirect_stdout(said):
            answer()
    finally:
        text = said.getvalue()
        sys.stdout.write(_without_commands(text) if asked.startswith("query=") else text)


def _without_commands(words: str) -> str:
    """``words`` between their spaces, without those that hold anything a shell would read."""
    return re.sub(r"\S+", lambda word: word[0] if _PLAIN.fullmatch(word[0]) else "", words)
