"""A command, and a call of it."""

from collections.abc import Callable
from concurrent.futures import Executor as Pool
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dlrm_app.errors import refuse_if
from dlrm_app.result import Result

if TYPE_CHECKING:
    from dlrm_app.config.overrides import Settings
    from dlrm_app.config.schema import Section

Config = TypeVar("Config", bound="Section")


def _say_nothing(_: str) -> None:
    pass


@dataclass(frozen=True)
class Call:
    """A call of a command.

    ``config``: the configuration composed of the typed ``settings``.
    ``words``: the settings as they were typed.
    ``say``: shows a line to the user while the job runs.
    ``is_typed``: True in a command's own process, which a launcher may have started on several ranks.
    ``pool``: runs the units of work, for a job that can be divided.
    """

    config: Any = None
    settings: "Settings" = field(default_factory=dict)
    words: tuple[str, ...] = ()
    say: Callable[[str], None] = _say_nothing
    is_typed: bool = False
    pool: Pool | None = None


Job = Callable[[Config, Call], Result | None]
"""Does the work that a configuration describes. Raises DlrmError for problems that a user can fix."""


def _refuse_problems(config: "Section") -> None:
    refuse_if(config.problems())


@dataclass(frozen=True)
class Command(Generic[Config]):
    """A command.

    ``load``: imports what its job needs, and returns the job.
    ``check``: raises one error with all problems before any work, and does not import torch.
    ``complete``: returns settings for what the typed ones leave open.
    ``regroup``: gathers settings of other commands, of which this one consists.
    ``positional``: the key whose values are typed without it.
    ``takes_tasks``: True if the tasks of srun are its ranks. Other commands need torchrun for several ranks.
    """

    schema: type[Config]
    load: Callable[[], Job[Config]]
    check: Callable[[Config], object] = _refuse_problems
    complete: "Callable[[Settings], Settings]" = lambda typed: {}
    regroup: "Callable[[Settings], Settings]" = lambda settings: settings
    positional: str = ""
    takes_tasks: bool = False
