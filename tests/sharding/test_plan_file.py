"""plan.yaml: what is written is what is loaded, and a plan for something else is refused with every reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dlrm_app.errors import ConfigError, Problem
from dlrm_app.sharding.cluster import GIB, Cluster
from dlrm_app.sharding.cost import Workload, estimate_options
from dlrm_app.sharding.placement import Assignment, rank_loads
from dlrm_app.sharding.plan import to_plan
from dlrm_app.sharding.plan_file import load_plan, plan_to_dict, write_plan
from dlrm_app.sharding.search import search
from dlrm_app.tables.table import Table
from tests.refusals import is_like, refused
from tests.sharding.clusters import cluster, one_hot, workload

TABLES = [
    one_hot(100, 16, "whole"),
    one_hot(10, 32, "rows"),
    one_hot(50, 64, "columns"),
    one_hot(3, 8, "copies"),
]
WISHES = {
    "whole": {"types": ["table_wise"]},
    "rows": {"types": ["row_wise"]},
    "columns": {"types": ["column_wise"], "min_partition": 16},
    "copies": {"types": ["data_parallel"]},
}


HERE = cluster(4, device="cpu")


def write(path: Path, work: Workload, where: Cluster = HERE) -> Assignment:
    found = search(estimate_options(work, where), where)
    assert found is not None
    write_plan(path, to_plan(found, dict.fromkeys(work.tables, "bags"), work, where))
    return found


@pytest.fixture
def plan_path(tmp_path: Path) -> Path:
    write(tmp_path / "plan.yaml", workload(TABLES, tables=WISHES))
    return tmp_path / "plan.yaml"


def same(first: Assignment, second: Assignment) -> bool:
    return {name: (placed.option.label, placed.ranks) for name, placed in first.items()} == {
        name: (placed.option.label, placed.ranks) for name, placed in second.items()
    }


def test_a_plan_whose_aliases_explode_is_refused(plan_path: Path) -> None:
    levels = [
        f"{name}: &{name} [{','.join(['*' + below] * 9)}]"
        for below, name in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    plan_path.write_text("\n".join(["a: &a [1]", *levels]))
    with refused(
        ConfigError,
        "sharding.plan=.../plan.yaml",
        "is damaged, ...its aliases (*name) stand for more than 100,000 values: write fewer)",
    ):
        load_plan(plan_path, workload(TABLES), HERE)


def test_a_written_plan_loads_as_it_was(plan_path: Path) -> None:
    """Whatever the types that are allowed when it is loaded, and with the same estimated loads."""
    work = workload(TABLES, tables=WISHES)
    found = write(plan_path, work)
    loaded = load_plan(plan_path, workload(TABLES), HERE)
    assert same(loaded, found)
    assert (rank_loads(loaded, 4).memory == rank_loads(found, 4).memory).all()
    again = to_plan(loaded, dict.fromkeys(work.tables, "bags"), work, HERE)
    written = yaml.safe_load(plan_path.read_text())
    assert written == {"format": "dlrm-plan", "version": 1, **plan_to_dict(again)}
    plan_path.write_text(yaml.safe_dump(plan_to_dict(again)))  # typed by hand, without a version
    assert same(load_plan(plan_path, workload(TABLES), HERE), loaded)


def test_a_plan_keeps_kernels_and_load_factors(tmp_path: Path) -> None:
    where = cluster(2, device="cuda", host_memory=GIB)
    constraints = {"*": {"kernels": ["fused_uvm_caching"], "cache_load_factor": 0.3}}
    work = workload([one_hot(1000, 16, "t")], tables=constraints)
    found = write(tmp_path / "plan.yaml", work, where)
    loaded = load_plan(tmp_path / "plan.yaml", workload([one_hot(1000, 16, "t")]), where)
    assert loaded["t"].option.kernel == "fused_uvm_caching"
    assert loaded["t"].option.load_factor == 0.3
    assert loaded["t"].option.memory == pytest.approx(found["t"].option.memory)


def problems_of(
    path: Path, change: Callable[[dict[str, Any]], Any], tables: list[Table] = TABLES
) -> list[Problem]:
    """The problems of the plan at ``path`` once ``change`` has been made to it."""
    content = yaml.safe_load(path.read_text())
    change(content)
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError) as error:
        load_plan(path, workload(tables), cluster(4, device="cpu"))
    assert all(problem.key.startswith(f"sharding.plan={path}") for problem in error.value.problems)
    return error.value.problems


CURE = "plan these tables, with dlrm-plan output=FOLDER, or leave sharding.plan out"


def test_a_plan_for_other_tables_is_refused_with_all_of_them(plan_path: Path) -> None:
    here = [*TABLES[:3], one_hot(9, 8, "new")]
    key = f"sharding.plan={plan_path}"
    assert problems_of(plan_path, lambda content: None, here) == [
        Problem(key, "has entries for tables that are not here: copies", CURE),
        Problem(key, "has no entry for: new", CURE),
    ]


def test_a_plan_for_more_ranks_is_refused_only_once(tmp_path: Path) -> None:
    where = cluster(8, device="cpu")
    work = workload(TABLES, types=["table_wise"])
    found = write(tmp_path / "plan.yaml", work, where)
    assert max(rank for placed in found.values() for rank in placed.ranks) > 1
    with pytest.raises(ConfigError) as error:
        load_plan(tmp_path / "plan.yaml", work, cluster(2, device="cpu"))
    (problem,) = error.value.problems
    rule, cure = "is made for 1 × 8 ranks, this cluster has 1 × 2 ranks", "start as many, or plan again"
    assert problem == Problem(f"sharding.plan={tmp_path}/plan.yaml", rule, cure)


CUT = "are [[0, 0, 3, 32], ...but row_wise cuts its 10 × 32 weights into [[0, 0, 3, 32], [3, 0, 3, 32]]…..."
NO_SHARDS = "must be a list of [row, column, rows, columns, rank]..."


@pytest.mark.parametrize(
    ("table", "change", "rule"),
    [
        ("rows", lambda shards: shards.pop(1), CUT),
        ("rows", lambda shards: shards[1].__setitem__(0, 2), CUT),
        (
            "whole",
            lambda shards: shards[0].__setitem__(2, 99),
            "are ...but table_wise cuts its 100 × 16 weights into ...",
        ),
        ("whole", lambda shards: shards[0].__setitem__(4, 4), NO_SHARDS),
        ("whole", lambda shards: shards[0].append(1), NO_SHARDS),
        ("columns", lambda shards: shards.clear(), NO_SHARDS),
        (
            "rows",
            lambda shards: [each.__setitem__(4, 0) for each in shards],
            "are on ranks [0..., where row_wise does not put them",
        ),
    ],
)
def test_shards_that_do_not_partition_a_table_are_refused(
    plan_path: Path, table: str, change: Callable[[list[list[int]]], Any], rule: str
) -> None:
    def edit(content: dict[str, Any]) -> None:
        entry = content["tables"][table]
        change(entry["shards"])
        entry["ranks"] = [shard[4] for shard in entry["shards"]]

    (problem,) = problems_of(plan_path, edit)
    assert is_like(problem, f"sharding.plan={plan_path}: table {table}: shards", rule), problem


@pytest.mark.parametrize(
    ("key", "value", "place", "rule"),
    [
        ("compute_kernel", "key_value", "compute_kernel", "must be one of fused, ..."),
        ("compute_kernel", "fused_uvm", "compute_kernel fused_uvm", "needs CUDA, these ranks compute on CPU"),
        ("sharding_type", "diagonal", "sharding_type", "must be one of data_parallel, ..."),
        (
            "sharding_type",
            "table_row_wise",
            "shards",
            "are ...but table_row_wise cuts its 100 × 16 weights into [[0, 0, 25, 16]...",
        ),
        ("ranks", [0, 0], "shards", NO_SHARDS),
        ("cache_load_factor", 1.5, "cache_load_factor", "must lie in (0, 1]"),
    ],
)
def test_impossible_values_of_a_plan_are_refused(
    plan_path: Path, key: str, value: Any, place: str, rule: str
) -> None:
    (problem,) = problems_of(plan_path, lambda content: content["tables"]["whole"].__setitem__(key, value))
    given = value if rule.startswith("must lie") else "..."
    assert is_like(problem, f"sharding.plan={plan_path}: table whole: {place}", rule, value=given), problem


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file"),
        ("", "expected a mapping, got None"),
        ("a: {b", "while parsing"),
        ("\x00", "unacceptable character"),
        ("{nodes: true, devices_per_node: 4, tables: {}}", "Expected `int`, got `bool` - at `$.nodes`"),
    ],
)
def test_a_file_that_is_not_a_plan_is_refused(tmp_path: Path, text: str | None, reason: str) -> None:
    path = tmp_path / "plan.yaml"
    if text is not None:
        path.write_text(text)
    with refused(ConfigError, f"sharding.plan={path}", f"...{reason}..."):
        load_plan(path, workload(TABLES), cluster(4))


def test_a_plan_within_nodes_needs_nodes_of_that_size(tmp_path: Path) -> None:
    """What is split over the 2 ranks of a node cannot be split over the 4 of another cluster's."""
    where = cluster(4, 2, device="cpu")
    work = workload([one_hot(100, 16, "t")], types=["table_row_wise"])
    found = write(tmp_path / "plan.yaml", work, where)
    assert same(load_plan(tmp_path / "plan.yaml", work, where), found)
    with refused(
        ConfigError, "sharding.plan=.../plan.yaml", "is made for 2 × 2 ranks, this cluster has 1 × 4 ranks"
    ):
        load_plan(tmp_path / "plan.yaml", work, cluster(4, device="cpu"))
