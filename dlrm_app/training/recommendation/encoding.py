"""Whether a dataset's encoding stands in the recipe's way, and the dlrm-preprocess command that would be better."""

import glob
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dlrm_app.config.compose import compose_config, conf_dir
from dlrm_app.config.preprocess import PreprocessConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import ConfigError
from dlrm_app.text import percent, setting
from dlrm_app.training.recommendation.facts import DatasetFacts
from dlrm_app.training.recommendation.recipes import KAGGLE_SMALL, Recipe

MANY_COLLISIONS = 0.1
"""Of the distinct values. A choice, not measured: one value in ten cannot be told from another."""
ROWS_OF_LARGE_DATA = ("encoding=vocab", "encoding.min_count=10")
"""The minimum count of BARS' recipes for data of tens of millions of rows."""


def encoding_problems(facts: DatasetFacts, recipe: Recipe) -> list[str]:
    """What of the encoding costs accuracy with this recipe; empty: nothing that the manifest tells."""
    problems = []
    if facts.encoding == "hash" and recipe.min_count > 1:
        problems.append(
            f"ids are hashed: {recipe.experiment} was measured on vocabularies, in which rare values share a row and no others do"
        )
    if facts.colliding is not None and facts.colliding > MANY_COLLISIONS:
        problems.append(f"{percent(facts.colliding)} of the values share an id with another")
    if facts.encoding == "vocab" and facts.min_count is not None and facts.min_count < recipe.min_count:
        problems.append(
            f"encoding.min_count={facts.min_count}: rows seen so rarely learn noise, and new values have no row that was trained"
        )
    # docs/experiments.md, "What moves calibration, and target encoding"
    if recipe is KAGGLE_SMALL and not facts.has_target_columns:
        problems.append(
            "no dense.target_columns: what a value says of a click, as a number, is better on both splits that were measured"
        )
    return problems


def better_encoding(recipe: Recipe) -> tuple[str, ...]:
    """What to tell dlrm-preprocess in place of the encoding that has problems."""
    return recipe.encoding or ROWS_OF_LARGE_DATA


def preprocess_command(manifest: Manifest, settings: Sequence[str]) -> str | None:
    """The dataset's own command with other ``settings``; None where it was too special, or its input is gone.

    It is only given if it describes the same columns, and its files are found from here.
    """
    saved = manifest.config
    name = manifest.dataset
    if not (conf_dir() / "dataset" / f"{name}.yaml").is_file():
        return None
    inputs = {key: value for key, value in saved.get("input", {}).items() if value}
    if not inputs or not all(isinstance(value, str) and _is_there(value) for value in inputs.values()):
        return None
    words = [] if any(word.startswith("experiment=") for word in settings) else [f"dataset={name}"]
    words += settings
    typed = [setting(f"input.{key}", value) for key, value in inputs.items()]
    typed += [setting(f"split.{key}", value) for key, value in _shares(saved, inputs).items()]
    typed.append(setting("output", f"{manifest.path}_encoded"))
    return _checked_command(words, typed, saved)


def _is_there(pattern: str) -> bool:
    return bool(glob.glob(pattern))  # noqa: PTH207  # Path.glob takes no absolute pattern


def _shares(saved: Mapping[str, Any], inputs: Mapping[str, str]) -> dict[str, float]:
    """The shares of val and test as they were; a tenth for val where there is none, for recipes are judged by it."""
    shares = {key: value for key, value in saved.get("split", {}).items() if value}
    if "val" not in inputs:
        shares.setdefault("val", 0.1)
    return shares


def _checked_command(words: Sequence[str], typed: Sequence[str], saved: Mapping[str, Any]) -> str | None:
    try:
        config = compose_config("preprocess", PreprocessConfig, [*words, *shlex.split(" ".join(typed))])
    except ConfigError:
        return None
    if config.problems() or asdict(config.dataset) != saved.get("dataset"):
        return None
    return " ".join(["dlrm-preprocess", *words, *typed])
