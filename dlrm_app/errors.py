"""The errors that a user can mend. Everything else is a bug and shows its traceback.

A message names the key (or file and line), the value, the rule and what to do.
"""

from collections.abc import Sequence


class DlrmError(Exception):
    """A refusal or failure whose message tells the user what to do; printed without a traceback."""

    exit_code = 1


class ConfigError(DlrmError):
    """The configuration cannot work. Holds every problem found, not just the first."""

    exit_code = 2

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
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


def refuse_if(problems: Sequence[str]) -> None:
    """Raises ConfigError with all ``problems``, if there are any."""
    if problems:
        raise ConfigError(problems)


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
