"""A plan as text."""

import logging

import pytest

from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.cost import estimate_options
from dlrm_app.sharding.plan import EstimatedPlan, log_plan, plan_text, to_plan
from dlrm_app.sharding.search import search
from dlrm_app.tables.table import Table
from tests.sharding.clusters import cluster, one_hot, workload


def planned(tables: list[Table], where: Cluster, **sharding: object) -> EstimatedPlan:
    work = workload(tables, **sharding)
    found = search(estimate_options(work, where), where)
    assert found is not None
    return to_plan(found, dict.fromkeys(work.tables, "bags"), work, where)


def test_every_rank_has_its_line_and_many_ranks_have_three() -> None:
    tables = [one_hot(1000, name=f"t{i}") for i in range(64)]
    few = plan_text(planned(tables, cluster(4))).splitlines()
    assert [line.split()[0] for line in few[1:6]] == ["rank", "0", "1", "2", "3"]
    many = plan_text(planned(tables, cluster(32, 4))).splitlines()
    assert [line.split()[0] for line in many[1:5]] == ["rank", "smallest", "mean", "largest"]


def test_the_first_tables_are_shown() -> None:
    plan = planned([one_hot(100 + i, name=f"t{i}") for i in range(40)], cluster(2), types=["table_wise"])
    lines = plan_text(plan).splitlines()
    assert len(lines) == 6 + 30 + 1
    assert lines[-1] == "  … and 10 lines more: plan.yaml has every table"


def test_similar_tables_share_one_line_with_their_number() -> None:
    tables = [*(one_hot(100, name=f"small_{i}") for i in range(12)), one_hot(7, name="other")]
    lines = plan_text(planned(tables, cluster(1))).splitlines()[-2:]
    assert [line.split("  ")[1] for line in lines] == ["small_* (12)", "other"]


def test_a_plan_says_how_many_ranks_hold_nothing() -> None:
    plan = planned([one_hot(100, name=f"t{i}") for i in range(3)], cluster(32, 8), types=["table_wise"])
    assert "29 of 32 ranks hold no table: " in plan_text(plan)


def test_one_rank_opens_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    plan = planned([one_hot(1000, name="t")], cluster(1, device="cpu"))
    with caplog.at_level(logging.INFO):
        caplog.clear()
        log_plan(plan)
    (record,) = caplog.records
    assert record.getMessage().startswith("tables and their optimizer take ")
    assert "\n" not in record.getMessage()
