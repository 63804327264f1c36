"""The table of findings: a row for each check as it ends, and below it what to type."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from dlrm_app.errors import DlrmError


class State(Enum):
    OK = "ok"
    NOTE = "note"
    WRONG = "WRONG"


@dataclass(frozen=True)
class Finding:
    """The result of a check. ``fix``, a command to type or a sentence, where something is wrong or noteworthy."""

    check: str
    state: State
    result: str
    fix: str | None = None


def report(findings: Iterable[Finding]) -> None:
    """Prints each of ``findings`` as it comes, then what to type. Raises DlrmError if something is wrong."""
    seen = []
    for finding in findings:
        print(f"{finding.check:20} {finding.state.value:6} {finding.result}", flush=True)
        seen.append(finding)
    for fix in dict.fromkeys(finding.fix for finding in seen if finding.fix):
        checks = [finding.check for finding in seen if finding.fix == fix]
        print(f"\nfor {', '.join(checks)}, type:\n  {fix}")
    wrong = sum(finding.state is State.WRONG for finding in seen)
    if wrong:
        raise DlrmError(f"{wrong} of {len(seen)} checks found something wrong")
    print("\nall is well; next: dlrm-generate rows=400_000 output=clicks.tsv")
