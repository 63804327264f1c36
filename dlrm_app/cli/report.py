"""``dlrm-report RUN``: RUN/report.html again. ``dlrm-report RUN RUN …``: one page that compares them."""

import sys

from dlrm_app.cli.launch import launch
from dlrm_app.config.report import ReportConfig, with_runs


def main() -> None:
    sys.argv[1:] = with_runs(sys.argv[1:])
    launch("report", ReportConfig, _report, _validate)


def _report(config: ReportConfig) -> None:
    from dlrm_app.reports.comparison.compare import report

    report(config)


def _validate(config: ReportConfig) -> None:
    from dlrm_app.reports.comparison.runs import check_runs

    check_runs(config)


if __name__ == "__main__":
    main()
