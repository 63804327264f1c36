"""``dlrm-doctor``: one table of what is installed, whether it fits and works, and the command that mends it."""

import sys
from typing import TYPE_CHECKING

from dlrm_app.errors import DlrmError

if TYPE_CHECKING:
    from dlrm_app.config.doctor import DoctorConfig


def main() -> None:
    try:
        from dlrm_app.cli.launch import launch
        from dlrm_app.config.doctor import DoctorConfig
    except ImportError as error:
        _examine_without_hydra(error)
    else:
        launch("doctor", DoctorConfig, _examine)


def _examine(config: "DoctorConfig") -> None:
    from dlrm_app.doctor.examine import examine
    from dlrm_app.doctor.report import report

    report(examine(config.timeout))


def _examine_without_hydra(reason: ImportError) -> None:
    """An installation that cannot even compose a configuration is examined with the values of conf/doctor.yaml."""
    from dlrm_app.doctor.examine import examine
    from dlrm_app.doctor.report import report

    print(f"{reason}: examining without configuration", file=sys.stderr)
    try:
        report(examine(timeout=180))
    except DlrmError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
