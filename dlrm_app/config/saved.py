"""A configuration as a checkpoint recorded it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from dlrm_app.config.compose import conf_dir, resolved
from dlrm_app.config.schema import GONE, build, type_of
from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import DataError, Problem
from dlrm_app.records import leaves


def read_saved_config(values: dict[str, Any], folder: Path) -> TrainConfig:
    """The configuration of dlrm-train that ``asdict`` gave ``values`` of; keys added since have their default.

    Raises DataError, naming the checkpoint ``folder`` that holds it, for what this version does not know.
    """
    defaults = OmegaConf.load(conf_dir() / "train.yaml")
    assert isinstance(defaults, DictConfig)
    del defaults["defaults"]  # Hydra's list of groups
    merged = OmegaConf.merge(defaults, _without_gone(values))
    assert isinstance(merged, DictConfig)
    problems: list[Problem] = []
    config = build(TrainConfig, resolved(merged), problems)
    if config is None or problems:
        raise DataError(
            f"checkpoint {folder} has the configuration of another version: {problems[0].key} is not known or has another "
            "type; use the dlrm-app that saved it"
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


def _without_gone(values: dict[str, Any]) -> DictConfig:
    config = OmegaConf.create(values)
    for key in (key for key in GONE if type_of(key, TrainConfig) is None):
        section, _, name = key.rpartition(".")
        parent = OmegaConf.select(config, section) if section else config
        if isinstance(parent, DictConfig):
            parent.pop(name, None)
    return config
