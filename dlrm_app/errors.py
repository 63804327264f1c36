"""Errors that a user can fix. Everything else is a bug and shows its traceback.

A message names the key (or file and line), the value, the rule and what to do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

NOT_GIVEN = ...
"""The value of a Problem whose message does not repeat the value."""


class DlrmError(Exception):
    """An error whose message tells the user what to do; printed without a traceback."""

    exit_code = 1


@dataclass(frozen=True)
class Problem:
    """One problem of a configuration; its text is ``key rule, got value: cure``."""

    key: str
    rule: str
    cure: str = ""
    value: object = NOT_GIVEN

    def __str__(self) -> str:
        is_word = self.value is None or isinstance(self.value, bool)
        value = str(self.value).lower().replace("none", "null") if is_word else repr(self.value)
        got = "" if self.value is NOT_GIVEN else f", got {value}"
        return f"{self.key} {self.rule}{got}" + (f": {self.cure}" if self.cure else "")


class ConfigError(DlrmError):
    """Raised if the configuration cannot work. Holds all problems found, as text."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem | str]) -> None:
        self.problems = list(map(str, problems))
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        count = len(self.problems)
        super().__init__(f"{count} problem{'s' * (count != 1)} in the configuration:\n{lines}")

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[list[str]]]:
        """Lets the error be pickled together with its problems."""
        return ConfigError, (self.problems,)


class SharedError(DlrmError):
    """A failure that every rank knows, so that one rank's message is enough. ``problems``: those of a ConfigError."""

    def __init__(self, message: str, exit_code: int = 1, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.problems = list(problems)

    @classmethod
    def of(cls, error: DlrmError) -> "SharedError":
        """The failure ``error`` of one rank, for all ranks."""
        return cls(str(error), error.exit_code, error.problems if isinstance(error, ConfigError) else ())


class DataError(DlrmError):
    """Raised if data on disk is missing, damaged, or differs from its manifest."""


def refuse_if(problems: Sequence[Problem | str]) -> None:
    """Raises ConfigError with all ``problems``, if there are any."""
    if problems:
        raise ConfigError(problems)


def refuse_all(problems: Sequence[Problem | str], *looks: Callable[[], object]) -> None:
    """Raises one error with ``problems`` and the errors of ``looks``, if there are any."""
    errors: list[DlrmError] = [ConfigError(problems)] if problems else []
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
    problems = [
        problem
        for error in errors
        for problem in (error.problems if isinstance(error, ConfigError) else [str(error)])
    ]
    return ConfigError(list(dict.fromkeys(problems)))
