"""dlrm-export: a checkpoint → a folder of files. Each is verified on held-out rows before the folder gets its name."""

import gc
import glob
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from dlrm_app.config.compose import compose_config
from dlrm_app.config.evaluate import EvaluateConfig
from dlrm_app.config.export import ExportConfig
from dlrm_app.dataset.label_counts import one_class_labels
from dlrm_app.dataset.manifest import Manifest, read_manifest
from dlrm_app.dataset.shard_files import verify_shards
from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.errors import DataError, Problem, refuse_if
from dlrm_app.evaluation.evaluate import Measured, metrics_of_labels
from dlrm_app.evaluation.judgement import judge
from dlrm_app.evaluation.measurements import Measurements
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.files import explained_disk_errors, folder_written_whole
from dlrm_app.inference.delta import apply_delta, locate_rows, write_delta
from dlrm_app.inference.exported_model import open_export, refuse_other_scores, write_reference
from dlrm_app.inference.formats import (
    COMPILED,
    LOADERS,
    Inputs,
    needed_instructions,
    write_package,
    write_torchscript,
)
from dlrm_app.inference.parquet_weights import write_parquet
from dlrm_app.inference.problems import memory_problems, refuse_bad, refuse_judged
from dlrm_app.inference.record import (
    EXPORT_FORMAT,
    RECORD,
    DeltaRecord,
    ExportedFeature,
    ExportedTable,
    ExportRecord,
    RowsAt,
    Verification,
    described_inputs,
    installed,
    mark_files,
    write_encoding,
)
from dlrm_app.inference.result import Export
from dlrm_app.inference.scoring_model import CheckpointWeights, build_scoring_model, to_inputs
from dlrm_app.inference.tables import row_bytes, table_types
from dlrm_app.inference.triton_repository import in_plain_torch, write_config
from dlrm_app.inference.verification import refuse_loss, score_split, verify
from dlrm_app.kernels.install import install
from dlrm_app.loader.batch import CPU, Batch, EvalBatches, Loading
from dlrm_app.locks import held_output
from dlrm_app.machine import machine_memory
from dlrm_app.runs.checkpoint.load import load_trained, open_trained
from dlrm_app.runs.checkpoint.trained import TrainedModel, check_columns, refuse_moved
from dlrm_app.runs.tracking import attach
from dlrm_app.sharding.sharder import undisturbed

logger = logging.getLogger(__name__)
NUM_REFERENCE_ROWS = 64
_FULL, _REBUILT = ".full", ".given"
"""Temporary folders while a delta is made: the full export, and the export that base and delta give."""


@dataclass(frozen=True)
class _Source:
    trained: TrainedModel
    types: dict[str, str]
    manifest: Manifest
    split: str
    loading: Loading

    def batches(self, batch_size: int) -> EvalBatches:
        features = self.trained.features
        return EvalBatches(self.manifest, self.split, features, batch_size=batch_size, loading=self.loading)


def export_model(config: ExportConfig) -> Export:
    """Exports a model according to ``config``. Raises DlrmError; ``config.output`` is then not made."""
    output = Path(config.output)
    if config.base and config.apply:
        return _apply(Path(config.base), Path(config.apply), output)
    delta = None
    with start_runtime(config.threads, job="export", on_cpu=True) as runtime:  # the files are for CPUs
        source = _open(config, runtime)
        with explained_disk_errors(output, "then export again"), export_folder(output) as named:
            folder = named / _FULL if config.since else named
            folder.mkdir(exist_ok=True)
            record = _export(config, source, folder, runtime)
            EXPORT_FORMAT.write(folder / RECORD, record)
            if config.since:
                delta = _keep_delta(Path(config.since), named)
    if delta is None:
        attach(source.trained.folder.parents[1], output)
    return Export(output, record, delta, (str(source.manifest.path), source.split))


def _keep_delta(since: Path, folder: Path) -> DeltaRecord:
    """Replaces the full export in ``folder`` by its delta from ``since``, once that gives the same files."""
    full, given = folder / _FULL, folder / _REBUILT
    delta = write_delta(since, full, folder)
    apply_delta(since, folder, given)
    shutil.rmtree(full)
    shutil.rmtree(given)
    return delta


def _apply(base: Path, delta: Path, output: Path) -> Export:
    """Writes the export that ``delta`` gives from ``base``, and tests it on its reference rows if it can score."""
    with explained_disk_errors(output, "then apply it again"), export_folder(output) as folder:
        record = apply_delta(base, delta, folder).record
        if record.proofs:
            open_export(folder)
    return Export(output, record)


def _open(config: ExportConfig, runtime: Runtime) -> _Source:
    trained = open_trained(Path(config.checkpoint or ""), runtime, config.which, config.ema)
    refuse_judged(str(config.checkpoint), trained.marker.progress, config.judgement)
    if config.data.path is None:
        refuse_moved(Path(trained.data_path), trained.name, "add data.path=FOLDER")
    manifest = read_manifest(Path(config.data.path or trained.data_path))
    manifest = manifest if trained.trainer.weights else manifest.without_weights()
    check_columns(trained, manifest)
    verify_shards(manifest)
    types = table_types(trained.tables, config.quantize, config.quantize_tables)
    split = held_out_split(config.split, manifest)
    return _Source(trained, types, manifest, split, Loading(config.data.prefetch_batches))


def held_out_split(split: str | None, manifest: Manifest) -> str:
    """The split to verify on."""
    wanted = [split] if split else ["test", "val"]
    for name in wanted:
        held_out = manifest.splits.get(name)
        if held_out is None or not 2 <= (held_out.positives or 0) <= held_out.rows - 2:  # fewer have no AUC
            continue
        if manifest.label not in one_class_labels(manifest, name):  # nor have rows that weigh 0
            return name
    rule = f"has no {' or '.join(wanted)} split with two rows of each label, of a weight above 0, to verify the export on"
    cure = "give data.path= a dataset that has one (preprocessed with encoding=from_dataset), or split=train"
    raise DataError(Problem(str(manifest.path), rule, cure))


@contextmanager
def export_folder(output: Path) -> Iterator[Path]:
    """Makes a folder beside ``output``. It is renamed to ``output`` if the block succeeds, and deleted if it fails.

    Folders that killed exports left there are deleted too. Raises DlrmError while another process makes ``output``.
    """
    with held_output(output, "dlrm-export", is_folder=True):
        for left in output.parent.glob(f".{glob.escape(output.name)}.{'?' * 8}.tmp"):
            shutil.rmtree(left, ignore_errors=True)
        with folder_written_whole(output) as folder:
            yield folder


_Scored = tuple[ClickMetrics, torch.Tensor]
"""The trained model's metrics of the main label on the held-out rows, and its logits."""


def _export(config: ExportConfig, source: _Source, folder: Path, runtime: Runtime) -> ExportRecord:
    """Writes all files but the record to ``folder``, and verifies those that score. Raises DlrmError."""
    trained = source.trained
    refuse_if(memory_problems(config.formats, _table_bytes(source), machine_memory()))
    write_encoding(folder, source.manifest)
    rows: dict[str, list[RowsAt]] = {}
    if "parquet" in config.formats:
        weights = CheckpointWeights(trained)
        rows |= write_parquet(folder, weights, trained.tables, source.types, source.manifest)
    scoring = [name for name in config.formats if name in LOADERS]
    cpu = needed_instructions(config.cpu) if {*COMPILED} & {*scoring} else []
    features, proofs = _features_of(trained), []
    if scoring:
        example, located = _write_models(config, source, folder, scoring, features, cpu)
        rows |= located
        gc.collect()  # a model's parts refer to one another, and the next one may need the memory
        metrics = metrics_of_labels(source.manifest, source.split, None)
        logits = _score_trained(source, metrics, config.batch_size, runtime)
        gc.collect()
        _refuse_judged(trained, source, metrics, config.judgement)
        scored = next(iter(metrics.values())), logits
        proofs = [_verified(config, source, folder, name, scored, example) for name in scoring]
    return ExportRecord(
        checkpoint=trained.name,
        step=trained.marker.progress.step,
        dense=trained.input_names,
        features=features,
        tables=_tables_of(source),
        shards=config.shards,
        rows=rows,
        trained_bytes=sum(table.num_bytes for table in trained.tables),
        versions=installed(),
        cpu=cpu,
        formats=config.formats,
        proofs=proofs,
        files=mark_files(folder),
    )


def _verified(
    config: ExportConfig, source: _Source, folder: Path, name: str, scored: _Scored, example: Inputs
) -> Verification:
    """Verifies the file of the format ``name`` against the scores of the trained model. Raises DlrmError."""
    file, load = LOADERS[name]
    run = load(folder / file)
    refuse_other_scores(folder, file, run, len(source.trained.input_names), is_weighted=len(example) > 3)
    found = verify(folder / file, run, scored, source.batches(config.batch_size), example)
    refuse_loss(found, config.max_auc_loss)
    return replace(found, file=file)


def _tables_of(source: _Source) -> list[ExportedTable]:
    return [
        ExportedTable(
            table.name, table.rows, table.dim, str(table.pooling), kind, table.rows * row_bytes(table, kind)
        )
        for table in source.trained.tables
        for kind in [source.types[table.name]]
    ]


def _write_models(
    config: ExportConfig,
    source: _Source,
    folder: Path,
    scoring: Sequence[str],
    features: Sequence[ExportedFeature],
    cpu: Sequence[str],
) -> tuple[Inputs, dict[str, list[RowsAt]]]:
    """Writes the model in the formats ``scoring``, and reference rows with its scores.

    Returns these rows, the first of the held-out split, and the files' names → the places of their tables' rows.
    """
    trained, rows = source.trained, {}
    model = build_scoring_model(trained, source.types, config.shards)
    num_rows = min(NUM_REFERENCE_ROWS, source.manifest.splits[source.split].rows)
    with source.batches(num_rows) as batches:
        example = to_inputs(next(iter(batches)))
    for name in scoring:
        path = folder / LOADERS[name][0]
        if name == "torchscript":
            write_torchscript(path, model)
        else:
            logger.info("compiling %s, which takes a minute or less", LOADERS[name][0])
            path.parent.mkdir(parents=True, exist_ok=True)
            interface = described_inputs(trained.input_names, features, cpu)
            if name == "triton":
                write_config(path.parents[1], example, len(trained.spec.labels) or 1)
            with in_plain_torch(model) if name == "triton" else nullcontext():
                write_package(path, model, example, config.cpu, interface)
        rows[LOADERS[name][0]] = locate_rows(path, model.tables.named_rows())
    # the kernels of training are installed only now, because the files must not contain them
    kernels = install(model, CPU, trained.trainer.kernels)
    with torch.no_grad():
        write_reference(folder, example, kernels(*example)[0])
    return example, rows


def _refuse_judged(trained: TrainedModel, source: _Source, metrics: Measured, choice: str) -> None:
    """Raises DlrmError for a model that was never evaluated on val, and of which a label is bad on the held-out rows."""
    progress = trained.marker.progress
    if progress.judgements:
        return
    stored = {source.manifest.label, *source.manifest.splits[source.split].labels}
    for rows, scored in metrics.items():
        label = rows.name_in(source.manifest.labels) if rows.number else ""
        if label and label not in stored:
            continue
        steps = progress.counted_updates
        found = Measurements.of(source.split, scored.compute(), scored.ne_error, steps=steps)
        refuse_bad(trained.name, judge(found, None), choice, label)


def _table_bytes(source: _Source) -> int:
    return sum(table.rows * row_bytes(table, source.types[table.name]) for table in source.trained.tables)


def _features_of(trained: TrainedModel) -> list[ExportedFeature]:
    """The features in the order of the tables that they read."""
    columns = {column["name"]: column for column in trained.columns["sparse"]}
    return [
        ExportedFeature(name, table.name, rows, multi_hot, weighted=name in table.weighted)
        for table in trained.tables
        for name in table.features
        for rows, multi_hot in [(columns[name]["num_embeddings"], columns[name]["multi_hot"])]
    ]


def _score_trained(source: _Source, metrics: Measured, batch_size: int, runtime: Runtime) -> torch.Tensor:
    """Scores the held-out rows with the trained model; loads only the table rows that they look up.

    Adds the logits, which it returns, to ``metrics``.
    """
    defaults = compose_config("evaluate", EvaluateConfig, {"checkpoint": "none"})
    trained = source.trained
    rows = _rows_of(trained, source.batches(batch_size))
    by_feature = {feature: rows[table.name] for table in trained.tables for feature in table.features}
    model = load_trained(trained, defaults.sharding, defaults.topology, batch_size, runtime, rows)
    model.eval()

    def score(batch: Batch) -> torch.Tensor:
        _, output = model(_renumbered(batch, by_feature))
        logits: torch.Tensor = output.logits
        return logits

    with undisturbed(model):
        return score_split(score, source.batches(batch_size), metrics, f"score {trained.name}")


def _rows_of(trained: TrainedModel, batches: EvalBatches) -> dict[str, torch.Tensor]:
    """Table → the numbers of the rows that ``batches`` look up, sorted; row 0 always."""
    table_of = {feature: table.name for table in trained.tables for feature in table.features}
    rows = {table.name: torch.zeros(1, dtype=torch.int64) for table in trained.tables}
    with batches:
        for batch in batches:
            for feature, ids in batch.sparse_features.to_dict().items():
                name = table_of[feature]
                rows[name] = torch.unique(torch.cat([rows[name], ids.values()]))
    return rows


def _renumbered(batch: Batch, rows: Mapping[str, torch.Tensor]) -> Batch:
    """``batch`` with the places of its ids in ``rows`` (feature → sorted numbers) instead of the ids."""
    sparse = batch.sparse_features
    places = [torch.searchsorted(rows[name], ids.values()) for name, ids in sparse.to_dict().items()]
    renumbered = KeyedJaggedTensor(
        keys=sparse.keys(),
        values=torch.cat(places),
        weights=sparse.weights_or_none(),
        lengths=sparse.lengths(),
        stride=sparse.stride(),
    )
    return replace(batch, sparse_features=renumbered)
