"""A recipe with what this machine changes of it, as settings that dlrm-train takes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.ranks import Ranks
from dlrm_app.errors import ConfigError
from dlrm_app.sharding.cluster import Cluster
from dlrm_app.tables.specs import Table, resolve_tables
from dlrm_app.text import memory_text
from dlrm_app.training.recommendation.adjustments import batch_setting, memory_settings, training_bytes
from dlrm_app.training.recommendation.facts import dataset_facts
from dlrm_app.training.recommendation.recipes import LARGE, Recipe, Setting, choose_recipe
from dlrm_app.training.validation import check_training


@dataclass(frozen=True)
class Recommendation:
    """``words``: dlrm-train's settings, not quoted for a shell; ``config`` is theirs. ``fits``: on these ranks."""

    recipe: Recipe
    settings: list[Setting]
    words: list[str]
    config: TrainConfig
    fits: bool


def find_recommendation(
    manifest: Manifest, typed: Sequence[str], ranks: Ranks, cluster: Cluster
) -> Recommendation:
    """What to train on ``manifest``. ``typed``: settings of the user's, which win.

    Raises ConfigError, as dlrm-train would, if the two together cannot be trained.
    """
    facts = dataset_facts(manifest)
    recipe = choose_recipe(facts)
    if recipe.needs_its_tables and not _fits_tables(recipe, manifest, typed):
        recipe = LARGE
    settings = _not_typed(recipe.settings, typed)
    batch_size = _compose(recipe, settings, typed).trainer.global_batch_size
    settings += _not_typed([batch_setting(batch_size, facts.rows, ranks.world_size)], typed)

    config = _compose(recipe, settings, typed)
    tables = _tables(config, manifest)
    halves = [replace(table, data_type="fp16") for table in tables]
    needed, in_half = training_bytes(tables, config), training_bytes(halves, config)
    changes = memory_settings(needed, in_half, cluster, recipe)
    settings += _not_typed(changes or [], typed)

    config = _compose(recipe, settings, typed)
    check_training(config, ranks)
    needed = training_bytes(_tables(config, manifest), config)
    settings.append(Setting("tables.embedding_dim", f"{memory_text(needed)} with the optimizer's state"))
    words = [*recipe.words(settings), *typed]
    return Recommendation(recipe, settings, words, config, changes is not None)


def _fits_tables(recipe: Recipe, manifest: Manifest, typed: Sequence[str]) -> bool:
    try:
        _tables(_compose(recipe, (), typed), manifest)
    except ConfigError:
        return False
    return True


def _tables(config: TrainConfig, manifest: Manifest) -> list[Table]:
    return resolve_tables(config.tables, {column.name: column.num_embeddings for column in manifest.sparse})


def _compose(recipe: Recipe, settings: Iterable[Setting], typed: Sequence[str]) -> TrainConfig:
    return _composed((*recipe.words(settings), *typed))


@lru_cache(maxsize=1)  # most adjustments change nothing, and composing takes longer than all else
def _composed(words: tuple[str, ...]) -> TrainConfig:
    return compose_config("train", TrainConfig, list(words))


def _not_typed(settings: Iterable[Setting], typed: Sequence[str]) -> list[Setting]:
    """Without those that the user has typed, themselves or their group."""
    keys = [word.partition("=")[0].lstrip("+~") for word in typed]
    return [
        setting
        for setting in settings
        if not any(setting.key == key or setting.key.startswith(f"{key}.") for key in keys)
    ]
