"""``dlrm-preprocess dataset=criteo_kaggle input.train=train.txt split.val=0.1 split.test=0.1 output=DIR``."""

from dlrm_app.cli.launch import launch
from dlrm_app.cli.loading import loading
from dlrm_app.config.datasets import PreprocessConfig


def main() -> None:
    launch("preprocess", PreprocessConfig, _preprocess)


def _preprocess(config: PreprocessConfig) -> None:
    with loading():
        from dlrm_app.preprocess.preprocess import preprocess

    preprocess(config)


if __name__ == "__main__":
    main()
