"""Finding conf/ and composing a command's configuration from it."""

from pathlib import Path
from typing import Any, TypeVar

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from dlrm_app.config.overrides import check_overrides
from dlrm_app.errors import ConfigError

Schema = TypeVar("Schema")
BUILDS_ON = {"plan": "train"}
"""Commands whose file begins with another's: one schema, which extends the other's, is that of both."""


def conf_dir() -> Path:
    """conf/ inside the installed wheel, or beside the package in a source tree."""
    package = Path(__file__).resolve().parents[1]
    installed, source = package / "conf", package.parent / "conf"
    return installed if installed.is_dir() else source


def register_schema(command: str, schema: type[Any]) -> None:
    """Lets conf/<command>.yaml, or that of the command it builds on, name its schema in its defaults list."""
    for name in (command, BUILDS_ON.get(command)):
        if name is not None:
            ConfigStore.instance().store(name=f"{name}_schema", node=schema)


def compose_config(command: str, schema: type[Schema], overrides: list[str]) -> Schema:
    """The configuration that ``dlrm-<command> *overrides`` would run with, for tests and scripts.

    Raises ConfigError for unknown keys, wrong types and missing values.
    """
    register_schema(command, schema)
    overrides = check_overrides(overrides, schema, conf_dir(), command)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return to_schema(compose(command, overrides), schema)


def to_schema(config: DictConfig, schema: type[Schema]) -> Schema:
    """Plain dataclasses from a composed configuration; raises ConfigError naming each value still missing."""
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise ConfigError([f"{key} is required and has no default: give {key}=..." for key in missing])
    value = OmegaConf.to_object(config)
    assert isinstance(value, schema)
    return value
