"""``experiment=auto``, which is dlrm-train's and dlrm-bench's where none is typed: a recipe by the dataset's rows.

A run that begins with another's weights takes that run's settings instead.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from omegaconf import OmegaConf

from dlrm_app.config.compose import compose_config, conf_dir
from dlrm_app.config.overrides import plain_values
from dlrm_app.config.reference import as_typed
from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import DlrmError
from dlrm_app.records import leaves
from dlrm_app.text import count

logger = logging.getLogger(__name__)

KAGGLE_ROWS, CLICKS_ROWS = 200_000, 1_000_000
"""Up to so many rows of Criteo Kaggle kaggle_small was measured, and small_clicks of any log (docs/experiments.md)."""
MAX_TABLE_BYTES = 2**30
"""Of a recipe's tables with the optimizer's state. Beyond that, as with hashed ids that few rows never fill, making and
saving them would take longer than the epoch."""
MIN_STEPS = 100
"""Of an epoch. The recipe for small samples was measured with 117 steps (30,000 rows at batch 256)."""
CHOOSING = (
    "experiment",
    "model",
    "tables",
    "optimizer",
    "schedule",
    "sharding.plan",
    "trainer.global_batch_size",
    "trainer.micro_batches",
    "data.lanes",
)
"""Groups and keys of which one that is typed means that the user has settings of their own in mind."""


def with_recipe(overrides: list[str]) -> list[str]:
    """Checked ``overrides`` after the settings that ``experiment=auto`` stands for, and a log line that tells them.

    Unchanged where a recipe is typed, or the dataset cannot be read, which is reported with all else that is wrong.
    """
    from dlrm_app.distributed.ranks import started_ranks
    from dlrm_app.runs.checkpoint.names import can_continue
    from dlrm_app.training.validation import read_trainable

    typed = plain_values(overrides)
    typed = {key: value for key, value in typed.items() if (key, value) != ("tables", "dataset")}
    if typed.pop("experiment", "auto") != "auto":
        return overrides
    if isinstance(earlier := typed.get("warm_start.checkpoint"), str):
        output = str(typed.get("output"))
        has_begun = typed.get("resume") == "auto" and can_continue("auto", output)
        return _with_settings_of(output if has_begun else earlier, list(typed), overrides)
    path = typed.get("data.path")
    if not isinstance(path, str):
        return overrides
    if choice := typed_choice(typed):
        logger.info("experiment=auto takes no recipe: %s is typed", choice)
        return overrides
    try:
        words = recipe_words(read_trainable(path), started_ranks().world_size)
    except DlrmError:
        return overrides
    return [*words, *(text for text in overrides if not text.startswith("experiment="))]


def typed_choice(typed: Iterable[str]) -> str | None:
    """The first key of ``typed`` that a recipe would set too; None where the choice is left to the dataset."""
    return next((key for key in typed for each in CHOOSING if f"{key}.".startswith(f"{each}.")), None)


def recipe_words(manifest: Manifest, num_ranks: int) -> list[str]:
    """The recipe for a dataset with a labelled train split, and its batch for these ranks. No shard is read."""
    rows, name = manifest.splits["train"].rows, "linear_decay"
    if manifest.dataset == "criteo_kaggle" and rows <= KAGGLE_ROWS:
        name = "kaggle_small"
    elif rows <= CLICKS_ROWS:
        name = "small_clicks"
    config = _composed(name)
    if name != "linear_decay" and _table_bytes(config, manifest) > MAX_TABLE_BYTES:
        name = "linear_decay"
        config = _composed(name)
    batch = _batch_size(config.trainer.global_batch_size, rows, num_ranks)
    words = [f"experiment={name}", f"trainer.global_batch_size={batch}"]
    recipe: Any = OmegaConf.to_container(OmegaConf.load(conf_dir() / "experiment" / f"{name}.yaml"))
    groups = dict(next(iter(group.items())) for group in recipe.pop("defaults"))
    taken = {key.removeprefix("override /"): value for key, value in groups.items()}
    taken |= {**dict(leaves(recipe)), "trainer.global_batch_size": batch}
    settings = " ".join(f"{key}={as_typed(value)}" for key, value in taken.items())
    logger.info(
        "experiment=auto takes %s for %s: %s; experiment=null: none", name, count(rows, "row"), settings
    )
    return words


def _composed(name: str) -> TrainConfig:
    return compose_config("train", TrainConfig, ["data.path=any", f"experiment={name}"])


def _table_bytes(config: TrainConfig, manifest: Manifest) -> int:
    """Bytes of all tables' weights and of their optimizer's state, over all ranks."""
    import numpy as np

    from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS, table_settings
    from dlrm_app.tables.specs import resolve_tables

    total = 0
    for table in resolve_tables(config.tables, {each.name: each.num_embeddings for each in manifest.sparse}):
        kind = table_settings(table, config.optimizer.sparse).kind
        per_weight, per_row = SPARSE_OPTIMIZERS[kind].state_bytes(np.array(table.rows), np.array(table.dim))
        total += table.num_bytes + int(per_weight) + int(per_row)
    return total


def _batch_size(recipes: int, rows: int, num_ranks: int) -> int:
    """The recipe's global batch, unless that leaves too few steps or cannot be dealt to the ranks."""
    from dlrm_app.loader.batch_order import enough_lanes

    lanes = enough_lanes(num_ranks)
    return max(1, min(recipes, rows // MIN_STEPS) // lanes) * lanes


def _with_settings_of(earlier: str, typed: Sequence[str], overrides: list[str]) -> list[str]:
    """``overrides`` after what the run ``earlier`` had of model, tables, optimizer, schedule and batch.

    Groups that are ``typed`` are chosen again, all of them by a recipe. Unchanged if the run cannot be read.
    """
    from dlrm_app.training.resume import read_former, settings_of

    try:
        trained, config = read_former(earlier)
    except DlrmError:
        return overrides
    logger.info(
        "what is not typed of model, tables, optimizer, schedule and batch is that of %s", trained.folder
    )
    return [*settings_of(config, exclude=typed), *overrides]
