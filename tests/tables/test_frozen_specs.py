"""The spec of a frozen table takes its rows, width and type from the dataset, and nothing that only training needs."""

import pytest

from dlrm_app.errors import ConfigError
from dlrm_app.tables.frozen_specs import frozen_spec
from dlrm_app.tables.vector_rows import VectorRows
from tests.refusals import refused

VECTORS = {
    "item_text": VectorRows("vectors/item.npy", "sha256:1", 10, "fp16"),
    "seen_text": VectorRows("vectors/item.npy", "sha256:1", 10, "fp16"),
    "shop_text": VectorRows("vectors/shop.npy", "sha256:2", 10, "fp16"),
}
ROWS = {"item": 90, "item_text": 52, "seen_text": 52, "shop_text": 7}


def test_rows_width_and_type_are_those_of_the_vectors() -> None:
    """The width is padded to a multiple of 4."""
    spec = {"name": "t", "features": ["item_text", "seen_text"], "train": False, "pooling": "mean"}
    found = frozen_spec(spec, VECTORS, ROWS)
    assert found == {
        "name": "t",
        "features": ["item_text", "seen_text"],
        "pooling": "mean",
        "rows": 52,
        "dim": 12,
        "data_type": "fp16",
    }


@pytest.mark.parametrize(
    ("spec", "key", "rule", "cure"),
    [
        (
            {"features": ["item"], "train": False},
            "train",
            "is for tables of columns of kind: vectors",
            "leave it out, or ...",
        ),
        (
            {"features": ["item_text"], "train": True},
            "train",
            "is for tables of other columns...",
            "leave it out, or ...",
        ),
        ({"features": ["item_text"], "dim": 16}, "dim", "is 12 in the dataset", "leave it out"),
        ({"features": ["item_text"], "rows": 90}, "rows", "is 52 in the dataset", "leave it out"),
        (
            {"features": ["item_text"], "optimizer": {"kind": "sgd"}},
            "optimizer",
            "is not a key of a table of vectors",
            "leave it out",
        ),
        (
            {"features": ["item_text", "shop_text"]},
            "features",
            "must look up the same vectors",
            "give each a table",
        ),
        (
            {"features": ["item_text", "item"]},
            "features",
            "must look up the same vectors",
            "give each a table",
        ),
        (
            {"features": ["item_text"], "pooling": {"attention": "item"}},
            "pooling",
            "must be sum or mean...",
            "...",
        ),
    ],
)
def test_what_a_table_cannot_have_is_refused_by_name(
    spec: dict[str, object], key: str, rule: str, cure: str
) -> None:
    with refused(ConfigError, f"tables.specs (t).{key}", rule, cure):
        frozen_spec({"name": "t", **spec}, VECTORS, ROWS)


def test_other_tables_stay_as_they_are() -> None:
    for spec in ({"name": "t", "features": ["item"], "rows": 90, "dim": 8}, "t_item", {"features": "item"}):
        assert frozen_spec(spec, VECTORS, ROWS) is spec
