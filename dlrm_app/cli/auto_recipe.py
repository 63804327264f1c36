"""``experiment=auto``, the default of dlrm-train, dlrm-bench and dlrm-tune: a recipe by the dataset's rows, below what is typed.

A run that begins with another's weights takes that run's settings instead.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from dlrm_app.config.compose import compose_config, conf_dir
from dlrm_app.config.overrides import plain_values
from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import DlrmError
from dlrm_app.records import leaves
from dlrm_app.text import as_typed, count

logger = logging.getLogger(__name__)

KAGGLE_ROWS, CLICKS_ROWS = 200_000, 1_000_000
"""Up to so many rows of Criteo Kaggle kaggle_small was measured, and small_clicks of any log (docs/experiments/quality.md)."""
MAX_TABLE_BYTES = 2**30
"""Of a recipe's tables with the optimizer's state. Beyond that, as with hashed ids that few rows never fill, making and
saving them would take longer than the epoch."""
MIN_STEPS = {"kaggle_small": 100, "small_clicks": 600}
"""Of an epoch: where rows are few, smaller batches learn more from each (docs/experiments/quality.md)."""
MIN_BATCH = 64
GROUPS = ("tables", "model", "optimizer", "schedule")
SIZE, WIDTH = "model.ensemble_size", "tables.embedding_dim"
"""The tables of an ensemble are as wide as its models' together."""


def with_recipe(overrides: list[str]) -> list[str]:
    """Checked ``overrides`` after the settings that ``experiment=auto`` stands for, and a log line that tells them.

    Unchanged where a recipe is typed, or the dataset cannot be read, which is reported with all else that is wrong.
    """
    from dlrm_app.distributed.ranks import started_ranks
    from dlrm_app.loader.batch_order import enough_lanes
    from dlrm_app.runs.checkpoint.names import can_continue
    from dlrm_app.training.validation import read_trainable

    typed = plain_values(overrides)
    of_dataset = typed.get("tables") == "dataset" and typed.pop("tables")
    if typed.pop("experiment", "auto") != "auto":
        return overrides
    if isinstance(earlier := typed.get("warm_start.checkpoint"), str):
        resume, output = str(typed.get("resume", "none")), str(typed.get("output"))
        if can_continue(resume, output):
            earlier = output if resume == "auto" else resume
        chosen = [*typed, *(("tables.from_dataset", "tables.specs") if of_dataset else ())]
        return _with_settings_of(earlier, chosen, overrides)
    path, lanes = typed.get("data.path"), typed.get("data.lanes")
    if not isinstance(path, str):
        return overrides
    if "sharding.plan" in typed:
        logger.info("experiment=auto takes no recipe: sharding.plan is typed, and is for tables of its own")
        return overrides
    lanes = lanes if isinstance(lanes, int) and lanes > 0 else enough_lanes(started_ranks().world_size)
    try:
        manifest = read_trainable(path)
        name, recipe = choose_recipe(manifest, lanes)
    except DlrmError:
        return overrides
    taken = below(recipe, typed)
    logger.info(
        "experiment=auto takes %s for %s: %s; what is typed wins, experiment=null takes none",
        name,
        count(manifest.splits["train"].rows, "row"),
        _words(taken),
    )
    return [*_words(taken).split(), *(text for text in overrides if not text.startswith("experiment="))]


def choose_recipe(manifest: Manifest, lanes: int) -> tuple[str, dict[str, Any]]:
    """The recipe for a dataset with a labelled train split, and its values by group and key. No shard is read."""
    rows, name = manifest.splits["train"].rows, "linear_decay"
    if manifest.dataset == "criteo_kaggle" and rows <= KAGGLE_ROWS:
        name = "kaggle_small"
    elif rows <= CLICKS_ROWS:
        name = "small_clicks"
    config = _composed(name)
    if name != "linear_decay" and _table_bytes(config, manifest) > MAX_TABLE_BYTES:
        name = "linear_decay"
        config = _composed(name)
    # smaller where that leaves too few steps, and dealt to the ranks
    enough = max(MIN_BATCH, rows // MIN_STEPS.get(name, 100))
    batch = max(1, min(config.trainer.global_batch_size, enough) // lanes) * lanes
    files: Any = [
        OmegaConf.to_container(OmegaConf.load(conf_dir() / path))
        for path in ("train.yaml", f"experiment/{name}.yaml")
    ]
    entries = [entry for file in files for entry in file.pop("defaults") if isinstance(entry, dict)]
    choices = {key.removeprefix("override /"): value for entry in entries for key, value in entry.items()}
    chosen = {group: choices[group] for group in GROUPS}
    return name, {**chosen, **dict(leaves(files[1])), "trainer.global_batch_size": batch}


def below(recipe: Mapping[str, Any], typed: Mapping[str, object]) -> dict[str, Any]:
    """What of ``recipe`` stands below the ``typed`` keys.

    Another choice of a group, or another kind, leaves out all that the recipe has in there, which is for its own choice.
    An ensemble's tables are as wide as its models together: where the typed ones are not, there is one model.
    """
    typed = dict(leaves(typed))
    scopes = []
    for key, value in typed.items():
        chooses = key in GROUPS or key.endswith(".kind") or key in ("tables.specs", "tables.from_dataset")
        if chooses and value != recipe.get(key, recipe.get(key.partition(".")[0])):
            scopes.append(f"{key if key in GROUPS else key.rpartition('.')[0]}.")
    taken = {
        key: value
        for key, value in recipe.items()
        if key not in typed and not any(f"{key}.".startswith(scope) for scope in scopes)
    }
    if SIZE in recipe:
        width, size = typed.get(WIDTH), recipe[SIZE]
        is_wide_enough = WIDTH in taken or (isinstance(width, int) and width % size == 0)
        if not is_wide_enough:
            taken.pop(SIZE, None)
        models = typed.get(SIZE, taken.get(SIZE, 1))
        if WIDTH in taken and isinstance(models, int):
            taken[WIDTH] = recipe[WIDTH] // size * max(models, 1)
    return taken


def _words(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={as_typed(value, str)}" for key, value in values.items())


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


def _with_settings_of(earlier: str, typed: Sequence[str], overrides: list[str]) -> list[str]:
    """``overrides`` after what the run ``earlier`` had of model, tables, optimizer, schedule and batch.

    Groups and keys that are ``typed`` are chosen again, all of them by a recipe. Unchanged if the run cannot be read.
    """
    from dlrm_app.training.warm_start import read_former, settings_of

    try:
        trained, config = read_former(earlier)
    except DlrmError:
        return overrides
    logger.info(
        "what is not typed of model, tables, optimizer, schedule and batch is that of %s", trained.folder
    )
    return [*settings_of(config, exclude=typed), *overrides]
