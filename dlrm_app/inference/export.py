"""dlrm-export: a checkpoint → a folder of files, each proven on held-out rows before the folder has its name."""

import glob
import logging
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from dlrm_app.config.compose import compose_config
from dlrm_app.config.evaluate import EvaluateConfig
from dlrm_app.config.export import PLAIN_FORMATS, ExportConfig
from dlrm_app.dataset.manifest import Manifest, read_manifest
from dlrm_app.dataset.shard_files import verify_shards
from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.errors import DataError, refuse_if
from dlrm_app.files import explained_disk_errors, held_lock, sync_folder, temporary_name
from dlrm_app.inference.exported_model import write_reference
from dlrm_app.inference.formats import (
    LOADERS,
    PACKAGE,
    SCRIPT,
    Inputs,
    needed_instructions,
    write_package,
    write_torchscript,
)
from dlrm_app.inference.plain_weights import write_parquet, write_safetensors
from dlrm_app.inference.problems import new_path_problems
from dlrm_app.inference.record import (
    ExportedFeature,
    ExportedTable,
    ExportRecord,
    Proof,
    installed,
    mark_files,
    write_encoding,
    write_record,
)
from dlrm_app.inference.scoring_model import CheckpointWeights, ScoringModel, build_scoring_model, to_inputs
from dlrm_app.inference.tables import row_bytes, table_types
from dlrm_app.inference.verification import TIMED_ROWS, Scored, check_in_cpp, prove, refuse_loss, score_split
from dlrm_app.loader.batch import EvalBatches, Loading
from dlrm_app.runs.checkpoint.load import load_trained, open_trained
from dlrm_app.runs.checkpoint.marker import TrainedModel, check_columns
from dlrm_app.sharding.sharder import undisturbed
from dlrm_app.table import text_table
from dlrm_app.text import bytes_text

logger = logging.getLogger(__name__)
NUM_REFERENCE_ROWS = 64


@dataclass(frozen=True)
class _Source:
    """What is exported, and the rows that it is proven on."""

    trained: TrainedModel
    types: dict[str, str]
    manifest: Manifest
    split: str
    config: ExportConfig

    def batches(self, batch_size: int) -> EvalBatches:
        return EvalBatches(
            self.manifest,
            self.split,
            self.trained.features,
            batch_size=batch_size,
            loading=Loading(self.config.data.prefetch_batches),
        )


def export_model(config: ExportConfig) -> ExportRecord:
    """Exports as ``config`` says and prints the proofs. Raises DlrmError; then nothing has the name ``config.output``."""
    output = Path(config.output)
    with start_runtime(config.threads) as runtime:
        source = _open(config, runtime)
        with explained_disk_errors(output, "then export again"), _named_at_the_end(output) as folder:
            record = _export(source, folder, runtime)
            write_record(folder, record)
            in_cpp = check_in_cpp(Path(config.cpp_program), folder) if config.cpp_program else None
    print(format_proofs(record))
    if in_cpp:
        print(f"in C++: {in_cpp}")
    if record.proofs:  # plain weights do not score by themselves
        print(f"next: {next_command(config, source.manifest)}", flush=True)
    return record


def _open(config: ExportConfig, runtime: Runtime) -> _Source:
    trained = open_trained(Path(config.checkpoint), runtime, config.which, config.ema)
    manifest = read_manifest(Path(config.data.path or trained.config.data.path))
    check_columns(trained, manifest)
    verify_shards(manifest)
    types = table_types(trained.tables, config.quantize, config.quantize_tables)
    return _Source(trained, types, manifest, _held_out(config.split, manifest), config)


def _held_out(split: str | None, manifest: Manifest) -> str:
    """The split to prove on."""
    labelled = [
        name
        for name in ("test", "val", "train")
        if name in manifest.splits and manifest.splits[name].positives
    ]
    if split is not None and split in labelled:
        return split
    if split is None and labelled and labelled[0] != "train":
        return labelled[0]
    wanted = f"no labelled {split} split" if split else "neither a labelled test nor val split"
    raise DataError(
        f"{manifest.path} has {wanted} to prove the export on: give data.path= a dataset that has one (preprocessed "
        f"with encoding=from_dataset)" + ", or split=train" * ("train" in labelled)
    )


@contextmanager
def _named_at_the_end(output: Path) -> Iterator[Path]:
    """A folder beside ``output`` that gets its name if the block ends well, and is deleted if it does not.

    What an export that was killed has left there is deleted too. Raises DlrmError while another one makes ``output``.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    lock = output.with_name(f".{output.name}.lock")
    with held_lock(lock, f"another dlrm-export makes output={output}: wait for it, or give another name"):
        refuse_if(new_path_problems("output", output))  # made since this command began
        for left in output.parent.glob(f".{glob.escape(output.name)}.{'?' * 8}.tmp"):
            shutil.rmtree(left, ignore_errors=True)
        folder = temporary_name(output)
        folder.mkdir()
        try:
            yield folder
            folder.rename(output)
            sync_folder(output.parent)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _export(source: _Source, folder: Path, runtime: Runtime) -> ExportRecord:
    config, trained = source.config, source.trained
    write_encoding(folder, source.manifest)
    for name in config.formats:
        if name in PLAIN_FORMATS:
            _write_plain(name, source, folder)
    compiled = [name for name in config.formats if name in LOADERS]
    proofs = []
    if compiled:
        model = build_scoring_model(trained, source.types, config.dense, config.shards)
        example = _first_rows(source)
        with torch.no_grad():
            write_reference(folder, example, model(*example)[0])
        for name in compiled:
            _write_compiled(name, source, folder, model, example)
        del model
        scored = _score_trained(source, runtime)
        for name in compiled:
            file, load = LOADERS[name]
            size = (folder / file).stat().st_size
            run = load(folder / file)
            proofs.append(prove(file, size, run, scored, source.batches(config.batch_size), example))
            refuse_loss(proofs[-1], config.max_auc_loss)
    return _describe(source, proofs, folder)


def _write_plain(name: str, source: _Source, folder: Path) -> None:
    weights = CheckpointWeights(source.trained)
    if name == "safetensors":
        write_safetensors(folder, weights, source.trained.tables, source.types)
    else:
        write_parquet(folder, weights, source.trained.tables, source.types, source.manifest)


def _write_compiled(name: str, source: _Source, folder: Path, model: ScoringModel, example: Inputs) -> None:
    if name == "torchscript":
        write_torchscript(folder / SCRIPT, model)
        return
    logger.info("compiling %s, which takes a minute or less", PACKAGE)
    write_package(folder / PACKAGE, model, example, source.config.cpu, _interface(source))


def _interface(source: _Source) -> dict[str, str]:
    """What model.pt2 tells programs that read nothing else: names one a line, features with their number of ids."""
    return {
        "dlrm.dense": "\n".join(column["name"] for column in source.trained.columns["dense"]),
        "dlrm.features": "\n".join(f"{f.num_embeddings} {f.name}" for f in _features(source)),
        "dlrm.torch": installed()["torch"],
        "dlrm.cpu": " ".join(needed_instructions(source.config.cpu)),
    }


def _first_rows(source: _Source) -> Inputs:
    """The first rows of the held-out split, as many as there are reference rows."""
    rows = min(NUM_REFERENCE_ROWS, source.manifest.splits[source.split].rows)
    with source.batches(rows) as batches:
        return to_inputs(next(iter(batches)))


def _score_trained(source: _Source, runtime: Runtime) -> Scored:
    """What the model as it trained says to the held-out rows."""
    defaults = compose_config("evaluate", EvaluateConfig, ["checkpoint=none"])
    size = source.config.batch_size
    model = load_trained(source.trained, defaults.sharding, defaults.topology, size, runtime)
    model.eval()
    with undisturbed(model):
        return score_split(
            lambda batch: model(batch.to(runtime.device))[1][1].cpu(),
            source.batches(size),
            source.split,
            f"score {source.trained.name}",
        )


def _features(source: _Source) -> list[ExportedFeature]:
    columns = {column["name"]: column for column in source.trained.columns["sparse"]}
    return [
        ExportedFeature(name, table.name, columns[name]["num_embeddings"], columns[name]["multi_hot"])
        for table in source.trained.tables
        for name in table.features
    ]


def _describe(source: _Source, proofs: list[Proof], folder: Path) -> ExportRecord:
    trained, config = source.trained, source.config
    return ExportRecord(
        checkpoint=trained.name,
        step=trained.marker.progress.step,
        dense=[column["name"] for column in trained.columns["dense"]],
        features=_features(source),
        tables=[
            ExportedTable(t.name, t.rows, t.dim, t.pooling, kind, t.rows * row_bytes(t, kind))
            for t in trained.tables
            for kind in [source.types[t.name]]
        ],
        dense_type=config.dense,
        shards=config.shards,
        trained_bytes=sum(table.num_bytes for table in trained.tables),
        versions=installed(),
        cpu=needed_instructions(config.cpu) if "aoti" in config.formats else [],
        formats=config.formats,
        proofs=proofs,
        files=mark_files(folder),
    )


def format_proofs(record: ExportRecord) -> str:
    """The tables' size before and after, and a line for each proven file."""
    after = sum(table.bytes for table in record.tables)
    lines = [
        f"{record.checkpoint}: {len(record.tables)} tables of {bytes_text(record.trained_bytes)} are "
        f"{bytes_text(after)} now"
    ]
    if record.proofs:
        first = record.proofs[0]
        lines.append(
            f"proven on {first.rows:,} rows of {first.split}, AUC {first.auc_trained:.6f} as trained"
        )
        headings = ["", "size", "AUC", "AUC lost", "95% interval", "p", "max difference", "mean"]
        headings += [f"{rows} rows" for rows in TIMED_ROWS]
        lines.append(text_table(headings, [_proof_cells(proof) for proof in record.proofs]))
    return "\n".join(lines)


def _proof_cells(proof: Proof) -> list[str]:
    return [
        proof.file,
        bytes_text(proof.bytes),
        f"{proof.auc:.6f}",
        f"{proof.auc_loss:+.6f}",
        f"{proof.auc_loss_low:+.6f} to {proof.auc_loss_high:+.6f}",
        f"{proof.p_value:.3g}",
        f"{proof.max_difference:.2g}",
        f"{proof.mean_difference:.2g}",
        *(f"{proof.milliseconds[str(rows)]:.3g} ms" for rows in TIMED_ROWS),
    ]


def next_command(config: ExportConfig, manifest: Manifest) -> str:
    """What a user may want to type after this."""
    split = "test" if "test" in manifest.splits else next(iter(manifest.splits))
    return shlex.join(
        [
            "dlrm-predict",
            f"model={config.output}",
            f"data.path={manifest.path}",
            f"split={split}",
            "output=scores.parquet",
        ]
    )
