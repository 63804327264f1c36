"""``dlrm-train data.path=DIR tables=… model=… output=RUN``: train a DLRM and log its AUC per epoch."""

from dlrm_app.cli.launch import launch
from dlrm_app.config.train import TrainConfig


def main() -> None:
    launch("train", TrainConfig, _train)


def _train(config: TrainConfig) -> None:
    from dlrm_app.training.loop import train

    train(config)


if __name__ == "__main__":
    main()
