"""Builds a sharded model, its optimizer and its pipeline from a configuration and a dataset, and sets seeds.

Each table draws its weights from (seed, table, row) in model/initial_weights.py, so that every sharding plan starts
alike; model/build.py draws the dense part's; loader/batch_order.py shuffles by (manifest, seed, epoch, batch size).
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer

from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.columns import number_features
from dlrm_app.dataset.label_counts import balanced_labels
from dlrm_app.dataset.manifest import LearntLabel, Manifest
from dlrm_app.dataset.shard_files import mean_ids
from dlrm_app.dataset.vector_columns import sizes_of
from dlrm_app.distributed.collectives import all_gather_objects
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.evaluation.groups import refuse_shared
from dlrm_app.kernels.install import install
from dlrm_app.loader.reader import SplitReader, verify_together
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.build import build_model
from dlrm_app.model.dense_embedding import FromSample, begin_with_sample
from dlrm_app.model.initial_weights import set_base_rate
from dlrm_app.model.loss import ClickTask, multiplies_bf16, set_tf32
from dlrm_app.sharding.plan import EstimatedPlan
from dlrm_app.sharding.planner import plan_model, shard_model
from dlrm_app.tables.table import Table, features_of, with_pooling_factors
from dlrm_app.training.optimizers import combine_optimizers
from dlrm_app.training.pipelines import Pipeline, make_pipeline
from dlrm_app.training.validation import check_training

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trainable:
    """A model ready to train: ``model`` is sharded, ``features`` are the sparse features in the order it reads."""

    spec: ModelSpec
    tables: Sequence[Table]
    features: list[str]
    model: DistributedModelParallel
    optimizer: CombinedOptimizer
    pipeline: Pipeline
    plan: EstimatedPlan


def open_dataset(config: TrainConfig, runtime: Runtime) -> tuple[Manifest, list[Table]]:
    """The dataset's manifest and the tables that fit it. Every rank must call it.

    Raises, on every rank, one error with all problems.
    """
    manifest, tables = runtime.together(check_training, config, runtime)
    manifest = manifest if config.trainer.weights else manifest.without_weights()
    verify_together(manifest, config.data.verify, runtime)
    runtime.on_first(_refuse_shared_groups, manifest, config.evaluation.group_by)
    tables = runtime.together(with_pooling_factors, tables, mean_ids(manifest))
    unused = sorted({column.name for column in manifest.sparse} - {*features_of(tables)})
    if unused:
        logger.warning("no table reads %s: these features are left out", ", ".join(unused))
    return manifest, tables


def _refuse_shared_groups(manifest: Manifest, group_by: str | None) -> None:
    for split in ("val", "test"):
        if split in manifest.splits and manifest.splits[split].positives is not None:
            refuse_shared(manifest, split, group_by)


def model_of(config: TrainConfig, manifest: Manifest, tables: Sequence[Table]) -> ModelSpec:
    """The model of ``config`` for the rows of a dataset."""
    numbers, num_dense = number_features(manifest.dense), len(manifest.dense)
    vectors, labels = sizes_of(manifest.vectors), manifest.labels
    if config.trainer.balance_labels:
        labels = balanced_labels(manifest)
        _log_label_weights(manifest.labels, labels)
    return ModelSpec(config.model, tables, num_dense, config.trainer.seed, numbers, labels, vectors)


def _log_label_weights(given: Sequence[LearntLabel], learnt: Sequence[LearntLabel]) -> None:
    for label, balanced in zip(given, learnt, strict=True):
        if balanced.loss_weight != label.loss_weight:
            weight = balanced.loss_weight
            logger.info(
                "trainer.balance_labels: %s counts %.3g times, as many rows lack it", label.name, weight
            )


def build_trainable(
    config: TrainConfig, spec: ModelSpec, runtime: Runtime, *, draws: bool = True, kept_share: float = 1.0
) -> Trainable:
    """Builds the model on the meta device, plans and shards it, and sets every weight from ``spec.seed``.

    ``draws``: False leaves the tables uninitialised, for a checkpoint to be loaded into. ``kept_share``: the share of
    the training rows' negatives that sampling has kept.
    """
    trainer, device, tables = config.trainer, runtime.device, spec.tables
    set_tf32(trainer.tf32, device)
    if trainer.precision == "bf16" and not multiplies_bf16(device):
        logger.warning(
            "trainer.precision=bf16: rank %d has no units for bf16 and emulates it, many times slower than fp32: "
            "use trainer.precision=fp32",
            runtime.rank,
        )
    model = install(build_model(spec, device), device, trainer.kernels)
    task = ClickTask(model, device, trainer.precision == "bf16", spec.labels, kept_share, spec.branch_loss)
    batch_size = trainer.global_batch_size * config.model.ensemble_size
    sparse, topology = config.optimizer.sparse, config.topology
    plan = plan_model(task, tables, sparse, config.sharding, topology, batch_size, runtime)
    prefetches = trainer.pipeline == "prefetch"
    sharded = shard_model(task, plan, spec, config.sharding.collectives, runtime, prefetches, draws)
    if trainer.compile:
        from dlrm_app.model.compiled_parts import compile_parts  # torch's compiler takes a second to load

        compile_parts(sharded.module.model)
    optimizer = combine_optimizers(sharded, tables, config.optimizer)
    pipeline = make_pipeline(trainer.pipeline, sharded, optimizer, device)
    features = features_of(tables)
    return Trainable(spec, tables, features, sharded, optimizer, pipeline, plan)


def begin_at_base_rate(model: nn.Module, manifest: Manifest) -> None:
    """Sets the last bias from the train split's share of positives, if it has rows of both classes.

    Rows count by their weights, and negatives for those that sampling left out. The bias of a label that is given
    another one is set from its share of positives where that one is 1.
    """
    counts = [manifest.where_given("train", label)[:2] for label in manifest.labels]
    for number, (clicks, rows) in enumerate(counts or [manifest.clicks_and_rows("train")]):
        if 0 < clicks < rows:
            set_base_rate(model, clicks / rows, number)


SAMPLED_GROUPS = 16
"""Row groups of the train split whose dense features models begin with: half a million rows by default."""


def begin_at_sample(model: nn.Module, manifest: Manifest) -> None:
    """Sets what layers for dense features take from rows of the train split, if ``model`` has any. Raises DataError."""
    if not any(isinstance(module, FromSample) for module in model.modules()):
        return
    reader = SplitReader(manifest, "train", features=[])
    groups = [group for group, rows in enumerate(reader.group_rows) if rows]
    chosen = groups[:: -(-len(groups) // SAMPLED_GROUPS)] if groups else []
    if chosen:
        rows = [reader.decode(group).dense[:, : len(manifest.dense)] for group in chosen]
        begin_with_sample(model, torch.from_numpy(np.concatenate(rows)))


def set_step_seed(seed: int, step: int, rank: int) -> None:
    """Seeds torch's generators for ``step``, each rank's differently, so that no two ranks share dropout masks.

    The seed depends on the arguments alone, so a checkpoint needs no generator state for it.
    """
    (drawn,) = np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)
    torch.manual_seed(int(drawn))


def set_deterministic(wanted: bool) -> None:
    """Makes torch and fbgemm choose kernels that add in a fixed order; torch raises for an operator without one.

    fbgemm's backward pass reads the same switch. Without it a GPU cuts the gradients of a row that a batch reads more
    than 1,024 times into pieces and adds them in any order.
    """
    torch.use_deterministic_algorithms(wanted)
    # filling takes time, and nothing here reads uninitialised memory; mypy does not know the module's property
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if wanted:  # without it cuBLAS has no fixed order, and torch raises
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def random_state() -> str:
    """torch's CPU generator state, as text."""
    return state_text(torch.get_rng_state())


def cuda_random_states(runtime: Runtime) -> list[str]:
    """The generator state of every rank's GPU, by rank; none on CPU. Every rank must call it.

    fbgemm rounds 16-bit weights with it, each rank its own rows.
    """
    if runtime.device.type != "cuda":
        return []
    return all_gather_objects(state_text(torch.cuda.get_rng_state(runtime.device)))


def set_random_states(state: str, cuda_states: Sequence[str], runtime: Runtime) -> None:
    """Restores ``random_state`` and, for the same number of ranks, ``cuda_random_states``."""
    torch.set_rng_state(_to_state(state))
    if runtime.device.type == "cuda" and len(cuda_states) == runtime.world_size:
        torch.cuda.set_rng_state(_to_state(cuda_states[runtime.rank]), runtime.device)


def state_text(state: torch.Tensor) -> str:
    return state.numpy().tobytes().hex()


def _to_state(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
