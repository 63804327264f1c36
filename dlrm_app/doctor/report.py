"""The findings as a table, the fixes below it."""

from collections.abc import Iterable

from dlrm_app.doctor.examine import examine
from dlrm_app.doctor.finding import Finding, State
from dlrm_app.errors import DlrmError


def report(timeout: float) -> None:
    """Prints a row for each check as it ends, then what to type. Raises DlrmError if something is wrong."""
    findings = list(_printed(examine(timeout)))
    for fix in dict.fromkeys(finding.fix for finding in findings if finding.fix):
        checks = [finding.check for finding in findings if finding.fix == fix]
        print(f"\nfor {', '.join(checks)}, type:\n  {fix}")
    wrong = sum(finding.state is State.WRONG for finding in findings)
    if wrong:
        raise DlrmError(f"{wrong} of {len(findings)} checks found something wrong")
    print("\nall is well; next: dlrm-generate rows=400_000 output=clicks.tsv")


def _printed(findings: Iterable[Finding]) -> Iterable[Finding]:
    for finding in findings:
        print(f"{finding.check:20} {finding.state.value:6} {finding.result}", flush=True)
        yield finding
