"""Errors that a user can fix. Everything else is a bug and shows its traceback.

A message names the key (or file and line), the value, the rule and what to do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

NOT_GIVEN = ...
"""Stands for a value that a message need not repeat."""


class DlrmError(Exception):
    """A refusal or failure whose message tells the user what to do; printed without a traceback."""

    exit_code = 1


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a configuration; as text ``key rule, got value: cure``."""

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
    """The configuration cannot work. Holds every problem found in words, not just the first."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem | str]) -> None:
        self.problems = list(map(str, problems))
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        count = len(self.problems)
        super().__init__(f"{count} problem{'s' * (count != 1)} in the configuration:\n{lines}")

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[list[str]]]:
        """So that it comes whole from another process."""
        return ConfigError, (self.problems,)


class SharedError(DlrmError):
    """A failure that every rank knows of, so that one rank's message is enough."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class DataError(DlrmError):
    """The data on disk is missing, damaged, or not what its manifest says."""


def refuse_if(problems: Sequence[Problem | str]) -> None:
    """Raises ConfigError with all ``problems``, if there are any."""
    if problems:
        raise ConfigError(problems)


def refuse_all(problems: Sequence[Problem | str], *looks: Callable[[], object]) -> None:
    """Raises one error with ``problems`` and what each of ``looks`` raises, if there is anything."""
    errors: list[DlrmError] = [ConfigError(problems)] if problems else []
    for look in looks:
        try:
            look()
        except DlrmError as error:
            errors.append(error)
    if errors:
        raise joined(errors)


def joined(errors: Sequence[DlrmError]) -> DlrmError:
    """One error that tells what all do, each problem once: the only one itself, or else a ConfigError."""
    if len(errors) == 1:
        return errors[0]
    problems = [
        problem
        for error in errors
        for problem in (error.problems if isinstance(error, ConfigError) else [str(error)])
    ]
    return ConfigError(list(dict.fromkeys(problems)))
