"""``dlrm-train data.path=DIR tables=… model=… output=RUN``: train a DLRM and log its AUC per epoch."""

import shlex
import sys

from dlrm_app.cli.default_recipe import with_default_recipe
from dlrm_app.cli.launch import launch
from dlrm_app.cli.loading import loading
from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import refuse_if


def main() -> None:
    launch("train", TrainConfig, _train, _validate, with_default_recipe)


def _train(config: TrainConfig) -> float | None:
    """The best AUC on val, which a sweeper like Optuna maximises; None without a labelled val split."""
    if config.recommend:
        _recommend(config)
        return None
    with loading():
        from dlrm_app.training.train import train

    return train(config).best_val_auc


def _recommend(config: TrainConfig) -> None:
    from dlrm_app.distributed.ranks import started_ranks
    from dlrm_app.text import typed_settings
    from dlrm_app.training.recommendation.recommend import recommend

    recommend(config, shlex.split(" ".join(typed_settings("recommend"))), started_ranks())


def _validate(config: TrainConfig) -> None:
    # all ranks check it once more together, after they have joined
    from dlrm_app.distributed.ranks import started_ranks
    from dlrm_app.training.validation import check_recommendable, check_training

    if not config.recommend:
        check_training(config, started_ranks(), starts_run=True)
        return
    check_recommendable(config)
    problems = []
    if {"--multirun", "-m"} & set(sys.argv):
        problems.append("recommend=true finds one recipe for one dataset: leave --multirun out")
    if any(argument.lstrip("+").startswith("experiment=") for argument in sys.argv):
        problems.append("recommend=true chooses the recipe itself: leave experiment= out")
    refuse_if(problems)


if __name__ == "__main__":
    main()
