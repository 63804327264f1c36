"""A configuration as a checkpoint recorded it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlrm_app.config.schema import build
from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import DataError, Problem
from dlrm_app.records import leaves


def read_saved_config(values: dict[str, Any], folder: Path) -> TrainConfig:
    """The configuration of dlrm-train that ``asdict`` gave ``values`` of.

    Raises DataError, naming the checkpoint ``folder`` that holds it, for what this version does not know.
    """
    problems: list[Problem] = []
    config = build(TrainConfig, values, problems)
    if config is None or problems:
        raise DataError(
            f"checkpoint {folder} has the configuration of another version: {problems[0].key} is not known, missing or "
            "of another type; use the dlrm-app that saved it"
        )
    return config


def changed_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """``trainer.epochs 1 → 2`` for every key in which two configurations differ, except resume and output."""
    then, now = dict(leaves(before)), dict(leaves(after))
    return [
        f"{key} {then.get(key)} → {now.get(key)}"
        for key in dict.fromkeys([*then, *now])
        if then.get(key) != now.get(key) and key not in ("resume", "output")
    ]
