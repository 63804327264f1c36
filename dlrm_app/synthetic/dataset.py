"""The inputs of a synthetic model as a dataset folder, whole or not at all, the same bytes with any threads."""

import logging
import math
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import yaml

from dlrm_app.config.compose import conf_dir
from dlrm_app.config.generate import GenerateConfig
from dlrm_app.dataset.manifest import MANIFEST, DenseColumn, Manifest, SparseColumn, Split, write_manifest
from dlrm_app.errors import ConfigError, refuse_if
from dlrm_app.files import sync_folder, write_problems
from dlrm_app.synthetic.disk_space import refuse_if_too_large
from dlrm_app.synthetic.inputs import LABEL, Feature, Inputs, make_inputs
from dlrm_app.synthetic.shards import Layout, choose_layout, open_writer, write_splits
from dlrm_app.tables.specs import resolve_tables
from dlrm_app.text import setting, typed_settings

logger = logging.getLogger(__name__)

COIN = {"auc": 0.5, "logloss": math.log(2)}
"""The best that a model can reach on labels of a thrown coin."""


def write_inputs(config: GenerateConfig) -> Manifest:
    """Writes the dataset that ``config`` describes to ``config.output``.

    Raises ConfigError for tables that cannot be, if the output is in the way, or the disk has too little room.
    """
    output = Path(config.output)
    refuse_if(write_problems("output", output))
    _refuse_if_taken(output, config.overwrite)
    inputs = make_inputs(_features(config), config.num_dense, config.alpha, config.seed)
    layout = choose_layout(inputs.row_bytes)
    output.parent.mkdir(parents=True, exist_ok=True)
    _check_disk_space(inputs, layout, config)
    with _folder_written_whole(output) as folder:
        sizes = {split: rows for split, rows in _sizes(config).items() if rows}
        splits = write_splits(folder, inputs, sizes, config.start_row, layout, config.threads)
        manifest = _manifest(inputs, splits, config)
        write_manifest(folder, manifest)
    _log_next_command(config, manifest)
    return manifest


def _sizes(config: GenerateConfig) -> dict[str, int]:
    return {"train": config.rows, "val": config.val_rows, "test": config.test_rows}


def _features(config: GenerateConfig) -> list[Feature]:
    features, problems = [], []
    for table in resolve_tables(config.tables, None):
        if table.rows >= 2**31:
            problems.append(
                f"table {table.name} has {table.rows:,} rows: ids are int32, give at most 2^31 - 1"
            )
        for name, num_ids in zip(table.features, table.expected_pooling_factors, strict=True):
            if not num_ids.is_integer():
                problems.append(
                    f"table {table.name}: feature {name} has the pooling factor {num_ids}: give a whole number"
                )
            features.append(Feature(name, table.rows, int(num_ids)))
    refuse_if(problems)
    return features


def _manifest(inputs: Inputs, splits: dict[str, Split], config: GenerateConfig) -> Manifest:
    asked = asdict(config)
    keys = ("format", "seed", "start_row", "rows", "val_rows", "test_rows", "alpha", "num_dense", "tables")
    return Manifest(
        dataset="synthetic",
        label=LABEL,
        dense=[DenseColumn(name, {"kind": "none"}) for name in inputs.dense_names],
        sparse=[
            SparseColumn(f.name, f.num_embeddings, {"kind": "none"}, multi_hot=f.is_multi_hot)
            for f in inputs.features
        ],
        splits=splits,
        sources=[],
        config={key: asked[key] for key in keys},
        best=COIN,
    )


@contextmanager
def _folder_written_whole(output: Path) -> Iterator[Path]:
    """A temporary folder that takes ``output``'s name, and place, only if the block ends well."""
    token = secrets.token_hex(4)
    temporary, old = (output.with_name(f".{output.name}.{token}.{end}") for end in ("tmp", "old"))
    try:
        temporary.mkdir()
        yield temporary
        sync_folder(temporary)
        if output.exists():
            output.rename(old)
        temporary.rename(output)
        sync_folder(output.parent)
    finally:
        if old.exists() and not output.exists():
            old.rename(output)
        for folder in (temporary, old):
            shutil.rmtree(folder, ignore_errors=True)


def _refuse_if_taken(output: Path, overwrite: bool) -> None:
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not (output / MANIFEST).is_file():
        raise ConfigError([f"output={output} exists and is no dataset folder: give another name"])
    if not overwrite:
        raise ConfigError([f"output={output} exists: choose another name, or overwrite=true to replace it"])


def _check_disk_space(inputs: Inputs, layout: Layout, config: GenerateConfig) -> None:
    rows = sum(_sizes(config).values())
    sample_rows = min(rows, layout.group_rows)
    sample = pa.BufferOutputStream()
    with open_writer(sample, inputs) as writer:
        writer.write_table(inputs.rows(config.start_row, sample_rows), row_group_size=sample_rows)
    folder = Path(config.output).parent
    refuse_if_too_large(rows, sample.getvalue().size, sample_rows, folder, "or an output on another disk")


def _log_next_command(config: GenerateConfig, manifest: Manifest) -> None:
    size = sum(shard.bytes for shard in manifest.shards)
    rows = ", ".join(f"{split.rows:,} rows of {name}" for name, split in manifest.splits.items())
    logger.info(
        f"{config.output}: {rows}; {len(manifest.sparse)} sparse and {len(manifest.dense)} dense features, "
        f"{size / 1e6:,.0f} MB\nnext: {_train_command(config)}"
    )


def _train_command(config: GenerateConfig) -> str:
    name = _shipped_name(config)
    model = name if name and (conf_dir() / "model" / f"{name}.yaml").is_file() else "concat"
    typed = [each for each in typed_settings() if each.lstrip("'").startswith("tables=")]
    tables = f"tables={name}" if name else typed[-1] if typed else "tables=FILE.yaml"
    return f"dlrm-train {setting('data.path', config.output)} {tables} model={model} output=run"


def _shipped_name(config: GenerateConfig) -> str | None:
    """The choice of tables= that ``config`` holds; None for a file of the user's own."""
    for path in sorted((conf_dir() / "tables").glob("*.yaml")):
        if yaml.safe_load(path.read_text(encoding="utf-8")).get("specs") == config.tables.specs:
            return path.stem
    return None
