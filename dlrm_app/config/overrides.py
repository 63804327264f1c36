"""Divides settings into choices of groups and values of keys; reports all that are wrong together."""

import difflib
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from dlrm_app.config.conf_files import choices_of, conf_dir
from dlrm_app.config.gone_names import replacement
from dlrm_app.config.presets import PRESETS, has_preset, register_preset
from dlrm_app.config.schema import Section, is_section, mapping_problems, type_of
from dlrm_app.config.typed_words import read_dataset_yaml
from dlrm_app.errors import ConfigError, Problem, refuse_if
from dlrm_app.files import yaml_text

Settings = Mapping[str, object]
"""Dotted key, or group, → its value or choice. A choice is a name or the path of a YAML file."""

HOME_IN_YAML = re.compile(r"""(?<=[\s\[,"'])~(?=/)""")
HYDRA_KEYS = ("hydra/launcher", "hydra.launcher.", "hydra.sweep.", "hydra.job.")
"""Hydra's own settings that may be set."""
NOTHING = "nothing"
"""The registered choice, without any values, that stands for null."""


@dataclass(frozen=True)
class Overrides:
    """The settings that replace values of conf/.

    ``choices``: group → the name of its choice, as it is registered with Hydra.
    ``values``: dotted key → value.
    ``hydra``: Hydra's own settings.
    """

    choices: dict[str, str] = field(default_factory=dict)
    values: dict[str, object] = field(default_factory=dict)
    hydra: dict[str, object] = field(default_factory=dict)


def overrides_of(settings: Settings, schema: type[Section], command: str) -> tuple[Overrides, list[Problem]]:
    """The valid ones of ``settings``, and the problems of the others.

    Problems are unknown keys (with the nearest known one), wrong types and unknown choices. A file that is a
    choice (``tables=my_tables.yaml``) is read and registered.
    """
    overrides = Overrides()
    problems: list[Problem] = []
    for key, value in settings.items():
        try:
            if is_hydra_key(key):
                refuse_if(hydra_problems(key, value))
                overrides.hydra[key] = value
            elif is_group(key, schema) and isinstance(value, str | None):
                overrides.choices[key] = registered_choice(key, value, schema, command)
            else:
                refuse_if([*mapping_problems({key: value}, schema)])
                overrides.values[key] = value
        except ConfigError as error:
            problems += error.problems
    return overrides, problems


def is_hydra_key(key: str) -> bool:
    return re.match(r"hydra\b", key) is not None


def hydra_problems(key: str, value: object) -> list[Problem]:
    """The problem of a setting of Hydra that may not be set. ``_target_`` would name code to call."""
    if key.startswith(HYDRA_KEYS) and "_target_" not in f"{key}={value}":
        return []
    return [Problem(key, "is not one of Hydra's settings that can be set", f"use {', '.join(HYDRA_KEYS)}")]


def is_group(key: str, schema: type[Section]) -> bool:
    """True if ``key`` is a folder of conf/ that this command chooses a file from."""
    names_settings = key == "experiment" or has_preset(key, schema)
    return (is_section(type_of(key, schema)) or names_settings) and (conf_dir() / key).is_dir()


def registered_choice(group: str, choice: str | None, schema: type[Section], command: str) -> str:
    """Hydra's name of ``choice``. Raises ConfigError if it is unknown, or its file cannot be used."""
    folder, choices = choices_of(group, command)
    name = "null" if choice is None else choice
    if name == "null" and (group in ("experiment", *PRESETS) or _may_be_left_out(group, command)):
        return _register(NOTHING, group, {}, "_global_")
    if Path(name).suffix in (".yaml", ".yml"):
        try:
            return _register_file(Path(name), group, schema)
        except ConfigError as error:
            raise ConfigError(*(fault.within(f"{group}={name}") for fault in error.problems)) from error
    if gone := replacement(f"{group}={name}"):
        raise ConfigError(Problem(f"{group}={name}", *gone))
    if name not in choices:
        near = difflib.get_close_matches(name, choices, n=1)
        hint = f"did you mean {group}={near[0]}? " if near else ""
        ways = [f"choose one of {', '.join(choices)}"] * bool(choices)
        ways += ["give the path of a YAML file"] * (group not in PRESETS)
        raise ConfigError(Problem(f"{group}={name}", "is not known", f"{hint}{', or '.join(ways)}"))
    if group in PRESETS:
        return register_preset(conf_dir() / group / f"{name}.yaml", schema, command)
    return f"{folder}{name}"


def _may_be_left_out(group: str, command: str) -> bool:
    return {group: None} in OmegaConf.load(conf_dir() / f"{command}.yaml").defaults


def _register_file(path: Path, group: str, schema: type[Section]) -> str:
    """Registers the file as a choice of ``group`` and returns its name.

    Raises ConfigError for keys outside of the schema.
    """
    if not path.is_file():
        raise ConfigError(Problem("", f"does not exist (looked in {Path.cwd()})"))
    try:
        text = HOME_IN_YAML.sub(str(Path.home()), yaml_text(path))
        content: Any = (
            read_dataset_yaml(text)
            if group == "dataset"
            else OmegaConf.to_container(OmegaConf.load(StringIO(text)), resolve=False)
        )
    # the parser's errors have no common class; the file's author can fix all of them
    except Exception as error:
        raise ConfigError(Problem("", f"is not readable YAML: {error}")) from error
    if not isinstance(content, dict):
        raise ConfigError(Problem("", "must hold keys and their values, not a list or a word"))
    if "hydra" in str(content.get("defaults", "")):
        raise ConfigError(Problem("", "cannot set hydra", "type hydra.KEY=VALUE on the command line"))
    is_recipe = group == "experiment"
    values = {key: value for key, value in content.items() if key != "defaults"}
    refuse_if([*mapping_problems(values, schema, "" if is_recipe else f"{group}.")])
    digest = hashlib.sha256(bytes(path.resolve())).hexdigest()[:8]
    # safe for Hydra, and unique to the file
    name = f"file_{re.sub(r'[^a-zA-Z0-9]', '_', path.stem)}_{digest}"
    # a recipe's keys are at the top level; a file in conf/ is marked so in its first line
    return _register(name, group, content, "_global_" if is_recipe else None)


def _register(name: str, group: str, content: dict[Any, Any], package: str | None) -> str:
    ConfigStore.instance().store(group=group, name=name, node=content, package=package)
    return name
