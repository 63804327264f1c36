"""``dlrm-train data.path=DIR tables=… model=… output=RUN``: train a DLRM and log its AUC per epoch."""

from dlrm_app.cli.auto_recipe import with_recipe
from dlrm_app.cli.launch import launch
from dlrm_app.cli.loading import loading
from dlrm_app.config.train import TrainConfig


def main() -> None:
    launch("train", TrainConfig, _train, _validate, with_recipe)


def _train(config: TrainConfig) -> float | None:
    """The best AUC on val, which a sweeper like Optuna maximises; None without a labelled val split."""
    with loading():
        from dlrm_app.reports.run_page import write_report
        from dlrm_app.training.train import train

    return train(config, write_report).best_val_auc


def _validate(config: TrainConfig) -> None:
    # all ranks check it once more together, after they have joined
    from dlrm_app.distributed.ranks import started_ranks
    from dlrm_app.training.validation import check_training

    check_training(config, started_ranks(), starts_run=True)


if __name__ == "__main__":
    main()
