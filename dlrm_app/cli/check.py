"""``dlrm-check data.path=DATASET``: is a dataset whole, and what is in it."""

from pathlib import Path

from dlrm_app.cli.launch import launch
from dlrm_app.config.datasets import CheckConfig


def main() -> None:
    launch("check", CheckConfig, _check)


def _check(config: CheckConfig) -> None:
    from dlrm_app.check.check_dataset import check_dataset, conclude
    from dlrm_app.check.tables import log_tables
    from dlrm_app.reports.dataset import write_page

    findings = check_dataset(Path(config.data.path), num_threads=config.threads, memory_gib=config.memory_gib)
    log_tables(findings)
    write_page(findings)
    conclude(findings)


if __name__ == "__main__":
    main()
