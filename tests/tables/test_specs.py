"""Table specs become tables, or one message with every fault."""

from pathlib import Path

import pytest
import yaml
from torchrec.modules.embedding_configs import DataType, PoolingType

from dlrm_app.config.conf_files import conf_dir
from dlrm_app.config.train import TablesConfig
from dlrm_app.errors import ConfigError, Problem
from dlrm_app.tables.bags import to_bag_config
from dlrm_app.tables.specs import resolve_tables
from dlrm_app.tables.table import Attention
from tests.refusals import refused

ROWS = {"item": 100, "last_items": 80, "user": 50}

# https://github.com/mlcommons/training, recommendation_v2: num_embeddings_per_feature, capped at 40 million
PUBLISHED_TOTALS = {"criteo_kaggle": 33_762_577, "criteo_1tb": 882_774_559, "mlperf_dcnv2": 204_184_588}


def test_tables_from_the_dataset_have_one_table_a_feature() -> None:
    tables = resolve_tables(TablesConfig(from_dataset=True, embedding_dim=16), ROWS)
    assert [(t.name, t.rows, t.dim, t.features) for t in tables] == [
        ("t_item", 100, 16, ("item",)),
        ("t_last_items", 80, 16, ("last_items",)),
        ("t_user", 50, 16, ("user",)),
    ]


def test_specs_override_defaults_and_features_share_tables() -> None:
    specs = [
        {
            "name": "items",
            "rows": 100,
            "features": ["item", "last_items"],
            "pooling": "mean",
            "data_type": "fp16",
        },
        {"name": "users", "rows": 64, "dim": 8, "features": ["user"], "sharding": {"types": ["row_wise"]}},
    ]
    items, users = resolve_tables(TablesConfig(embedding_dim=16, specs=specs), ROWS)
    bags = to_bag_config(items)
    assert (bags.num_embeddings, bags.embedding_dim, bags.feature_names) == (100, 16, ["item", "last_items"])
    assert (bags.pooling, bags.data_type) == (PoolingType.MEAN, DataType.FP16)
    assert users.dim == 8
    assert (users.sharding, items.sharding) == ({"types": ["row_wise"]}, {})
    assert items.num_bytes == 100 * 16 * 2


def test_a_list_reads_the_table_of_its_column() -> None:
    rows, groups = {"user": 9, "seen": 50, "item": 50, "shop": 5}, [("item", "seen")]
    tables = resolve_tables(TablesConfig(from_dataset=True, embedding_dim=4), rows, groups)
    assert [(table.name, table.features) for table in tables] == [
        ("t_user", ("user",)),
        ("t_item", ("item", "seen")),
        ("t_shop", ("shop",)),
    ]
    config = TablesConfig(from_dataset=True, embedding_dim=4, pooling="attention")
    assert [table.pooling for table in resolve_tables(config, rows, groups)] == [
        "sum",
        Attention("item"),
        "sum",
    ]
    with refused(
        ConfigError, "tables.pooling=attention", "finds no list that has one vocabulary with a column..."
    ):
        resolve_tables(config, rows)


SPEC = {"name": "a", "rows": 50, "features": ["user"]}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"name": "a", "features": ["user"]}, ["rows is missing"]),
        (SPEC | {"row": 3}, ["row is not a key of a table"]),
        (SPEC | {"rows": 49}, ["49 rows", "ids up to 49", "rows: 50"]),
        (SPEC | {"features": ["usr"]}, ["usr", "the dataset does not have", "user"]),
        (SPEC | {"dim": 6}, ["multiple of 4", "6"]),
        (SPEC | {"rows": 0}, ["rows must be at least 1", "0"]),
        (SPEC | {"features": []}, ["features must be a list of names, at least one"]),
        (SPEC | {"pooling": "max"}, ["pooling must be one of sum, mean"]),
        (
            SPEC | {"pooling": {"hidden": [8]}},
            ["pooling names no feature to attend to", "{attention: FEATURE}"],
        ),
        (
            SPEC | {"pooling": {"attention": "user"}},
            [
                "pooling.attention must be one of the table's features, beside the lists",
                "name both in features",
            ],
        ),
        (SPEC | {"pooling": {"attention": "user", "hiden": [8]}}, ["pooling.hiden is not known", "hidden"]),
        (
            SPEC | {"pooling": {"attention": "user", "hidden": [0]}},
            ["pooling.hidden must be at least 1", "got 0"],
        ),
        (SPEC | {"sharding": {"type": "x"}}, ["sharding.type is not known"]),
        (SPEC | {"sharding": {"types": ["rowwise"]}}, ["sharding.types", "row_wise", "'rowwise'"]),
        (SPEC | {"features": "user"}, ["features must be a list", "'user'"]),
        (SPEC | {"count": 0}, ["(a)", "count must be at least 1 and at most", "got 0"]),
        (
            SPEC | {"pooling_factors": [1, 2]},
            ["pooling_factors must hold a positive number for each of the 1 features"],
        ),
        (SPEC | {"pooling_factors": [0]}, ["pooling_factors must", "got 0"]),
        (SPEC | {"pooling_factors": 3}, ["pooling_factors must", "got 3"]),
        ("t_user", ["must be a mapping"]),
    ],
)
def test_a_faulty_spec_is_refused_by_name(spec: object, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_tables(TablesConfig(embedding_dim=16, specs=[spec]), ROWS)
    for word in words:
        assert word in str(caught.value)


def test_all_faults_come_in_one_message() -> None:
    specs = [
        {"name": "a", "rows": 100, "features": ["item"]},
        {"name": "a", "rows": 100, "features": ["item"]},
        {"name": "b", "rows": 1, "features": ["user"]},
    ]
    with pytest.raises(ConfigError) as caught:
        resolve_tables(TablesConfig(embedding_dim=16, specs=specs), ROWS)
    assert len(caught.value.problems) == 3


def test_a_missing_width_names_its_key() -> None:
    with refused(
        ConfigError, "tables.specs[0] (t_item) and 2 more: dim (or tables.embedding_dim)", "is missing"
    ):
        resolve_tables(TablesConfig(from_dataset=True), ROWS)


def test_pooling_factors_are_given_to_the_planner_by_feature() -> None:
    plain = {"name": "users", "rows": 50, "features": ["user"]}
    spec = {"name": "items", "rows": 100, "features": ["item", "last_items"], "pooling_factors": [1, 12.5]}
    items, users = resolve_tables(TablesConfig(embedding_dim=16, specs=[spec, plain]), ROWS)
    assert (items.expected_pooling_factors, users.expected_pooling_factors) == ([1.0, 12.5], [1.0])


def test_a_spec_with_a_count_makes_numbered_tables() -> None:
    short = {
        "name": "t",
        "count": 3,
        "rows": 9,
        "features": ["a", "b"],
        "pooling_factors": [1, 4],
        "pooling": "mean",
    }
    written_out = [
        {k: v for k, v in short.items() if k != "count"}
        | {"name": f"t_{i}", "features": [f"a_{i}", f"b_{i}"]}
        for i in range(3)
    ]
    rows = {f"{letter}_{i}": 9 for letter in "ab" for i in range(3)}
    expected = resolve_tables(TablesConfig(embedding_dim=16, specs=written_out), rows)
    assert resolve_tables(TablesConfig(embedding_dim=16, specs=[short]), rows) == expected


def test_a_fault_of_a_counted_spec_is_reported_once() -> None:
    specs = [{"name": "t", "count": 500, "rows": 9, "dim": 6, "features": ["a"]}]
    with pytest.raises(ConfigError) as caught:
        resolve_tables(TablesConfig(specs=specs), ROWS)
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].key == "tables.specs[0] (t): dim"


def test_hundreds_of_unknown_features_take_a_few_lines() -> None:
    specs = [{"name": "t", "count": 500, "rows": 9, "features": ["a"]}]
    with pytest.raises(ConfigError) as caught:
        resolve_tables(TablesConfig(embedding_dim=4, specs=specs), ROWS)
    assert len(caught.value.problems) == 6
    assert caught.value.problems[-1].rule == "… and 495 more"


def test_without_a_dataset_tables_stand_for_themselves() -> None:
    specs = [{"name": "t", "rows": 9, "features": ["whatever"]}]
    (table,) = resolve_tables(TablesConfig(embedding_dim=4, specs=specs), None)
    assert table.features == ("whatever",)


@pytest.mark.parametrize("name", list(PUBLISHED_TOTALS))
def test_the_shipped_tables_have_the_published_sizes(name: str) -> None:
    file: Path = conf_dir() / "tables" / f"{name}.yaml"
    specs = yaml.safe_load(file.read_text())["specs"]
    assert sum(spec["rows"] for spec in specs) == PUBLISHED_TOTALS[name]
    assert [spec["features"] for spec in specs] == [[f"cat_{place}"] for place in range(26)]


def test_a_spec_overrides_the_precision_of_a_pattern() -> None:
    specs = [
        {"name": "t_a", "rows": 9, "features": ["a"]},
        {"name": "t_b", "rows": 9, "features": ["b"], "data_type": "fp32", "count": 2},
        {"name": "u", "rows": 9, "features": ["c"], "count": 2},
    ]
    config = TablesConfig(
        embedding_dim=4, specs=specs, data_types={"t_*": "fp16", "u_*": "fp16", "*_1": "bf16"}
    )
    found = {table.name: table.data_type for table in resolve_tables(config, None)}
    assert found == {"t_a": "fp16", "t_b_0": "fp32", "t_b_1": "fp32", "u_0": "fp16", "u_1": "bf16"}


def test_unknown_patterns_and_precisions_are_refused() -> None:
    specs = [{"name": "t_a", "rows": 9, "features": ["a"]}]
    with pytest.raises(ConfigError) as caught:
        resolve_tables(TablesConfig(embedding_dim=4, specs=specs, data_types={"u*": "fp8"}), None)
    assert caught.value.problems == [
        Problem("tables.data_types", "must be one of fp32, fp16, bf16", value="fp8"),
        Problem("tables.data_types.u*", "fits no table", "they are t_a"),
    ]


def test_a_wrong_number_of_many_tables_is_one_problem() -> None:
    config = TablesConfig(from_dataset=True, embedding_dim=7)
    with pytest.raises(ConfigError) as caught:
        resolve_tables(config, {f"c{i}": 10 for i in range(26)})
    (problem,) = caught.value.problems
    assert problem == Problem(
        "tables.specs[0] (t_c0) and 25 more: dim", "must be a positive multiple of 4", value=7
    )


@pytest.mark.parametrize(
    "key", ["name", "rows", "dim", "features", "init_scale", "optimizer", "pooling_factors", "count"]
)
@pytest.mark.parametrize("value", [float("nan"), -1, True, "a.b", "x/y", [None], [["item"]], {"a": 1}])
def test_no_value_of_a_spec_is_an_error_of_pythons(key: str, value: object) -> None:
    spec = {"name": "t", "rows": 100, "features": ["item"], key: value}
    with refused(ConfigError, f"tables.specs[0]...: {key}...", "..."):
        resolve_tables(TablesConfig(embedding_dim=8, specs=[spec]), ROWS)


def test_a_scale_that_fp32_does_not_hold_is_refused() -> None:
    spec = {"name": "t", "rows": 100, "features": ["item"], "init_scale": 1e39}
    with refused(
        ConfigError, "tables.specs[0] (t): init_scale", "must be above 0 and at most 3.4e+38", value=1e39
    ):
        resolve_tables(TablesConfig(embedding_dim=8, specs=[spec]), ROWS)


def test_a_dataset_without_sparse_columns_says_so() -> None:
    with refused(
        ConfigError, "tables.from_dataset", "finds no sparse column in the dataset to make a table for"
    ):
        resolve_tables(TablesConfig(from_dataset=True), {})


def test_a_dotted_feature_gets_a_table_that_torch_can_name() -> None:
    (table,) = resolve_tables(TablesConfig(from_dataset=True, embedding_dim=8), {"user.id": 7})
    assert (table.name, table.features) == ("t_user_id", ("user.id",))
