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
"""Up to so many rows of Criteo Kaggle kaggle_small was measured, and small_clicks of any log (docs/experiments.md)."""
MAX_TABLE_BYTES = 2**30
"""Of a recipe's tables with the optimizer's state. Beyond that, as with hashed ids that few rows never fill, making and
saving them would take longer than the epoch."""
MIN_STEPS = 100
"""Of an epoch. The recipe for small samples was measured with 117 steps (30,000 rows at batch 256)."""
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
    taken, reasons = combine(recipe, typed)
    without = [
        f"{_words({key: recipe[key] for key in recipe if reasons.get(key) == reason})} ({reason} is typed)"
        for reason in dict.fromkeys(reasons.values())
    ]
    logger.info(
        "experiment=auto takes %s for %s: %s%s; experiment=null: none",
        name,
        count(manifest.splits["train"].rows, "row"),
        _words(taken),
        f"; without {', '.join(without)}" if without else "",
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
    # unless that leaves too few steps, or cannot be dealt to the ranks
    batch = max(1, min(config.trainer.global_batch_size, rows // MIN_STEPS) // lanes) * lanes
    files: Any = [
        OmegaConf.to_container(OmegaConf.load(conf_dir() / path))
        for path in ("train.yaml", f"experiment/{name}.yaml")
    ]
    entries = [entry for file in files for entry in file.pop("defaults") if isinstance(entry, dict)]
    choices = {key.removeprefix("override /"): value for entry in entries for key, value in entry.items()}
    chosen = {group: choices[group] for group in GROUPS}
    return name, {**chosen, **dict(leaves(files[1])), "trainer.global_batch_size": batch}


def combine(recipe: Mapping[str, Any], typed: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, str]]:
    """(What of ``recipe`` is taken, and each key of it that is not → the ``typed`` key because of which it is not).

    Another choice of a group, or another kind, leaves out all that the recipe has in there, which is for its own choice.
    """
    typed = dict(leaves(typed))
    others = [key for key, value in typed.items() if _is_other_choice(key, value, recipe)]
    reasons = {
        name: key
        for key in [*others, *(key for key in typed if typed[key] != recipe.get(key))]
        for name in recipe
        if name == key or (key in others and f"{name}.".startswith(f"{_scope(key)}."))
    }
    if SIZE not in recipe:
        return {key: value for key, value in recipe.items() if key not in reasons}, reasons
    width, size = typed.get(WIDTH, recipe[WIDTH]), recipe[SIZE]
    if not isinstance(width, int) or width % size:
        reasons.setdefault(SIZE, WIDTH)
    elif typed.get("trainer.micro_batches", 1) != 1:
        reasons.setdefault(SIZE, "trainer.micro_batches")
    elif "tables" in reasons:
        reasons.setdefault(SIZE, reasons["tables"])
    taken = {key: value for key, value in recipe.items() if key not in reasons}
    models = typed.get(SIZE, taken.get(SIZE, 1))
    if WIDTH in taken and isinstance(models, int):
        taken[WIDTH] = recipe[WIDTH] // size * max(models, 1)
    return taken, reasons


def _scope(key: str) -> str:
    """The group, or the section, whose choice ``key`` makes."""
    return key if key in GROUPS else key.rpartition(".")[0]


def _is_other_choice(key: str, value: object, recipe: Mapping[str, Any]) -> bool:
    """True if the typed ``key`` chooses what a group or section is, another than that of ``recipe``."""
    chooses = key in GROUPS or key.endswith(".kind") or key in ("tables.specs", "tables.from_dataset")
    return chooses and value != recipe.get(key, recipe.get(key.partition(".")[0]))


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
