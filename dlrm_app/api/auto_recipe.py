"""``experiment=auto``, dlrm-train's and dlrm-tune's default: chooses a recipe by the dataset's rows. Typed values win.

A run that begins with another run's weights takes that run's settings instead.
"""

import logging
from collections.abc import Collection, Mapping
from operator import attrgetter
from pathlib import Path

from dlrm_app.config.compose import compose_config
from dlrm_app.config.conf_files import conf_file
from dlrm_app.config.schema import is_section, known_keys, type_of
from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.columns import repeated_columns, vectors_in, weighted_columns
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import DlrmError
from dlrm_app.records import Json, leaves
from dlrm_app.tables.specs import attending
from dlrm_app.text import count
from dlrm_app.typed import as_typed

logger = logging.getLogger(__name__)

KAGGLE_ROWS, CLICKS_ROWS = 200_000, 1_000_000
"""The most rows for kaggle_small (Criteo Kaggle) and small_clicks (any log), by docs/experiments/quality.md."""
MAX_TABLE_BYTES = 2**30
"""The most bytes of a recipe's tables with optimizer state.

Larger tables (hashed ids that few rows never fill) would take longer to make and save than the epoch."""
MIN_STEPS = {"kaggle_small": 100, "small_clicks": 600}
"""The least number of steps of an epoch: smaller batches learn more from each row (docs/experiments/quality.md)."""
MIN_BATCH = 64
MOST_DOTS = 200
"""The most sparse features whose dot products of all pairs are worth their time: 1,400 have a million pairs."""
OF_MANY_FEATURES = {"model": "dcn", "model.dcn_num_layers": 2, "model.dcn_low_rank_dim": 32}
OF_MANY_FEATURES |= {"model.ensemble_size": 1, "tables.embedding_dim": 16}
CROSSED = {"model": "dcn_parallel", "model.dcn_num_layers": 1}
"""In place of the DLRM of small_clicks, by docs/experiments/models.md: a cross layer beside an MLP, which reads vectors."""
BENT, MIN_BENT_ROWS = {"model.dense_knots": 16}, 48_000
"""With CROSSED where numbers are all that there is, from so many rows on (docs/experiments/quality.md, Numbers)."""
MOST_CROSSED = 64
"""The most vectors of features, dense ones too, that are crossed: the layer's products grow with their square."""
OF_DLRM = ("kind", "bottom_mlp", "bottom_dropout", "dense_embedding_dim", "tasks", "experts")
"""Settings of ``model`` that, where they are typed, are meant for the DLRM."""
ATTENTION = {"tables.pooling": "attention"}
"""Settings for logs with lists that repeat a column, if they have few enough rows to find such lists."""
SEVERAL_LABELS = {"trainer.balance_labels": True}
GROUPS = ("tables", "model", "optimizer", "schedule")
KEPT = (
    *(f"{group}." for group in GROUPS),
    "trainer.global_batch_size",
    "trainer.calibrate",
    "trainer.balance_labels",
)
"""Keys, or their prefixes, that a warm-started run takes from the earlier run where they are not typed."""
SIZE, WIDTH = "model.ensemble_size", "tables.embedding_dim"
"""Keys of the ensemble and of the tables' width, which is the sum over its models."""


def auto_settings(typed: Mapping[str, object]) -> Json:
    """The settings of ``experiment=auto`` by key or group, without those that are ``typed``; logs them.

    Empty if a recipe is typed, or if the dataset or the earlier run cannot be read (which is reported later).
    """
    if typed.get("experiment", "auto") != "auto" or typed.get("merlin") is not None:
        return {}
    if isinstance(earlier := typed.get("warm_start.checkpoint"), str):
        return _settings_of(_kept_run(earlier, typed), typed)
    if "sharding.plan" in typed:
        logger.info("experiment=auto takes no recipe: sharding.plan is typed, and is for its own tables")
        return {}
    return _recipe_for(typed.get("data.path"), typed)


def _recipe_for(path: object, typed: Mapping[str, object]) -> Json:
    from dlrm_app.distributed.ranks import started_ranks
    from dlrm_app.loader.batch_order import enough_lanes
    from dlrm_app.training.validation import read_trainable

    if not isinstance(path, str):
        return {}
    lanes = typed.get("data.lanes")
    if not isinstance(lanes, int) or lanes <= 0:
        lanes = enough_lanes(started_ranks().world_size)
    try:
        manifest = read_trainable(path)
        name, recipe = choose_recipe(manifest, lanes, dict(leaves(typed)))
    except DlrmError:
        return {}
    taken = without_typed(recipe, typed)
    logger.info(
        "experiment=auto takes %s for %s: %s; what is typed wins, experiment=null takes none",
        name,
        count(manifest.splits["train"].rows, "row"),
        " ".join(f"{key}={as_typed(value, str)}" for key, value in taken.items()),
    )
    return taken


def choose_recipe(manifest: Manifest, lanes: int, typed: Collection[str] = ()) -> tuple[str, Json]:
    """The name of the recipe for a dataset with a labelled train split, and its values by group and key.

    Reads no shards. Where a model, or a setting of OF_DLRM, is ``typed``, the model is that of the recipe's file.
    """
    rows, name = manifest.splits["train"].rows, "linear_decay"
    if manifest.dataset == "criteo_kaggle" and rows <= KAGGLE_ROWS:
        name = "kaggle_small"
    elif rows <= CLICKS_ROWS:
        name = "small_clicks"
    config = _composed(name)
    if name != "linear_decay" and _table_bytes(config, manifest) > MAX_TABLE_BYTES:
        name = "linear_decay"
        config = _composed(name)
    # smaller if there would be too few steps, and a multiple of the lanes
    enough = max(MIN_BATCH, rows // MIN_STEPS.get(name, 100))
    batch = max(1, min(config.trainer.global_batch_size, enough) // lanes) * lanes
    files = [conf_file("train.yaml"), conf_file(f"experiment/{name}.yaml")]
    entries = [entry for file in files for entry in file.pop("defaults") if isinstance(entry, dict)]
    choices = {key.removeprefix("override /"): value for entry in entries for key, value in entry.items()}
    chosen = {group: choices[group] for group in GROUPS}
    recipe = {**chosen, **dict(leaves(files[1])), "trainer.global_batch_size": batch}
    if len(manifest.sparse) > MOST_DOTS and recipe["model"] == "dlrm":
        recipe |= OF_MANY_FEATURES
    if name == "small_clicks" and attending(repeated_columns(manifest), weighted_columns(manifest)):
        recipe |= ATTENTION
    if name == "small_clicks" and _is_crossed(manifest, typed):
        del recipe["model.bottom_mlp"]  # which this model has none of
        recipe |= CROSSED
        if rows >= MIN_BENT_ROWS and all(c.encoding["kind"] == "bucket" for c in manifest.sparse):
            recipe |= BENT
    if manifest.labels:
        recipe |= SEVERAL_LABELS
    return name, recipe


def _is_crossed(manifest: Manifest, typed: Collection[str]) -> bool:
    """True for the logs that CROSSED was measured on: of few columns, without lists and vectors."""
    has_others = (
        any(column.multi_hot for column in manifest.sparse) or manifest.vectors or vectors_in(manifest)
    )
    is_narrow = len(manifest.dense) + len(manifest.sparse) <= MOST_CROSSED
    meant = {f"model.{key}" for key in OF_DLRM} | {"model"}
    is_typed = any(".".join(key.split(".")[:2]) in meant for key in typed)
    return is_narrow and not has_others and not is_typed


def without_typed(recipe: Json, typed: Mapping[str, object]) -> Json:
    """The values of ``recipe`` that the ``typed`` keys do not replace.

    A typed choice of a group or of a kind drops all of the recipe's values there: they belong to the recipe's
    choice. An ensemble's tables must be as wide as its models together; if a typed width does not fit, there
    is one model.
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


def _composed(name: str) -> TrainConfig:
    return compose_config("train", TrainConfig, {"data.path": "any", "experiment": name})


def _table_bytes(config: TrainConfig, manifest: Manifest) -> int:
    """Bytes of all tables' weights and optimizer state, over all ranks."""
    import numpy as np

    from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS, table_settings
    from dlrm_app.tables.specs import resolve_tables

    total = 0
    feature_rows = {each.name: each.num_embeddings for each in manifest.sparse}
    groups, weighted = repeated_columns(manifest), weighted_columns(manifest)
    for table in resolve_tables(config.tables, feature_rows, groups, weighted, vectors_in(manifest)):
        kind = table_settings(table, config.optimizer.sparse).kind
        per_weight, per_row = SPARSE_OPTIMIZERS[kind].state_bytes(np.array(table.rows), np.array(table.dim))
        total += table.num_bytes + int(per_weight) + int(per_row)
    return total


def _kept_run(earlier: str, typed: Mapping[str, object]) -> str:
    """The run whose settings are kept: the one to resume if there is one, otherwise the ``earlier`` one."""
    from dlrm_app.runs.checkpoint.names import can_continue

    resume, output = str(typed.get("resume", "none")), str(typed.get("output"))
    if not can_continue(resume, output):
        return earlier
    return output if resume == "auto" else resume


def _settings_of(run: str, typed: Mapping[str, object]) -> Json:
    """The settings of ``run`` for model, tables, optimizer, schedule and batch whose key or group is not ``typed``.

    Empty if the run cannot be read.
    """
    from dlrm_app.training.warm_start import read_previous

    try:
        trained, config = read_previous(Path(run))
    except DlrmError:
        return {}
    logger.info(
        "settings of model, tables, optimizer, schedule and batch that are not typed come from %s",
        trained.folder,
    )
    chosen = {*typed}
    if typed.get("tables") == "dataset":  # with the run's other settings of tables
        chosen = (chosen - {"tables"}) | {"tables.from_dataset", "tables.specs"}
    return {
        key: attrgetter(key)(config)
        for key in known_keys(TrainConfig)
        if key.startswith(KEPT)
        and not is_section(type_of(key, TrainConfig))
        and not {key, key.partition(".")[0]} & chosen
    }
