"""Refusing mistyped ``key=value`` overrides before Hydra composes, all of them in one message."""

import difflib
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from dlrm_app.config.group_files import register_file
from dlrm_app.config.keys import is_free_form, is_known, unknown_key, wrong_value


def check_overrides(
    overrides: list[str], schema: type[Any], conf: Path, command: str
) -> tuple[list[str], list[str]]:
    """Checks every override against ``schema`` and the groups in ``conf``: the good ones as Hydra takes them, and the
    problems of the others, which are unknown keys (with the nearest known one), wrong types and unknown choices.

    Where a group has a folder named after ``command``, its choices are the files in there (docs/adr/0005).
    A group's choice may be a path to a YAML file (``tables=my_tables.yaml``): it is registered as a choice.
    """
    parser, tree = OverridesParser.create(), OmegaConf.structured(schema)
    groups = {path.name for path in conf.iterdir() if path.is_dir()} & {*map(str, tree), "experiment"}
    problems: list[str] = []
    checked: list[str] = []
    for text in overrides:
        before = len(problems)
        try:
            override = parser.parse_override(text)
        except HydraException:
            problems.append(f"cannot read {text!r}: write key=value, lists as 'key=[a,b]'")
            continue
        key = override.key_or_group
        if key in groups and isinstance(override.value(), str | None):
            text = _choose(text, key, override, conf, command, tree, problems)
        elif key.split(".")[0].split("/")[0] != "hydra":
            _check_value(key, override, tree, groups, problems)
            text = f"++{text}" if _adds_keys(key, override, tree) else text
        if len(problems) == before:
            checked.append(text)
    return checked, problems


def choices_of(group: str, conf: Path, command: str) -> tuple[str, list[str]]:
    """The folder of ``group``'s choices, below ``conf/group`` with a slash at its end or nothing, and their names."""
    folder = f"{command}/" if (conf / group / command).is_dir() else ""
    return folder, sorted(file.stem for file in (conf / group / folder).glob("*.yaml"))


def _choose(
    text: str, group: str, override: Override, conf: Path, command: str, tree: DictConfig, problems: list[str]
) -> str:
    choice = override.value()
    if not isinstance(choice, str) or choice in ("null", ""):
        return text
    path = Path(choice)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            problems.append(f"{group}={choice}: no such file (looked in {Path.cwd()})")
            return text
        return f"{group}={register_file(path, group, conf, tree, problems)}"
    folder, choices = choices_of(group, conf, command)
    if choice not in choices:
        near = difflib.get_close_matches(choice, choices, n=1)
        hint = f"did you mean {group}={near[0]}? " if near else ""
        problems.append(
            f"{group}={choice} is not known: {hint}choose one of {', '.join(choices)}, "
            "or give the path of a YAML file"
        )
    return f"{group}={folder}{choice}" if folder else text


def _check_value(
    key: str, override: Override, tree: DictConfig, groups: set[str], problems: list[str]
) -> None:
    if not is_known(key, tree):
        problems.append(unknown_key(key, tree, sorted(groups)))
        return
    if override.is_delete() or override.is_sweep_override() or override.value_type is None:
        return
    value = override.value()
    if override.value_type == ValueType.ELEMENT and isinstance(value, str) and "${" in value:
        return
    reason = wrong_value(key, value, tree)
    if reason is not None:
        problems.append(f"{key}={override.get_value_element_as_str()}: {reason}")


def _adds_keys(key: str, override: Override, tree: DictConfig) -> bool:
    """Whether a mapping is given to a field that takes any keys: Hydra would refuse those that are not there yet."""
    return (
        isinstance(override.value(), dict)
        and not (override.is_add() or override.is_force_add() or override.is_delete())
        and is_known(key, tree)
        and is_free_form(OmegaConf.select(tree, key))
    )
