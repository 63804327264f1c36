"""``dlrm-tune data.path=DIR model=… tune.trials=30 output=STUDY``: find values that train better, by val alone."""

import signal
from pathlib import Path

from dlrm_app.cli.launch import launch
from dlrm_app.config.like_train import TuneConfig


def main() -> None:
    launch("tune", TuneConfig, _tune, _validate)


def _tune(config: TuneConfig) -> None:
    from dlrm_app.reports.study import write_study
    from dlrm_app.text import typed_settings
    from dlrm_app.tuning.study import tune

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # trials save themselves then too
    typed = typed_settings("output")
    try:
        tune(config, [word for word in typed if not word.lstrip("'+").startswith("tune.")])
    finally:
        if page := write_study(Path(str(config.output))):
            print(f"page: {page}")


def _validate(config: TuneConfig) -> None:
    from dlrm_app.distributed.ranks import started_ranks
    from dlrm_app.training.validation import check_tuning

    check_tuning(config, started_ranks())


if __name__ == "__main__":
    main()
