"""The result of a check: a row of the table."""

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    OK = "ok"
    NOTE = "note"
    WRONG = "WRONG"


@dataclass(frozen=True)
class Finding:
    """``fix`` is a command to type, or a sentence; only what is wrong or noteworthy has one."""

    check: str
    state: State
    result: str
    fix: str | None = None
