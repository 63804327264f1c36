"""A configuration as a checkpoint recorded it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dlrm_app.config.compose import conf_dir
from dlrm_app.config.keys import GONE, RENAMED, RENAMED_IN_SPECS, schema_tree
from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import DataError


def read_saved_config(values: dict[str, Any], folder: Path) -> TrainConfig:
    """The configuration of dlrm-train that ``asdict`` gave ``values`` of; keys added since have their default.

    Raises DataError, naming the checkpoint ``folder`` that holds it, for what this version does not know.
    """
    defaults = OmegaConf.load(conf_dir() / "train.yaml")
    assert isinstance(defaults, DictConfig)
    del defaults["defaults"]  # Hydra's list of groups
    try:
        saved = _with_new_names(values)
        config = OmegaConf.to_object(OmegaConf.merge(schema_tree(TrainConfig), defaults, saved))
    except OmegaConfBaseException as error:
        raise DataError(
            f"checkpoint {folder} has the configuration of another version: {error.full_key or str(error).splitlines()[0]} "
            "is not known or has another type; use the dlrm-app that saved it"
        ) from error
    assert isinstance(config, TrainConfig)
    return config


def changed_keys(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[str]:
    """``trainer.epochs 1 → 2`` for every key in which two configurations differ, but for resume and output."""
    lines = []
    for key in [*before, *(key for key in after if key not in before)]:
        then, now = before.get(key), after.get(key)
        if isinstance(then, Mapping) and isinstance(now, Mapping):
            lines += changed_keys(then, now, f"{prefix}{key}.")
        elif then != now and f"{prefix}{key}" not in ("resume", "output"):
            lines.append(f"{prefix}{key} {then} → {now}")
    return lines


def _with_new_names(values: dict[str, Any]) -> DictConfig:
    config = OmegaConf.create(values)
    for old, new in RENAMED.items():
        section, _, name = old.rpartition(".")
        parent = OmegaConf.select(config, section)
        if isinstance(parent, DictConfig) and name in parent:
            OmegaConf.update(config, new, parent.pop(name))
    for old in GONE:
        section, _, name = old.rpartition(".")
        parent = OmegaConf.select(config, section) if section else config
        if isinstance(parent, DictConfig):
            parent.pop(name, None)
    for spec in OmegaConf.select(config, "tables.specs") or []:
        for old in spec.keys() & RENAMED_IN_SPECS.keys():
            spec[RENAMED_IN_SPECS[old]] = spec.pop(old)
    return config
