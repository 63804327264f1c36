"""What the checks found, as it is shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

OUT_OF_TIME = "not run: its share of the time was up"
"""In the place of a fault."""


class State(Enum):
    OK = "ok"
    DIFFERS = "DIFFERS"
    FAILED = "FAILED"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Outcome:
    """Of one case. difference: the largest of its losses from the CPU's, relative; None if there is none."""

    name: str
    state: State
    seconds: float = 0.0
    difference: float | None = None
    remark: str = ""


@dataclass(frozen=True)
class Speed:
    """A step of random batches, of all ranks, beside its floor; or why there is none."""

    name: str
    rows_per_second: float = 0.0
    ms: float = 0.0
    floor_ms: float = 0.0
    fault: str | None = None


@dataclass(frozen=True)
class Findings:
    """Everything that a page or a table shows. machine: (what, state, result) as dlrm-doctor has them.

    syncs: (line of code, how often a step waits there); None where there is no GPU to wait for, or why it was not counted.
    """

    device: str
    ranks: int
    seconds: float
    versions: str
    machine: Sequence[tuple[str, str, str]]
    outcomes: Sequence[Outcome]
    syncs: Sequence[tuple[str, float]] | str | None
    speeds: Sequence[Speed]

    def count(self, state: State) -> int:
        """Cases with this end."""
        return sum(outcome.state is state for outcome in self.outcomes)

    @property
    def is_sound(self) -> bool:
        """Whether nothing that was run differs or failed, and of the cases wanted some were run in time.

        Beside cases, speed and waits may be late; where nothing else is wanted they must be there.
        """
        faults = [self.syncs if isinstance(self.syncs, str) else None, *(each.fault for each in self.speeds)]
        excused = (None, OUT_OF_TIME) if self.outcomes else (None,)
        return (
            not any(state == "WRONG" for _, state, _ in self.machine)
            and not self.count(State.DIFFERS)
            and not self.count(State.FAILED)
            and (not self.outcomes or self.count(State.NOT_RUN) < len(self.outcomes))
            and all(fault in excused for fault in faults)
        )
