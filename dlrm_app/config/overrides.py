"""Refusing mistyped ``key=value`` overrides before Hydra composes, all of them in one message."""

import difflib
import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, Transformer, ValueType
from hydra.errors import HydraException
from omegaconf import OmegaConf

from dlrm_app.config.schema import (
    REQUIRED,
    is_free_form,
    is_section,
    type_of,
    type_problem,
    types_of,
    unknown_key,
)
from dlrm_app.errors import Problem, refuse_if
from dlrm_app.files import yaml_text
from dlrm_app.text import setting

HOME = re.compile(r"""(?<=[=\[,"'])~(?=[/"',\]]|$)""")
"""~ at the beginning of a value, or of one in a list."""
HOME_IN_YAML = re.compile(r"""(?<=[\s\[,"'])~(?=/)""")
OF_HYDRA = ("hydra/launcher", "hydra.launcher.", "hydra.sweep.", "hydra.job.")
"""What a sweep may set of Hydra's."""
YAML = (".yaml", ".yml")
PATHS = ("checkpoint", "input.train", "model", "data.path", "output")
"""Keys that a path without a key may be meant for: the first that a command has as a setting, and that is not typed."""
SWEEPS = (ValueType.CHOICE_SWEEP, ValueType.SIMPLE_CHOICE_SWEEP)
Problems = list[Problem | str]


def check_overrides(
    overrides: list[str], schema: type[Any], conf: Path, command: str, is_sweep: bool = False
) -> tuple[list[str], Problems]:
    """Checks every override against ``schema`` and the groups in ``conf``: the good ones as Hydra takes them, and the
    problems of the others, which are unknown keys (with the nearest known one), wrong types and unknown choices.

    Where a group has a folder named after ``command``, its choices are the files in there (docs/adr/0005).
    A group's choice may be a path to a YAML file (``tables=my_tables.yaml``): it is registered as a choice.
    ``is_sweep``: a key may have several values, each a run of its own.
    Raises ConfigError with all these problems if a word cannot be read: what else is missing or wrong is then unknown.
    """
    parser = OverridesParser.create()
    settings = settings_named_as_groups(schema, conf)
    groups = {path.name for path in conf.iterdir() if path.is_dir()} & {
        *types_of(schema),
        "experiment",
    } - settings
    problems: Problems = []
    unreadable: Problems = []
    checked: list[str] = []
    for given in overrides:
        before = len(problems)
        text = HOME.sub(str(Path.home()), given)
        try:
            override = parser.parse_override(text)
        except HydraException:
            override = None
        if override is None or not override.key_or_group:
            unreadable.append(_unreadable(given, schema, overrides))
            continue
        key, values, value = override.key_or_group, _values(override), text.partition("=")[2]
        if override.package is not None or override.is_delete():
            problems.append(f"{given}: a key cannot be moved or deleted: write {key}={value or 'null'}")
        elif re.match(r"hydra\b", key):
            if not key.startswith(OF_HYDRA) or "_target_" in text:  # which names code to call
                problems.append(f"{given}: of Hydra's own settings there are {', '.join(OF_HYDRA)}")
        elif key not in groups and type_of(key, schema) is None:
            problems.append(unknown_key(key, schema, sorted(groups)))
        elif len(values) > 1 and (key in settings or not is_sweep):
            each = "" if key in settings else "a run with each needs --multirun, "
            listed = shlex.quote(f"{key}=[{value}]")
            problems.append(
                f"{given} gives several values: {each}a list is written {listed}, one text {setting(key, value)}"
            )
        elif key in groups and all(isinstance(value, str | None) for value in values):
            chosen = _choose(values, key, conf, command, schema, problems)
            text = f"{key}={','.join(chosen)}"  # + is left out: every group has its place in the defaults
        else:
            if override.value_type in (ValueType.ELEMENT, *SWEEPS):  # not a range, whose numbers Hydra makes
                problems += _type_problems(key, values, schema)
            # Hydra would refuse keys of a mapping that are not there yet
            is_mapping = isinstance(override.value(), dict) and override.type is OverrideType.CHANGE
            text = f"++{text}" if is_mapping and is_free_form(type_of(key, schema)) else text
        if len(problems) == before:
            checked.append(text)
    if unreadable:
        refuse_if([*unreadable, *problems])
    return checked, problems


def plain_values(overrides: list[str]) -> dict[str, object]:
    """key or group → value of checked ``overrides``; None where there are several, each a run of its own."""
    parsed = OverridesParser.create().parse_overrides(overrides)
    return {each.key_or_group: None if each.is_sweep_override() else each.value() for each in parsed}


def settings_named_as_groups(schema: type[Any], conf: Path) -> set[str]:
    """Keys with a plain value that are called as a folder of ``conf`` is: Hydra would look for a choice in there."""
    return {key for key, kind in types_of(schema).items() if not is_section(kind) and (conf / key).is_dir()}


def take_settings(overrides: list[str], names: set[str]) -> tuple[dict[str, object], list[str]]:
    """(key → value of the ``overrides`` of ``names``, the other overrides)."""
    parsed = dict(zip(overrides, OverridesParser.create().parse_overrides(overrides), strict=True))
    taken = {each.key_or_group: each.value() for each in parsed.values() if each.key_or_group in names}
    return taken, [text for text, each in parsed.items() if each.key_or_group not in names]


def choices_of(group: str, conf: Path, command: str) -> tuple[str, list[str]]:
    """The folder of ``group``'s choices, below ``conf/group`` with a slash at its end or nothing, and their names."""
    folder = f"{command}/" if (conf / group / command).is_dir() else ""
    return folder, sorted(file.stem for file in (conf / group / folder).glob("*.yaml"))


def _values(override: Override) -> list[Any]:
    """Each of a sweep that lists its values; else the one."""
    if override.value_type in SWEEPS:
        return list(override.sweep_iterator(transformer=Transformer.identity))
    return [override.value()]


def _unreadable(text: str, schema: type[Any], words: Sequence[str]) -> Problem | str:
    key, equals, value = text.partition("=")
    if not equals and ("/" in text or Path(text).exists()):
        typed = {word.partition("=")[0] for word in words}
        kinds = {name: type_of(name, schema) for name in PATHS if name not in typed}
        meant = [name for name, kind in kinds.items() if kind is not None and not is_section(kind)]
        if meant:
            return Problem(text, "is not key=value", f"did you mean {setting(meant[0], text)}?")
    if not equals or not key:
        return Problem(
            text, "is not key=value", "no spaces around =, and quotes around any, as 'output=my run'"
        )
    return (
        f"cannot read {text!r}: write key=value, lists as 'key=[a,b]'; a text with any of = [ ( ~ or quotes in it needs quotes: "
        f"write {setting(key, value)}"
    )


def _choose(
    given: list[str | None], group: str, conf: Path, command: str, schema: type[Any], problems: Problems
) -> list[str]:
    """Names for Hydra of each of the choices ``given``."""
    folder, choices = choices_of(group, conf, command)
    chosen, unknown = [], []
    for choice in [each or "null" for each in given]:
        if choice == "null" and _may_be_null(group, conf, command):
            chosen.append(_register("nothing", group, {}, "_global_"))
        elif Path(choice).suffix not in YAML:
            chosen.append(f"{folder}{choice}")
            unknown += [choice] if choice not in choices else []
        elif Path(choice).is_file():
            chosen.append(_register_file(Path(choice), group, schema, problems))
        else:
            problems.append(f"{group}={choice}: no such file (looked in {Path.cwd()})")
    if unknown:
        near = [name for choice in unknown for name in difflib.get_close_matches(choice, choices, n=1)]
        hint = f"did you mean {group}={','.join(near)}? " if near else ""
        problems.append(
            f"{group}={','.join(unknown)} is not known: {hint}choose one of {', '.join(choices)}, "
            "or give the path of a YAML file"
        )
    return chosen


def _may_be_null(group: str, conf: Path, command: str) -> bool:
    return group == "experiment" or {group: None} in OmegaConf.load(conf / f"{command}.yaml").defaults


def _type_problems(key: str, values: Sequence[Any], schema: type[Any]) -> Problems:
    """Problems of values of a wrong type; what ``${...}`` stands for is not known yet."""
    kind = type_of(key, schema)
    problems: Problems = []
    for value in values:
        if is_section(kind) and isinstance(value, Mapping):
            problems += _section_problems(value, f"{key}.", schema)
        elif not (isinstance(value, str) and ("${" in value or value == REQUIRED)):
            problems += [problem] if (problem := type_problem(key, value, kind)) else []
    return problems


def _register_file(path: Path, group: str, schema: type[Any], problems: Problems) -> str:
    """Makes the file a choice of ``group`` and gives its name there; adds to ``problems`` what ``schema`` does not take."""
    digest = hashlib.sha256(bytes(path.resolve())).hexdigest()[:8]
    name = f"file_{re.sub(r'[^a-zA-Z0-9]', '_', path.stem)}_{digest}"  # no text that = would end, and no other file's
    try:
        text = HOME_IN_YAML.sub(str(Path.home()), yaml_text(path))
        content = OmegaConf.to_container(OmegaConf.load(StringIO(text)), resolve=False)
    except Exception as error:  # the parser's errors have no common class; the author of the file fixes each
        problems.append(f"{path} is not readable YAML: {error}")
        return name
    if not isinstance(content, dict):
        problems.append(f"{group}={path}: the file must hold keys and their values, got a list or a word")
        return name
    is_recipe = group == "experiment"
    values = {key: value for key, value in content.items() if key != "defaults"}
    faults = _section_problems(values, "" if is_recipe else f"{group}.", schema)
    if "hydra" in str(content.get("defaults", "")):
        faults = ["a file cannot set hydra: type hydra.KEY=VALUE on the command line"]
    problems += [f"{group}={path}: {fault}" for fault in faults]
    # what a recipe sets stands at the top, which a file in conf/ says by its first line
    return _register(name, group, content, "_global_" if is_recipe else None)


def _register(name: str, group: str, content: Any, package: str | None) -> str:
    ConfigStore.instance().store(group=group, name=name, node=content, package=package)
    return name


def _section_problems(values: Mapping[Any, Any], prefix: str, schema: type[Any]) -> Problems:
    faults: Problems = []
    for name, value in values.items():
        key = f"{prefix}{name}"
        is_known = type_of(key, schema) is not None
        faults += _type_problems(key, [value], schema) if is_known else [unknown_key(key, schema)]
    return faults
