"""Errors that a user can fix. Everything else is a bug and shows its traceback.

A message names the key (or file and line), the value, the rule and what to do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum


class ExitCode(IntEnum):
    """How a command has ended, for scripts."""

    DONE = 0
    FAILED = 1
    """Also for a check that finds a fault."""
    REFUSED = 2
    """The configuration cannot work; nothing was started."""
    DAY_HELD = 3
    """dlrm-days holds the newest day back."""
    DAYS_MISSING = 4
    """dlrm-days lacks the newest days."""
    DAYS_CHANGED = 5
    """Files of days that dlrm-days has finished have changed."""
    RESUMABLE = 75
    """A run stopped early and can be resumed: requeue it (EX_TEMPFAIL of sysexits.h)."""
    INTERRUPTED = 130


NOT_GIVEN = ...
"""The value of a Problem whose message does not repeat the value."""


@dataclass(frozen=True)
class Problem:
    """One problem. Its text is ``key rule, got value: cure``.

    key: the setting, file, column or table with the problem. rule: the rule that it breaks. cure: what to do.
    """

    key: str
    rule: str
    cure: str = ""
    value: object = NOT_GIVEN

    def __str__(self) -> str:
        is_word = self.value is None or isinstance(self.value, bool)
        value = str(self.value).lower().replace("none", "null") if is_word else repr(self.value)
        got = "" if self.value is NOT_GIVEN else f", got {value}"
        return f"{self.key} {self.rule}{got}".strip() + (f": {self.cure}" if self.cure else "")

    def within(self, place: str, separator: str = ": ") -> "Problem":
        """The same problem of a part of ``place``, such as a section or a file."""
        return replace(self, key=separator.join(filter(None, (place, self.key))))

    def also(self, cure: str) -> "Problem":
        """The same problem, with ``cure`` after its own cure."""
        return replace(self, cure=", ".join(filter(None, (self.cure, cure))))


class DlrmError(Exception):
    """An error whose message tells the user what to do; printed without a traceback.

    ``problems`` are its records: the first one says what is wrong, the others are its details. A text alone is a
    Problem without a key.
    """

    exit_code = ExitCode.FAILED
    is_shared = False
    """True if every rank knows the failure, so that one rank's message is enough."""

    def __init__(self, *problems: Problem | str) -> None:
        super().__init__(*problems)  # the arguments with which pickle makes the error again
        self.problems = [Problem("", each) if isinstance(each, str) else each for each in problems]

    def __str__(self) -> str:
        lines = list(map(str, self.problems))
        return "\n".join([*lines[:1], *(f"  - {detail}" for detail in lines[1:])])


class ConfigError(DlrmError):
    """Raised if the configuration cannot work. Holds all problems found."""

    exit_code = ExitCode.REFUSED

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*problems)

    def __str__(self) -> str:
        count = len(self.problems)
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        return f"{count} problem{'s' * (count != 1)} in the configuration:\n{lines}"


class SharedError(DlrmError):
    """A failure that every rank finds at the same time."""

    is_shared = True


class DataError(DlrmError):
    """Raised if data on disk is missing, damaged, or differs from its manifest."""


def refuse_if(problems: Sequence[Problem]) -> None:
    """Raises ConfigError with all ``problems``, if there are any."""
    if problems:
        raise ConfigError(*problems)


def refuse_all(problems: Sequence[Problem], *looks: Callable[[], object]) -> None:
    """Raises one error with ``problems`` and the errors of ``looks``, if there are any."""
    errors: list[DlrmError] = [ConfigError(*problems)] if problems else []
    for look in looks:
        try:
            look()
        except DlrmError as error:
            errors.append(error)
    if errors:
        raise joined(errors)


def joined(errors: Sequence[DlrmError]) -> DlrmError:
    """One error with the problems of all, each once: the error itself if there is only one, otherwise a ConfigError."""
    if len(errors) == 1:
        return errors[0]
    by_text = {str(problem): problem for error in errors for problem in error.problems}
    return ConfigError(*by_text.values())


def first_line(error: BaseException) -> str:
    """The first line of an error's message; the name of its type if it has none."""
    return (str(error) or type(error).__name__).splitlines()[0]


def first_problems(problems: Sequence[Problem], most: int) -> list[Problem]:
    """The first ``most`` problems, and one that counts the others."""
    more = [Problem("", f"… and {len(problems) - most:,} more")] if len(problems) > most else []
    return [*problems[:most], *more]
