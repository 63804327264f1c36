"""``dlrm-train data.path=DIR tables=… model=… output=RUN``: train a DLRM and log its AUC per epoch."""

from dlrm_app.cli.launch import launch
from dlrm_app.config.train import TrainConfig


def main() -> None:
    launch("train", TrainConfig, _train)


def _train(config: TrainConfig) -> None:
    print(config)


if __name__ == "__main__":
    main()
