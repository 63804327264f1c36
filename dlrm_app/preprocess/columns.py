"""The columns of the dataset to be: what the configuration says of each, in the manifest's words."""

from collections.abc import Mapping, Sequence
from typing import Any

from dlrm_app.config.preprocess import PreprocessConfig
from dlrm_app.data.manifest import DenseColumn, SparseColumn
from dlrm_app.errors import ConfigError
from dlrm_app.preprocess.sparse import FIRST_ID, MISSING_ID, RARE_ID
from dlrm_app.preprocess.spec import Spec
from dlrm_app.preprocess.vocabulary import vocabulary_file


def dense_columns(config: PreprocessConfig, spec: Spec) -> list[DenseColumn]:
    return [DenseColumn(column.name, {"kind": config.dense.transform}) for column in spec.dense]


def hash_columns(config: PreprocessConfig, spec: Spec) -> list[SparseColumn]:
    """Raises ConfigError if encoding.num_embeddings does not fit the columns."""
    names = [column.name for column in spec.sparse]
    sizes = per_column("encoding.num_embeddings", config.encoding.num_embeddings, names, low=2)
    return [
        SparseColumn(
            column.name,
            size,
            {"kind": "hash", "raw": column.kind, "function": "mix64", "missing_id": MISSING_ID},
            multi_hot=column.separator is not None,
        )
        for column, size in zip(spec.sparse, sizes, strict=True)
        if size is not None
    ]


def vocab_columns(spec: Spec, found: Sequence[Mapping[str, Any]]) -> list[SparseColumn]:
    """``found``: of each sparse column, how many values are distinct and how many have an id."""
    return [
        SparseColumn(
            column.name,
            FIRST_ID + result["kept"],
            {
                "kind": "vocab",
                "raw": column.kind,
                "file": vocabulary_file(column.name),
                "missing_id": MISSING_ID,
                "rare_id": RARE_ID,
            },
            multi_hot=column.separator is not None,
            distinct=result["distinct"],
            collisions=0,
        )
        for column, result in zip(spec.sparse, found, strict=True)
    ]


def per_column(key: str, value: Any, names: Sequence[str], low: int = 1) -> list[int | None]:
    """``value`` as one number for each of ``names``: it may be one for all, a list in their order, or a mapping."""
    if isinstance(value, Mapping):
        unknown = [str(name) for name in value if name not in names]
        if unknown:
            raise ConfigError(
                [f"{key} names {', '.join(unknown)}: the sparse columns are {', '.join(names)}"]
            )
        lacking = [name for name in names if name not in value]
        if lacking and key.endswith("num_embeddings"):
            raise ConfigError([f"{key} lacks {', '.join(lacking)}: give a number for each sparse column"])
        values = [value.get(name) for name in names]
    elif isinstance(value, list):
        if len(value) != len(names):
            raise ConfigError(
                [f"{key} has {len(value)} numbers, the dataset has {len(names)} sparse columns"]
            )
        values = list(value)
    else:
        values = [value] * len(names)
    problems = [
        f"{key} of {name} must be a whole number from {low} to 2^31 - 1, got {number!r}"
        for name, number in zip(names, values, strict=True)
        if number is not None
        and (not isinstance(number, int) or isinstance(number, bool) or not low <= number < 2**31)
    ]
    if problems:
        raise ConfigError(problems)
    return values
