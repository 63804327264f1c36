"""What dlrm-train trains where nothing is chosen of model, tables, optimizer, schedule or batch: a recipe by the rows.

Recipes that take several epochs or bring tables of their own are trained only where they are asked for.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.tables.specs import resolve_tables
from dlrm_app.text import count
from dlrm_app.training.recommendation.adjustments import batch_setting, training_bytes
from dlrm_app.training.recommendation.facts import dataset_facts
from dlrm_app.training.recommendation.recipes import KAGGLE_SMALL, LARGE, SMALL_CLICKS, Recipe, choose_recipe

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
"""Groups and keys of which one that is given means that the user has settings of their own in mind."""
MOST_BYTES = 2**30
"""Of a recipe's tables with the optimizer's state. Beyond that, as with hashed ids that few rows never fill, making and
saving them would take longer than the epoch."""


@dataclass(frozen=True)
class DefaultRecipe:
    """Settings for dlrm-train, and in a sentence which and why."""

    words: list[str]
    why: str


def leaves_the_choice(keys: Iterable[str]) -> bool:
    """Whether none of the ``keys`` that are given is one that a recipe sets."""
    return not any(key == each or key.startswith(f"{each}.") for key in keys for each in CHOOSING)


def default_recipe(manifest: Manifest, num_ranks: int) -> DefaultRecipe:
    """The recipe for a dataset with a train split on ``num_ranks``. No shard is read."""
    facts = dataset_facts(manifest)
    recipe = choose_recipe(facts)
    if recipe not in (KAGGLE_SMALL, SMALL_CLICKS) or _needed_bytes(recipe, manifest) > MOST_BYTES:
        recipe = LARGE
    batch_size = _composed(recipe).trainer.global_batch_size
    batch = batch_setting(batch_size, facts.rows, num_ranks)
    name = f"experiment={recipe.experiment}" if recipe.experiment else "rates that fall to 0"
    why = (
        f"{name}, for {count(facts.rows, 'row')} and nothing said of model, tables, optimizer, schedule or batch: "
        "experiment=null gives the plain defaults"
    )
    return DefaultRecipe(recipe.words([*recipe.settings, batch]), why)


def _needed_bytes(recipe: Recipe, manifest: Manifest) -> int:
    config = _composed(recipe)
    rows = {column.name: column.num_embeddings for column in manifest.sparse}
    return training_bytes(resolve_tables(config.tables, rows), config)


def _composed(recipe: Recipe) -> TrainConfig:
    return compose_config("train", TrainConfig, ["data.path=any", *recipe.words()])
