"""``dlrm-evaluate checkpoint=RUN data.path=DIR split=test [against=RUN2]``: measure a model, or compare two."""

from pathlib import Path

from dlrm_app.cli.launch import launch
from dlrm_app.cli.loading import loading
from dlrm_app.config.scoring import EvaluateConfig


def main() -> None:
    launch("evaluate", EvaluateConfig, _evaluate, _validate)


def _evaluate(config: EvaluateConfig) -> None:
    with loading():
        from dlrm_app.distributed.ranks import started_ranks
        from dlrm_app.evaluation.evaluate_checkpoints import evaluate_checkpoints
        from dlrm_app.reports.evaluation import write_evaluation

    result = evaluate_checkpoints(config)
    if config.report and started_ranks().is_first:
        write_evaluation(result, Path(config.report), config.ema)


def _validate(config: EvaluateConfig) -> None:
    from dlrm_app.distributed.ranks import started_ranks
    from dlrm_app.evaluation.problems import check_paths

    check_paths(config, started_ranks().is_first)


if __name__ == "__main__":
    main()
