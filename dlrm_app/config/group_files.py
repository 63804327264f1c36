"""A user's own YAML file as the choice of a group: ``tables=my_tables.yaml``, ``experiment=my_recipe.yaml``."""

import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from dlrm_app.config.schema import type_of, type_problem, unknown_key
from dlrm_app.errors import Problem

NOT_WORDS = ("null", "true", "false", "nan", "inf")
"""What Hydra takes for a value and no name."""
_registered: dict[tuple[str, str], Path] = {}
"""(group, name) → the file that has it."""


def register_file(
    path: Path, group: str, conf: Path, schema: type[Any], problems: list[Problem | str]
) -> str:
    """Makes the file a choice of ``group`` and gives its name there; adds to ``problems`` what ``schema`` does not take."""
    name = re.sub(r"[^\w.-]", "_", path.stem, flags=re.ASCII)  # a choice is no text: = would end it
    if not name[:1].isalpha() or name.lower() in NOT_WORDS:
        name = f"_{name}"
    while (conf / group / f"{name}.yaml").exists() or _is_anothers(group, name, path):
        name += "_"
    try:
        content = OmegaConf.load(path)
    except (
        Exception
    ) as error:  # the parser's errors have no common class; each is the file's author's to mend
        problems.append(f"{path} is not readable YAML: {error}")
        return name
    content = OmegaConf.create(_with_home(OmegaConf.to_container(content, resolve=False)))
    if not isinstance(content, DictConfig):
        problems.append(f"{group}={path}: the file must hold keys and their values, got a list or a word")
        return name
    is_recipe = group == "experiment"
    plain = OmegaConf.to_container(content, resolve=False)
    assert isinstance(plain, dict)
    values = {str(key): value for key, value in plain.items() if key != "defaults"}
    faults = _calls(plain) or _faults(values, "" if is_recipe else f"{group}.", schema)
    problems += [f"{group}={path}: {fault}" for fault in faults]
    # what a recipe sets stands at the top, which a file in conf/ says by its first line
    package = "_global_" if is_recipe else None
    ConfigStore.instance().store(group=group, name=name, node=content, package=package)
    return name


def register_nothing(group: str) -> str:
    """The name of a choice that sets nothing: Hydra takes a null for no group's choice where it is typed."""
    name = "nothing"
    ConfigStore.instance().store(group=group, name=name, node={}, package="_global_")
    return name


def _with_home(value: Any) -> Any:
    """``value`` with ~ at the beginning of its texts replaced, as on the command line."""
    if isinstance(value, dict):
        return {key: _with_home(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_home(part) for part in value]
    return str(Path.home()) + value[1:] if isinstance(value, str) and value.startswith("~/") else value


def _is_anothers(group: str, name: str, path: Path) -> bool:
    return _registered.setdefault((group, name), path.resolve()) != path.resolve()


def _calls(plain: Mapping[Any, Any]) -> list[str]:
    """What would have Hydra run code: a file of settings sets nothing of Hydra's."""
    if "hydra" in plain or "hydra" in str(plain.get("defaults", "")):
        return ["a file cannot set hydra: type hydra.KEY=VALUE on the command line"]
    return ["_target_ names code to call, which no setting may"] if has_key(plain, "_target_") else []


def has_key(value: Any, key: str) -> bool:
    """Whether ``key`` stands in a mapping anywhere within ``value``."""
    if isinstance(value, Mapping):
        return key in value or any(has_key(part, key) for part in value.values())
    return isinstance(value, list) and any(has_key(part, key) for part in value)


def _faults(values: Mapping[str, Any], prefix: str, schema: type[Any]) -> list[Problem]:
    faults: list[Problem] = []
    for name, value in values.items():
        key = f"{prefix}{name}"
        kind = type_of(key, schema)
        if kind is None:
            faults.append(unknown_key(key, schema))
        elif is_dataclass(kind) and isinstance(value, Mapping):
            faults += _faults({str(part): each for part, each in value.items()}, f"{key}.", schema)
        elif not (isinstance(value, str) and "${" in value) and (fault := type_problem(key, value, kind)):
            faults.append(fault)
    return faults
