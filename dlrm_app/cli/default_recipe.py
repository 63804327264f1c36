"""What dlrm-train takes where no recipe is typed, nor anything that a recipe would say: one by the rows, or the
settings of the run whose weights it begins with.
"""

import logging
from collections.abc import Sequence

from dlrm_app.config.overrides import plain_values
from dlrm_app.errors import DlrmError

logger = logging.getLogger(__name__)


def with_default_recipe(overrides: list[str]) -> list[str]:
    """``overrides`` after the settings of the dataset's recipe, unless they choose one or the dataset cannot be read."""
    from dlrm_app.distributed.ranks import started_ranks
    from dlrm_app.runs.checkpoint.warm_start import goes_on
    from dlrm_app.training.recommendation.default_recipe import default_recipe, leaves_the_choice
    from dlrm_app.training.validation import read_trainable

    given = plain_values(overrides)
    keys = [key for key, value in given.items() if (key, value) != ("tables", "dataset")]
    if isinstance(former := given.get("warm_start.checkpoint"), str):
        output = str(given.get("output"))
        has_begun = given.get("resume") == "auto" and goes_on("auto", output)
        return _with_settings_of(output if has_begun else former, keys, overrides)
    path = given.get("data.path")
    if not leaves_the_choice(keys) or not isinstance(path, str):
        return overrides
    try:
        recipe = default_recipe(read_trainable(path), started_ranks().world_size)
    except DlrmError:  # told with all else that is wrong
        return overrides
    logger.info("%s", recipe.why)
    return [*recipe.words, *overrides]


def _with_settings_of(former: str, keys: Sequence[str], overrides: list[str]) -> list[str]:
    """``overrides`` after what the run ``former`` had of model, tables, optimizer, schedule and batch.

    But for groups that ``keys``, which are typed, choose anew, all of them by a recipe; and unless it cannot be read.
    """
    from dlrm_app.runs.checkpoint.warm_start import read_former, settings_of

    if "experiment" in keys:
        return overrides
    try:
        trained = read_former(former)
    except DlrmError:  # told with all else that is wrong
        return overrides
    logger.info(
        "what is not typed of model, tables, optimizer, schedule and batch is that of %s", trained.folder
    )
    return [*settings_of(trained.config, but_for=keys), *overrides]
