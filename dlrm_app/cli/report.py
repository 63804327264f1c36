"""``dlrm-report RUN``: RUN/report.html again. ``dlrm-report RUN RUN …``: one page that compares them."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlrm_app.cli.launch import launch
from dlrm_app.config.scoring import ReportConfig, with_runs


def main() -> None:
    sys.argv[1:] = with_runs(sys.argv[1:])
    launch("report", ReportConfig, report, _validate)


def report(config: ReportConfig) -> None:
    """Writes the page that ``config`` asks for and prints where it is. Raises DlrmError."""
    from dlrm_app.reports.comparison import read_runs, shared_split, write_comparison
    from dlrm_app.reports.run_page import write_report

    runs = read_runs(config.runs)
    if len(runs) == 1:
        print(write_report(runs[0].record.path, Path(config.output) if config.output else None))
        return
    split = config.split or shared_split(runs)
    paths = {run.name: run.record.path for run in runs}
    tests = _paired_tests(config, split, paths) if config.paired else {}
    print(write_comparison(runs, split, tests, config.confidence, config.output))


def _paired_tests(config: ReportConfig, split: str, runs: Mapping[str, Path]) -> Mapping[str, Any]:
    from dlrm_app.config.compose import compose_config
    from dlrm_app.config.scoring import EvaluateConfig
    from dlrm_app.evaluation.evaluate_checkpoints import paired_tests

    values = [f"split={split}", f"which={config.which}", f"batch_size={config.batch_size}", "checkpoint=each"]
    evaluation = compose_config("evaluate", EvaluateConfig, values)
    evaluation.threads, evaluation.confidence = config.threads, config.confidence
    return paired_tests(evaluation, runs)


def _validate(config: ReportConfig) -> None:
    from dlrm_app.reports.comparison import check_runs

    check_runs(config)


if __name__ == "__main__":
    main()
