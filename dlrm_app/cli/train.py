"""``dlrm-train data.path=DIR tables=… model=… output=RUN``: train a DLRM and log its AUC per epoch."""

from dlrm_app.cli.launch import launch
from dlrm_app.config.train import TrainConfig


def main() -> None:
    launch("train", TrainConfig, _train)


def _train(config: TrainConfig) -> float | None:
    """The AUC on val at the run's end, which a sweeper like Optuna maximises; None without a labelled val split."""
    from dlrm_app.training.loop import train

    val = train(config)["evals"].get("val")
    return val["auc"] if val else None


if __name__ == "__main__":
    main()
