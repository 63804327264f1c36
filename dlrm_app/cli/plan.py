"""``dlrm-plan tables=… topology=a100_80g topology.nodes=16 trainer.global_batch_size=65536``: plan without a cluster."""

from dlrm_app.cli.launch import launch
from dlrm_app.config.like_train import PlanConfig


def main() -> None:
    launch("plan", PlanConfig, _plan, _validate)


def _plan(config: PlanConfig) -> None:
    from dlrm_app.planning.plan_cluster import plan_cluster
    from dlrm_app.reports.plan import write_plan_page

    plan_cluster(config, write_plan_page)


def _validate(config: PlanConfig) -> None:
    from dlrm_app.training.validation import check_plan

    check_plan(config)


if __name__ == "__main__":
    main()
