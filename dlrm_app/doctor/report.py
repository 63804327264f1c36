"""The findings as a table, the cures below it."""

from collections.abc import Iterable

from dlrm_app.doctor.examine import examine
from dlrm_app.doctor.finding import Finding, State
from dlrm_app.errors import DlrmError


def report(timeout: float) -> None:
    """Prints a row for each check as it ends, then what to type. Raises DlrmError if something is wrong."""
    findings = list(_printed(examine(timeout)))
    for cure in dict.fromkeys(finding.cure for finding in findings if finding.cure):
        checks = [finding.check for finding in findings if finding.cure == cure]
        print(f"\nfor {', '.join(checks)}, type:\n  {cure}")
    wrong = sum(finding.state is State.WRONG for finding in findings)
    if wrong:
        raise DlrmError(f"{wrong} of {len(findings)} checks found something wrong")
    print("\nall is well; next: dlrm-generate rows=400_000 output=clicks.tsv")


def _printed(findings: Iterable[Finding]) -> Iterable[Finding]:
    for finding in findings:
        print(f"{finding.check:20} {finding.state.value:6} {finding.found}", flush=True)
        yield finding
