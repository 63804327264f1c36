"""``dlrm-evaluate checkpoint=RUN data.path=DIR split=test [against=RUN2]``: measure a model, or compare two."""

from dlrm_app.cli.launch import launch
from dlrm_app.config.evaluate import EvaluateConfig


def main() -> None:
    launch("evaluate", EvaluateConfig, _evaluate)


def _evaluate(config: EvaluateConfig) -> None:
    from dlrm_app.evaluation.evaluate_checkpoints import evaluate_checkpoints

    evaluate_checkpoints(config)


if __name__ == "__main__":
    main()
