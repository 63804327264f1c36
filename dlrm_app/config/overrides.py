"""Refusing mistyped ``key=value`` overrides before Hydra composes, all of them in one message."""

import difflib
import re
import shlex
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Transformer, ValueType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from dlrm_app.config.schema import REQUIRED, is_free_form, type_of, type_problem, types_of, unknown_key
from dlrm_app.errors import Problem
from dlrm_app.text import setting

HOME = re.compile(r"""(?<=[=\[,"'])~(?=[/"',\]]|$)""")
"""~ at the beginning of a value, or of one in a list."""
OF_HYDRA = (
    "hydra/launcher",
    "hydra.launcher.",
    "hydra.sweep.",
    "hydra.job.",
)
"""What a sweep may set of Hydra's."""
YAML = (".yaml", ".yml")
NOT_WORDS = ("null", "true", "false", "nan", "inf")
"""What Hydra takes for a value and no name."""
_registered: dict[tuple[str, str], Path] = {}
"""(group, name) → the file that has it."""
SWEEPS = (ValueType.CHOICE_SWEEP, ValueType.SIMPLE_CHOICE_SWEEP)


def check_overrides(
    overrides: list[str], schema: type[Any], conf: Path, command: str, is_sweep: bool = False
) -> tuple[list[str], list[Problem | str]]:
    """Checks every override against ``schema`` and the groups in ``conf``: the good ones as Hydra takes them, and the
    problems of the others, which are unknown keys (with the nearest known one), wrong types and unknown choices.

    Where a group has a folder named after ``command``, its choices are the files in there (docs/adr/0005).
    A group's choice may be a path to a YAML file (``tables=my_tables.yaml``): it is registered as a choice.
    ``is_sweep``: a key may have several values, each a run of its own.
    """
    parser = OverridesParser.create()
    settings = settings_named_as_groups(schema, conf)
    groups = (
        {path.name for path in conf.iterdir() if path.is_dir()} & {*types_of(schema), "experiment"}
    ) - settings
    problems: list[Problem | str] = []
    checked: list[str] = []
    for given in overrides:
        before = len(problems)
        text = HOME.sub(str(Path.home()), given)
        try:
            override = parser.parse_override(text)
        except HydraException:
            problems.append(_unreadable(given))
            continue
        key = override.key_or_group
        values = _values(override)
        if "_target_" in key.split(".") or any(has_key(value, "_target_") for value in values):
            problems.append(f"{given}: _target_ names code to call, which no setting may")
        elif override.package is not None:
            value = text.partition("=")[2]
            problems.append(f"{given}: @{override.package} names no place of its own: write {key}={value}")
        elif override.is_delete():
            instead = "choose another" if key in groups else f"give it a value, or {key}=null"
            problems.append(f"{given} would delete a key: {instead}")
        elif len(values) > 1 and not is_sweep and (key in groups or type_of(key, schema) is not None):
            offers = [] if key in settings else ["for a run with each add --multirun"]
            offers += _as_one_value(key, text.partition("=")[2], values, schema, groups)
            problems.append(f"{given} gives several values: {', '.join(offers)}")
        elif key in settings and is_sweep:
            problems.append(f"{given}: dlrm-{command} has no --multirun, start it once for each")
        elif key in groups and all(isinstance(value, str | None) for value in values):
            chosen = _choose(values, key, conf, command, schema, problems)
            text = f"{key}={','.join(chosen)}"  # + is left out: every group has its place in the defaults
        elif re.match(r"hydra\b", key):
            if len(values) > 1 and not is_sweep:
                problems.append(f"{given} gives several values: give one")
            if not key.startswith(OF_HYDRA):
                problems.append(f"{given}: of Hydra's own settings there are {', '.join(OF_HYDRA)}")
        else:
            _check_values(key, override, values, schema, groups, problems)
            text = f"++{text}" if _adds_keys(key, override, schema) else text
        if len(problems) == before:
            checked.append(text)
    return checked, problems


def plain_values(overrides: list[str]) -> dict[str, object]:
    """key or group → value of checked ``overrides``; None where there are several, each a run of its own."""
    parsed = OverridesParser.create().parse_overrides(overrides)
    return {each.key_or_group: None if each.is_sweep_override() else each.value() for each in parsed}


def settings_named_as_groups(schema: type[Any], conf: Path) -> set[str]:
    """Keys with a plain value that are called as a folder of ``conf`` is: Hydra would look for a choice in there."""
    return {key for key, kind in types_of(schema).items() if not is_dataclass(kind) and (conf / key).is_dir()}


def take_settings(overrides: list[str], names: set[str]) -> tuple[dict[str, object], list[str]]:
    """(key → value of the ``overrides`` of ``names``, the other overrides)."""
    parser = OverridesParser.create()
    taken: dict[str, object] = {}
    others = []
    for text in overrides:
        override = parser.parse_override(text)
        if override.key_or_group in names:
            taken[override.key_or_group] = override.value()
        else:
            others.append(text)
    return taken, others


def choices_of(group: str, conf: Path, command: str) -> tuple[str, list[str]]:
    """The folder of ``group``'s choices, below ``conf/group`` with a slash at its end or nothing, and their names."""
    folder = f"{command}/" if (conf / group / command).is_dir() else ""
    return folder, sorted(file.stem for file in (conf / group / folder).glob("*.yaml"))


def _values(override: Override) -> list[Any]:
    """Each of a sweep that lists its values; else the one."""
    if override.value_type in SWEEPS:
        return list(override.sweep_iterator(transformer=Transformer.identity))
    return [override.value()]


def _unreadable(text: str) -> str:
    key, equals, value = text.partition("=")
    if not equals:
        return f"cannot read {text!r}: settings are key=value, and one with spaces needs quotes, as 'output=my run'"
    return (
        f"cannot read {text!r}: write key=value, lists as 'key=[a,b]'; a text with any of = [ ( ~ or quotes in it needs quotes: "
        f"write {setting(key, value)}"
    )


def _as_one_value(key: str, whole: str, values: list[Any], schema: type[Any], groups: set[str]) -> list[str]:
    """Ways to write ``whole``, a text with commas, as one value of ``key``, as far as it takes such."""
    if key in groups:
        takes = {"list": False, "text": Path(whole).suffix in YAML}
    else:
        kind = type_of(key, schema)
        takes = {"list": not type_problem(key, values, kind), "text": not type_problem(key, whole, kind)}
    as_list = f"for a list write {shlex.quote(f'{key}=[{whole}]')}"
    return [as_list] * takes["list"] + [f"for one text {setting(key, whole)}"] * takes["text"]


def _choose(
    given: list[str | None],
    group: str,
    conf: Path,
    command: str,
    schema: type[Any],
    problems: list[Problem | str],
) -> list[str]:
    """Names for Hydra of each of the choices ``given``."""
    folder, choices = choices_of(group, conf, command)
    chosen, unknown = [], []
    for choice in [each or "null" for each in given]:
        if choice == "null" and _is_null_by_itself(group, conf, command):
            chosen.append(register_nothing(group))
        elif Path(choice).suffix not in YAML:
            chosen.append(f"{folder}{choice}")
            unknown += [choice] if choice not in choices else []
        elif Path(choice).is_file():
            chosen.append(register_file(Path(choice), group, conf, schema, problems))
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


def _is_null_by_itself(group: str, conf: Path, command: str) -> bool:
    """True if ``command`` has no choice of ``group`` where none is typed."""
    defaults = OmegaConf.to_container(OmegaConf.load(conf / f"{command}.yaml"), resolve=False)
    assert isinstance(defaults, dict)
    return group == "experiment" or {group: None} in defaults["defaults"]


def _check_values(
    key: str,
    override: Override,
    values: list[Any],
    schema: type[Any],
    groups: set[str],
    problems: list[Problem | str],
) -> None:
    kind = type_of(key, schema)
    if kind is None:
        problems.append(unknown_key(key, schema, sorted(groups)))
    elif override.value_type in (ValueType.ELEMENT, *SWEEPS):  # not a range, whose numbers the sweeper makes
        found = [type_problem(key, value, kind) for value in values if not is_reference(value)]
        problems += [problem for problem in found if problem is not None]


def is_reference(value: Any) -> bool:
    """True if ``value`` is found when the configuration is composed."""
    return isinstance(value, str) and ("${" in value or value == REQUIRED)


def _adds_keys(key: str, override: Override, schema: type[Any]) -> bool:
    """True if a mapping is given to a field that takes any keys: Hydra would refuse those that are not there yet."""
    is_plain = not (override.is_add() or override.is_force_add() or override.is_delete())
    return isinstance(override.value(), dict) and is_plain and is_free_form(type_of(key, schema))


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
    except Exception as error:  # the parser's errors have no common class; the author of the file fixes each
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
    """Problems of a file that would have Hydra run code: a file of settings sets nothing of Hydra's."""
    if "hydra" in plain or "hydra" in str(plain.get("defaults", "")):
        return ["a file cannot set hydra: type hydra.KEY=VALUE on the command line"]
    return ["_target_ names code to call, which no setting may"] if has_key(plain, "_target_") else []


def has_key(value: Any, key: str) -> bool:
    """True if ``key`` stands in a mapping anywhere within ``value``."""
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
