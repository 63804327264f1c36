"""``dlrm-predict model=RUN|EXPORT input=FILES output=scores.parquet``: a score for every row."""

from dlrm_app.cli.launch import launch
from dlrm_app.cli.loading import loading
from dlrm_app.config.scoring import PredictConfig


def main() -> None:
    launch("predict", PredictConfig, _predict, _validate)


def _predict(config: PredictConfig) -> None:
    with loading():
        from dlrm_app.inference.predict.predict import predict

    predict(config)


def _validate(config: PredictConfig) -> None:
    from dlrm_app.inference.problems import check_predict

    check_predict(config)


if __name__ == "__main__":
    main()
