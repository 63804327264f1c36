"""The columns of the dataset to be: what the configuration says of each, in the manifest's words."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlrm_app.config.preprocess import EncodingConfig, PreprocessConfig
from dlrm_app.dataset.manifest import DenseColumn, Manifest, SparseColumn, read_manifest
from dlrm_app.errors import ConfigError, refuse_if
from dlrm_app.preprocess.encode.sparse import FIRST_ID, MISSING_ID, RARE_ID
from dlrm_app.preprocess.encode.targets import is_target
from dlrm_app.preprocess.encode.vocabulary import VocabularySize, vocabulary_file
from dlrm_app.preprocess.passes.moments import Moments
from dlrm_app.preprocess.read.spec import Spec
from dlrm_app.preprocess.units.source import Source

logger = logging.getLogger(__name__)


def check_columns(config: PreprocessConfig, spec: Spec) -> None:
    """Raises ConfigError with all faults of the settings that go by column."""
    sparse, dense = [column.name for column in spec.sparse], [column.name for column in spec.dense]
    encoding, sizes = config.encoding, config.multi_hot.sizes
    problems = per_column_faults("encoding.num_embeddings", encoding.num_embeddings, sparse, low=2)
    problems += per_column_faults("encoding.top_k", encoding.top_k, sparse)
    problems += per_column_faults("multi_hot.sizes", sizes, sparse, high=10_000)
    if not problems and sizes is not None:
        for column, size in zip(spec.sparse, per_column(sizes, sparse), strict=True):
            if column.separator is not None and size not in (None, 1):
                problems.append(
                    f"multi_hot.sizes of {column.name} must be 1 or null: its values are lists already"
                )
    wanted = config.dense.bucket_columns
    named = wanted if isinstance(wanted, list) else []
    for name in named or [wanted]:
        if name not in (dense if named else (None, "all", *dense)):
            problems.append(f"dense.bucket_columns names {name!r}: give all or a list of {', '.join(dense)}")
    if len(named) != len({*map(str, named)}):
        problems.append(f"dense.bucket_columns must name each column once, got {named}")
    if encoding.kind == "from_dataset":
        problems += _from_dataset_faults(config, spec)
    elif not problems:
        problems += _target_faults(config, spec, per_column(sizes, sparse))
    refuse_if(problems)


def with_known_transform(config: PreprocessConfig) -> PreprocessConfig:
    """``config``, with the dense transform of the dataset at encoding.path where it takes its encoding."""
    if config.encoding.kind != "from_dataset":
        return config
    manifest = read_manifest(Path(config.encoding.path or ""))
    kinds = [column.transform["kind"] for column in manifest.dense if not is_target(column)]
    kind = kinds[0] if kinds else config.dense.transform
    if kind != config.dense.transform:
        logger.warning(
            f"dense.transform={config.dense.transform} is not used: the dataset at encoding.path has {kind}"
        )
    return replace(config, dense=replace(config.dense, transform=kind))


def per_column(value: Any, names: Sequence[str]) -> list[Any]:
    """``value`` for each of ``names``: it may be one for all, a list in their order, or a mapping."""
    if isinstance(value, Mapping):
        return [value.get(name) for name in names]
    return list(value) if isinstance(value, list) else [value] * len(names)


def per_column_faults(
    key: str, value: Any, names: Sequence[str], low: int = 1, high: int = 2**31 - 1
) -> list[str]:
    if value is None:
        return []
    if isinstance(value, Mapping):
        unknown = [str(name) for name in value if name not in names]
        lacking = [name for name in names if name not in value and key == "encoding.num_embeddings"]
        if unknown or lacking:
            faults = [f"{key} names {', '.join(unknown)}: the sparse columns are {', '.join(names)}"] * bool(
                unknown
            )
            return faults + [f"{key} lacks {', '.join(lacking)}"] * bool(lacking)
    elif isinstance(value, list) and len(value) != len(names):
        return [
            f"{key} has {len(value)} numbers, the dataset has {len(names)} sparse columns: give one for each"
        ]
    elif not isinstance(value, list):  # one for all: told once
        return (
            []
            if _is_whole(value, low, high)
            else [f"{key} must be a whole number from {low} to {high}, got {value!r}"]
        )
    return [
        f"{key} of {name} must be a whole number from {low} to {high}, got {number!r}"
        for name, number in zip(names, per_column(value, names), strict=True)
        if not (number is None and key != "encoding.num_embeddings") and not _is_whole(number, low, high)
    ]


def _is_whole(number: Any, low: int, high: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and low <= number <= high


def dense_columns(
    config: PreprocessConfig, spec: Spec, moments: Sequence[Moments] | None
) -> list[DenseColumn]:
    """``moments`` of each dense column, where dense.transform=standardize needs them."""
    if moments is None:
        return [DenseColumn(column.name, {"kind": config.dense.transform}) for column in spec.dense]
    return [
        DenseColumn(column.name, {"kind": "standardize", "mean": moment.mean, "deviation": moment.deviation})
        for column, moment in zip(spec.dense, moments, strict=True)
    ]


def hash_columns(config: PreprocessConfig, spec: Spec) -> list[SparseColumn]:
    sizes = per_column(config.encoding.num_embeddings, [column.name for column in spec.sparse])
    encoding = {"kind": "hash", "function": "mix64", "missing_id": MISSING_ID}
    return [
        SparseColumn(
            column.name, size, {**encoding, "raw": column.kind}, multi_hot=column.separator is not None
        )
        for column, size in zip(spec.sparse, sizes, strict=True)
    ]


def vocab_columns(spec: Spec, vocabularies: Sequence[VocabularySize]) -> list[SparseColumn]:
    """``vocabularies``: of each sparse column."""
    columns = []
    for column, size in zip(spec.sparse, vocabularies, strict=True):
        encoding = {
            "kind": "vocab",
            "file": vocabulary_file(column.name),
            "missing_id": MISSING_ID,
            "rare_id": RARE_ID,
            "raw": column.kind,
        }
        rare = size.distinct - size.kept
        columns.append(
            SparseColumn(
                column.name,
                FIRST_ID + size.kept,
                encoding,
                multi_hot=column.separator is not None,
                distinct=size.distinct,
                collisions=rare if rare > 1 else 0,
            )
        )
    return columns


def extended(columns: Sequence[SparseColumn], config: PreprocessConfig, spec: Spec) -> list[SparseColumn]:
    """``columns`` made multi-hot where multi_hot.sizes asks for it, and the bucket columns behind them."""
    sizes = per_column(config.multi_hot.sizes, [column.name for column in columns])
    out = list(columns)
    for index, (column, size) in enumerate(zip(columns, sizes, strict=True)):
        if size is not None and size > 1:
            rule = {"rule": "mlperf_v2", "size": size, "column": index}
            out[index] = replace(column, encoding={**column.encoding, "multi_hot": rule}, multi_hot=True)
    wanted = config.dense.bucket_columns
    if wanted == "all":
        wanted = [column.name for column in spec.dense]
    boundaries = config.dense.bucket_boundaries
    for name in [wanted] if isinstance(wanted, str) else wanted or []:
        encoding = {"kind": "bucket", "column": name, "boundaries": boundaries, "missing_id": MISSING_ID}
        out.append(SparseColumn(f"{name}_bucket", len(boundaries) + 2, encoding))
    return out


def columns_of(manifest: Manifest) -> tuple[list[DenseColumn], list[SparseColumn]]:
    """The columns of an existing dataset, to encode other rows the same way; nothing is known of those rows yet."""
    dense = [DenseColumn(column.name, column.transform) for column in manifest.dense]
    sparse = [SparseColumn(c.name, c.num_embeddings, c.encoding, c.multi_hot) for c in manifest.sparse]
    return dense, sparse


def _from_dataset_faults(config: PreprocessConfig, spec: Spec) -> list[str]:
    """Why the dataset's encoding cannot be used for files of this format."""
    manifest = read_manifest(Path(config.encoding.path or ""))
    faults = [
        f"{key} comes with the dataset at encoding.path: leave it out"
        for key, value in (
            ("multi_hot.sizes", config.multi_hot.sizes),
            ("dense.bucket_columns", config.dense.bucket_columns),
            ("dense.target_columns", config.dense.target_columns),
        )
        if value is not None
    ]
    dense = [column.name for column in manifest.dense if not is_target(column)]
    sparse = {
        c.name: (c.encoding["raw"], c.multi_hot and "multi_hot" not in c.encoding)
        for c in manifest.sparse
        if "raw" in c.encoding
    }
    if manifest.dataset != spec.name:
        logger.warning(
            f"the ids of {manifest.path} were made of dataset={manifest.dataset}, this is dataset={spec.name}: "
            "a column is given those of the one of the same name there"
        )
    wanted = {column.name: (column.kind, column.separator is not None) for column in spec.sparse}
    if dense != [column.name for column in spec.dense] or list(sparse.items()) != list(wanted.items()):
        faults.append(
            f"the dataset at encoding.path={config.encoding.path} has other columns than dataset={spec.name} "
            f"({', '.join(dense)}; {', '.join(sparse)}): give the dataset= it was made with ({manifest.dataset})"
        )
    return faults


def target_sources(sparse: Sequence[SparseColumn], config: PreprocessConfig) -> tuple[int, ...]:
    """The numbers of the columns among ``sparse`` that dense.target_columns names."""
    wanted = config.dense.target_columns or []
    return tuple(
        number
        for number, column in enumerate(sparse)
        if not column.multi_hot and (wanted == "all" or column.name in wanted)
    )


def _target_faults(config: PreprocessConfig, spec: Spec, sizes: Sequence[int | None]) -> list[str]:
    wanted, buckets = config.dense.target_columns, config.dense.bucket_columns
    if wanted is None:
        return []
    bucketed = [column.name for column in spec.dense] if buckets == "all" else buckets or []
    lists = [
        column.name
        for column, size in zip(spec.sparse, sizes, strict=True)
        if column.separator is not None or (size or 1) > 1
    ]
    names = [column.name for column in spec.sparse if column.name not in lists]
    names += [f"{name}_bucket" for name in bucketed]
    named = wanted if isinstance(wanted, list) else [] if wanted == "all" else [wanted]
    problems = [
        f"dense.target_columns names {name!r}: give all or a list of one-hot sparse columns, {', '.join(names)}"
        for name in named
        if name not in names
    ]
    if len(named) != len({*map(str, named)}):
        problems.append(f"dense.target_columns must name each column once, got {named}")
    if spec.label is None or "train" in config.input.unlabelled or config.input.train is None:
        problems.append(
            "dense.target_columns needs the clicks of training rows: give a labelled input.train, or leave it out"
        )
    return problems


def refuse_missing_files(manifest: Manifest) -> None:
    """Raises ConfigError if a file that the encoding needs is gone."""
    lacking = [file for file in manifest.encoding_files if not (manifest.folder / file).is_file()]
    if lacking:
        folders = " and ".join(sorted({f"{Path(file).parent}/" for file in lacking}))
        raise ConfigError(
            [f"{manifest.path} lacks {', '.join(lacking)}: copy the dataset folder again, {folders} included"]
        )


def refuse_known_clicks(encoding: EncodingConfig, sources: Sequence[Source]) -> None:
    """Raises ConfigError for files to train on whose clicks the target columns at encoding.path were made of.

    Each of their rows would be told its own click. A file is known by its path, or by its size and date.
    """
    if encoding.kind != "from_dataset":
        return
    manifest = read_manifest(Path(encoding.path or ""))
    if not any(is_target(column) for column in manifest.dense):
        return
    paths = {Path(source.path).resolve() for source in manifest.sources if source.split == "train"}
    dates = {(source.bytes, source.modified_ns) for source in manifest.sources if source.split == "train"}
    refuse_if(
        [
            f"input.train={source.path} is what the target columns of {manifest.path} have their clicks of: its rows would be "
            f"told their own. Train on {manifest.path}, or give other rows"
            for source in sources
            if source.split == "train"
            and (Path(source.path).resolve() in paths or (source.bytes, source.modified_ns) in dates)
        ]
    )
