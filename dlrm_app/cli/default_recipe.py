"""The recipe that dlrm-train takes where none is typed, nor anything that a recipe would say."""

import logging

from dlrm_app.config.overrides import plain_values
from dlrm_app.errors import DlrmError

logger = logging.getLogger(__name__)


def with_default_recipe(overrides: list[str]) -> list[str]:
    """``overrides`` after the settings of the dataset's recipe, unless they choose one or the dataset cannot be read."""
    from dlrm_app.distributed.ranks import started_ranks
    from dlrm_app.training.recommendation.default_recipe import default_recipe, leaves_the_choice
    from dlrm_app.training.validation import read_trainable

    given = plain_values(overrides)
    keys = [key for key, value in given.items() if (key, value) != ("tables", "dataset")]
    path = given.get("data.path")
    if not leaves_the_choice(keys) or given.get("recommend") or not isinstance(path, str):
        return overrides
    try:
        recipe = default_recipe(read_trainable(path), started_ranks().world_size)
    except DlrmError:  # told with all else that is wrong
        return overrides
    logger.info("%s", recipe.why)
    return [*recipe.words, *overrides]
