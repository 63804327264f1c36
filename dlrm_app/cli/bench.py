"""``dlrm-bench data.path=DIR tables=… [measure=[model]] [output=FOLDER]``: where a run's time goes on this machine;
``dlrm-bench output=machine.yaml``: what this machine can do, as a topology file for dlrm-plan.
"""

from dataclasses import asdict

from dlrm_app.cli.auto_recipe import with_recipe
from dlrm_app.cli.launch import launch
from dlrm_app.cli.loading import loading
from dlrm_app.config.like_train import BenchConfig


def main() -> None:
    launch("bench", BenchConfig, _bench, _validate, with_recipe)


def _bench(config: BenchConfig) -> None:
    with loading():
        from dlrm_app.bench.bench import bench

    if result := bench(config):
        from dlrm_app.reports.bench import show_bench

        show_bench(result, config.output, asdict(config))


def _validate(config: BenchConfig) -> None:
    from dlrm_app.distributed.ranks import started_ranks
    from dlrm_app.training.validation import check_bench

    check_bench(config, started_ranks())


if __name__ == "__main__":
    main()
