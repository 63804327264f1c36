"""What is asked for a table, by whom, and what is refused of it."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torchrec.distributed.planner.types import ParameterConstraints

from dlrm_app.config.optimizer import SparseSettings
from dlrm_app.config.sharding import ShardingConfig, constraint_faults
from dlrm_app.errors import Problem
from dlrm_app.sharding.constraints import (
    constraints_of,
    dense_kernel_tables,
    log_dense_kernel,
    sharding_problems,
    table_problems,
)
from dlrm_app.sharding.cost import KINDS, Option
from dlrm_app.sharding.placement import Assignment, Placed
from dlrm_app.sharding.planner import warn_of_other_algorithms
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS
from dlrm_app.tables.table import Attention, Table
from tests.random_batches import TABLES
from tests.refusals import is_like
from tests.sharding.clusters import cluster, workload

USER = Table("t_user", 1000, 16, ("user",))
ITEM = Table("t_item", 5000, 32, ("item",))
PAIR = [USER, ITEM]


def sharding(**patterns: dict[str, Any]) -> ShardingConfig:
    return ShardingConfig(
        tables={name.replace("_any", "*"): constraints for name, constraints in patterns.items()}
    )


def test_each_key_comes_from_spec_then_last_pattern_then_all() -> None:
    config = sharding(
        t_any={"types": ["row_wise"], "kernels": ["fused_uvm"], "min_partition": 8},
        t_user={"types": ["column_wise"], "kernels": None},
    )
    config.types, config.kernels = ["table_wise"], ["fused"]
    own = replace(USER, sharding={"min_partition": 4})
    expected = {"types": ["column_wise"], "kernels": ["fused_uvm"], "min_partition": 4}
    assert constraints_of(own, config) == expected
    assert constraints_of(replace(USER, name="other"), config) == {
        "types": ["table_wise"],
        "kernels": ["fused"],
    }


def test_a_null_in_a_later_pattern_asks_for_nothing() -> None:
    config = sharding(t_any={"types": ["row_wise"]}, t_user={"types": None, "min_partition": 4})
    assert constraints_of(USER, config) == {"types": ["row_wise"], "min_partition": 4}


def planned(config: ShardingConfig, *dense: str) -> dict[str, ParameterConstraints]:
    """torchrec's constraints of PAIR on two ranks; ``dense``: tables that take the dense kernel."""
    return replace(workload(PAIR), sharding=config, dense_kernel=frozenset(dense)).constraints(cluster(2))


def test_constraints_reach_the_planner() -> None:
    config = sharding(
        t_item={"types": ["row_wise"], "kernels": ["fused_uvm_caching"], "cache_load_factor": 0.3},
        t_user={"types": ["data_parallel", "column_wise"], "min_partition": 8},
    )
    found = planned(config)
    item, user = found["t_item"], found["t_user"]
    assert (item.sharding_types, item.compute_kernels) == (["row_wise"], ["fused_uvm_caching"])
    assert item.cache_params is not None
    assert item.cache_params.load_factor == 0.3
    assert user.compute_kernels == ["fused", "dense"]  # replicated tables have the dense one alone
    assert user.min_partition == 8


def test_unconstrained_tables_take_types_that_train_the_same() -> None:
    for constraints in planned(ShardingConfig()).values():
        assert constraints.sharding_types == ["table_wise", "row_wise"]
        assert constraints.compute_kernels == ["fused"]


def test_a_table_that_takes_the_dense_kernel_has_no_other() -> None:
    config = sharding(t_any={"types": ["data_parallel", "row_wise"], "kernels": ["fused", "fused_uvm"]})
    assert planned(config, "t_item")["t_item"].compute_kernels == ["dense"]


@pytest.mark.parametrize(
    ("constraints", "rule"),
    [
        ({"type": ["row_wise"]}, "is not known"),
        ({"types": ["rowwise"]}, "must be one of data_parallel,..."),
        ({"types": "row_wise"}, "must be a list of texts..."),
        ({"kernels": ["key_value"]}, "must be one of fused, ..."),
        ({"min_partition": 6}, "must be a positive multiple of 4"),
        ({"min_partition": "8"}, "must be a positive multiple of 4"),
        ({"cache_load_factor": 1.5}, "must be above 0 and at most 1"),
        ({"cache_load_factor": True}, "must be a number"),
        (["row_wise"], "must be a mapping..."),
    ],
)
def test_a_constraint_that_means_nothing_is_refused_by_its_key(constraints: Any, rule: str) -> None:
    (problem,) = constraint_faults("sharding.tables.t", constraints)
    ((key, value),) = constraints.items() if isinstance(constraints, dict) else [("", constraints)]
    (value,) = value if key == "types" and isinstance(value, list) else [value]
    has_value = rule != "is not known" and key != "kernels"
    key = f"sharding.tables.t.{key}".strip(".")
    assert is_like(problem, key, rule, value=value if has_value else "..."), problem


@pytest.mark.parametrize(
    ("constraints", "device", "key", "rule"),
    [
        ({"kernels": ["fused_uvm"]}, "cpu", "sharding kernel fused_uvm", "...there is no GPU"),
        ({"cache_load_factor": 0.2}, "cuda", "cache_load_factor", "needs the kernel fused_uvm_caching"),
        ({"min_partition": 64}, "cuda", "min_partition=64", "is wider than the table, 32 columns"),
    ],
)
def test_constraints_that_a_table_or_a_device_forbids_are_refused(
    constraints: dict[str, Any], device: str, key: str, rule: str
) -> None:
    (problem,) = sharding_problems(PAIR, sharding(t_item=constraints), device)
    assert is_like(problem, f"table t_item: {key}", rule), problem


def test_a_pattern_without_a_table_is_refused_with_the_tables() -> None:
    (problem,) = sharding_problems(PAIR, sharding(t_itm_any={"types": ["row_wise"]}), "cpu")
    assert problem == Problem("sharding.tables.t_itm*", "fits no table", "they are t_user, t_item")


def split_in_two(kind: str) -> Assignment:
    sizes, offsets, none = np.array([[5000, 16]] * 2), np.array([[0, 0], [0, 16]]), np.zeros(2)
    option = Option(kind, "fused", None, sizes, offsets, none, np.zeros((2, len(KINDS))), none)
    return {"t_item": Placed(option, (0, 1))}


@pytest.mark.parametrize(("optimizer", "is_other"), [("rowwise_adagrad", True), ("adagrad", False)])
def test_splitting_rows_of_rowwise_optimizers_is_logged(
    optimizer: str, is_other: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        warn_of_other_algorithms(split_in_two("column_wise"), {"t_item": optimizer})
    assert [r.getMessage()[:35] for r in caplog.records] == (
        ["table t_item: rowwise_adagrad reduc"] if is_other else []
    )


def dense(tables: Sequence[Table], settings: SparseSettings, device: str) -> set[str]:
    return set(dense_kernel_tables(tables, settings, ShardingConfig(), device))


def problems(
    tables: Sequence[Table], types: list[str] | None = None, device: str = "cpu", **changes: Any
) -> list[Problem]:
    settings = SparseSettings(**{"kind": "rowwise_adagrad", "lr": 0.1, **changes})
    return table_problems(tables, settings, ShardingConfig(types), device)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_kind_is_accepted_on_every_device_and_sharding(device: str) -> None:
    for kind in SPARSE_OPTIMIZERS:
        assert problems(TABLES, device=device, kind=kind) == []
        assert problems(TABLES, ["data_parallel"], device, kind=kind, weight_decay=0.1) == []


@pytest.mark.parametrize(
    ("table", "changes", "key", "rule"),
    [
        ({"optimizer": {"lr": "high"}}, {}, "optimizer.lr", "must be a number..."),
        ({"optimizer": {"kind": "lion"}}, {}, "optimizer.kind", "must be one of sgd, ..."),
        ({"optimizer": {"lr": -1.0}}, {}, "optimizer.lr", "must be above 0"),
        ({"optimizer": {"beta1": 1.0}}, {}, "optimizer.beta1", "..."),
        ({}, {"kind": "adam", "max_gradient": 1.0}, "max_gradient", "needs an optimizer inside..."),
        (
            {"sharding": {"types": ["data_parallel"]}},
            {"max_gradient": 1.0},
            "max_gradient",
            "needs an optimizer inside...",
        ),
        ({"init": "zeros"}, {"kind": "lamb"}, "init", "zeros would never move..."),
    ],
)
def test_impossible_constraints_are_refused_with_the_tables_name(
    table: dict[str, Any], changes: dict[str, Any], key: str, rule: str
) -> None:
    (problem,) = problems([replace(TABLES[0], **table)], **changes)
    assert is_like(problem, f"table shared: {key}", rule), problem


def test_one_cause_is_reported_once_for_all_its_tables() -> None:
    tables = [Table(f"t{place}", 10, 4, (f"f{place}",)) for place in range(26)]
    (problem,) = problems(tables, kind="adam", max_gradient=1.0)
    assert problem.key == "tables t0, t1, t2 and 23 more: max_gradient"


def test_optimizers_that_fbgemm_has_not_fused_step_after_the_backward_pass(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And the run says so, for it costs a pass over the table a step."""
    caplog.set_level("INFO")
    tables = [replace(TABLES[0], optimizer={"weight_decay": 0.1}), TABLES[1]]
    settings = SparseSettings("rowwise_adagrad", 0.1)
    assert dense(tables, settings, "cpu") == {"shared"}
    assert dense(tables, settings, "cuda") == set()
    assert dense(tables, SparseSettings("adagrad", 0.1), "cuda") == {"shared"}
    assert dense(tables, SparseSettings("lamb", 0.1), "cpu") == {"shared", "bags"}
    coupled = SparseSettings("adam", 0.1, weight_decay=0.1, weight_decay_mode="coupled")
    for_all = SparseSettings("rowwise_adagrad", 0.1, updated_rows="all")
    assert (
        dense(TABLES, coupled, "cuda") == dense(TABLES, for_all, "cuda") == {table.name for table in TABLES}
    )
    assert dense(TABLES, replace(coupled, weight_decay_mode="decoupled"), "cuda") == set()
    log_dense_kernel(tables, settings, ShardingConfig(), "cpu")
    assert "table shared: rowwise_adagrad with weight_decay is not fused on cpu" in caplog.text
    assert "bags" not in caplog.text


def test_tables_whose_only_kernel_is_dense_take_it() -> None:
    sharding = ShardingConfig(
        tables={"shared": {"kernels": ["dense"]}, "bags": {"kernels": ["fused", "dense"]}}
    )
    assert set(dense_kernel_tables(TABLES, SparseSettings("sgd", 0.1), sharding, "cuda")) == {"shared"}


def test_an_unknown_kind_is_refused_once() -> None:
    (problem,) = problems(TABLES, kind="lion")
    assert is_like(problem, "optimizer.sparse.kind", "must be one of sgd, adagrad, ...")


def test_attention_needs_a_type_that_exchanges_single_vectors() -> None:
    table = Table("t", 100, 8, ("item", "seen"), pooling=Attention("item"))
    (problem,) = sharding_problems([table], ShardingConfig(types=["table_row_wise"]), "cpu")
    cure = "use data_parallel, table_wise, row_wise, column_wise"
    assert is_like(problem, "table t: sharding type table_row_wise", "cannot shard a table that...", cure)
    assert sharding_problems([table], ShardingConfig(types=["table_row_wise", "row_wise"]), "cpu") == []
    assert (
        sharding_problems([replace(table, pooling="mean")], ShardingConfig(types=["grid_shard"]), "cpu") == []
    )
