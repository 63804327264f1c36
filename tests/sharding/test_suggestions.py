"""When tables do not fit: the figures are right, and what is advised works."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from dlrm_app.config.like_train import PlanConfig
from dlrm_app.config.sharding import TopologyConfig
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import DlrmError
from dlrm_app.sharding.cluster import GIB, Cluster, running_cluster
from dlrm_app.sharding.cost import estimate_options
from dlrm_app.sharding.search import can_fit, explain_misfit, search, smallest_cluster
from dlrm_app.tools.planning.plan_cluster import plan_cluster
from tests.composed import compose_config
from tests.sharding.clusters import cluster, one_hot, workload

MIB = 2**20


def test_the_message_names_what_is_needed_and_what_there_is() -> None:
    """Two tables of 1 GiB with as much of Adagrad's state need a little over 4 GiB."""
    tables = [one_hot(2**22, 64, "one"), one_hot(2**22, 64, "two")]
    text = explain_misfit(workload(tables, batch=8), cluster(2, memory=1.5 * GIB))
    assert "needed:    4.0 GiB in all (2.0 GiB of weights, 2.0 GiB of optimizer, " in text
    assert "available: 3.0 GiB in all, 1.5 GiB on each of 2 cuda ranks" in text
    assert re.search(r"one +4,194,304 × 64 +fp32 +1.0 GiB", text)


def test_a_table_that_no_rank_can_hold_may_be_split() -> None:
    tables = [one_hot(2**22, 64, "large"), one_hot(10, 64, "small")]
    text = explain_misfit(workload(tables, "sgd", types=["table_wise"]), cluster(2, memory=0.9 * GIB))
    assert "    - sharding.types=null  (" in text


@pytest.mark.parametrize("is_own", [True, False])
def test_a_constraint_in_the_way_is_named_first_with_a_value_that_fits(is_own: bool) -> None:
    """Halves of 0.5 GiB fit on no rank, quarters do; the width is the table's own, or that of a pattern."""
    width = {"min_partition": 32}
    table = replace(one_hot(2**22, 64, "wide"), sharding=width if is_own else {})
    work = workload([table], "sgd", types=["column_wise"])
    if not is_own:
        work = replace(work, sharding=replace(work.sharding, tables={"w*": width}))
    text = explain_misfit(work, cluster(4, memory=0.4 * GIB))
    named = "sharding: {min_partition: 16} in the spec of table wide"
    if not is_own:
        named = "'sharding.tables={w*:{min_partition:16}}'"
    assert text.startswith(f"no sharding plan fits: a constraint stands in the way, and {named} fits\n")
    assert f"    - {named}  (" in text
    plain = explain_misfit(workload([one_hot(2**22, 64)], "sgd"), cluster(1, memory=0.4 * GIB))
    assert plain.startswith("no sharding plan fits: the tables need more memory than there is\n")


def as_typed(setting: str) -> list[str]:
    """The overrides of a suggestion's line."""
    typed = setting.split("  (")[0].split(": ")[-1]
    return [typed.strip().strip("'")]


def assert_advice_works(common: list[str]) -> list[str]:
    """The suggestions for a plan that is refused; each of them, typed behind ``common``, gives a plan."""
    with pytest.raises(DlrmError) as error:
        plan_cluster(compose_config("plan", PlanConfig, common))
    suggestions = [line.strip()[2:] for line in str(error.value).splitlines() if line.startswith("    - ")]
    assert suggestions
    for suggestion in suggestions:
        plan_cluster(compose_config("plan", PlanConfig, [*common, *as_typed(suggestion)]))
    return suggestions


@pytest.mark.parametrize(
    ("memory", "host_memory"),
    [(0.7, 100), (0.2, 0), pytest.param(0.8, 0, marks=pytest.mark.long)],
    ids=["caching", "more", "fp16"],
)
def test_every_suggestion_works_as_typed(memory: float, host_memory: int) -> None:
    cluster = ["topology=a100_80g_8", "topology.devices_per_node=4", f"topology.memory_gib={memory}"]
    cluster.append(f"topology.host_memory_gib={host_memory}")
    assert_advice_works(
        [
            "merlin=tiny",
            "model=dlrm",
            "optimizer=rowwise_adagrad",
            "trainer.global_batch_size=1024",
            "smallest=false",
            *cluster,
        ]
    )


UNEVEN = """
specs:
  - {name: wide, count: 4, rows: 400_000, dim: 128, features: [w]%s}
  - {name: narrow, count: 4, rows: 10_000, dim: 16, features: [n]}
"""
WHOLE = "sharding.types=[table_wise]"
KEPT_WHOLE = "sharding.tables={wide*:{types:[table_wise]},*:{min_partition:16}}"
OR_COPIED = "sharding.types=[table_wise,data_parallel]"


@pytest.mark.parametrize(
    ("own", "asked", "expected"),
    [
        ("", WHOLE, ["{*:{kernels:[fused,fused_uvm_caching]", "data_type=fp16"]),
        ("", KEPT_WHOLE, ["{*:{kernels:[fused,fused_uvm_caching]", "data_type=fp16"]),
        pytest.param(", data_type: fp32", WHOLE, ["fused_uvm_caching"], marks=pytest.mark.long),
        pytest.param("", OR_COPIED, ["fused_uvm_caching"], marks=pytest.mark.long),
    ],
)
def test_suggestions_work_behind_what_was_typed_already(
    own: str, asked: str, expected: list[str], tmp_path: Path
) -> None:
    """Narrow tables, patterns and tables' own specs have their say in what is tried, as they have when it is typed."""
    (tmp_path / "uneven.yaml").write_text(UNEVEN % own)
    cluster = ["topology=a100_80g_8", "topology.memory_gib=0.15", "topology.host_memory_gib=100"]
    said = " ".join(
        assert_advice_works([f"tables={tmp_path}/uneven.yaml", *cluster, "smallest=false", asked])
    )
    assert all(part in said for part in expected), said
    assert ("fp16" in said) == ("data_type=fp16" in expected)


def test_more_ranks_are_suggested_where_memory_is_short() -> None:
    running = running_cluster(TopologyConfig(memory_gib=1.5), Runtime(0, 0, 2, 2, "cpu", 1))
    text = explain_misfit(workload([one_hot(2**21, 64, f"t{i}") for i in range(8)], "sgd"), running)
    assert re.search(r" - \d+ ranks like these instead of 2  \(", text)


def smaller(found: Cluster, width: int) -> Cluster | None:
    """The next smaller cluster of nodes of ``width``."""
    if found.nodes > 1:
        return replace(found, nodes=found.nodes - 1, devices_per_node=width)
    parts = [n for n in range(1, found.num_ranks) if width % n == 0]
    return found.resized(parts[-1]) if parts else None


@pytest.mark.parametrize("tables_gib", [0.5, 1.7, 5, 9, 40])
def test_the_smallest_cluster_fits_and_a_smaller_one_does_not(tables_gib: float) -> None:
    tables = [one_hot(round(tables_gib * GIB / 32 / 256), 64, f"t{i}") for i in range(32)]
    work = workload(tables, "sgd", batch=64)
    found = smallest_cluster(work, cluster(4, memory=GIB))
    assert found is not None
    assert search(estimate_options(work, found), found) is not None
    less = smaller(found, 4)
    assert less is None or not can_fit(work, less)


def test_no_number_of_nodes_holds_a_table_that_may_not_be_split() -> None:
    work = workload([one_hot(2**22, 64, "large")], "sgd", types=["table_wise"])
    assert smallest_cluster(work, cluster(4, memory=0.5 * GIB)) is None
