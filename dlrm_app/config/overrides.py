"""Refuses mistyped ``key=value`` overrides before Hydra composes, all in one message."""

import difflib
import hashlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, Transformer, ValueType
from hydra.errors import HydraException
from omegaconf import OmegaConf

from dlrm_app.config.gone_names import replacement
from dlrm_app.config.schema import is_free_form, is_section, mapping_problems, type_of, types_of, unknown_key
from dlrm_app.config.values import type_problem
from dlrm_app.errors import ConfigError, Problem, refuse_if
from dlrm_app.files import yaml_text
from dlrm_app.typed import quoted, setting

HOME = re.compile(r"""(?<=[=\[,"'])~(?=[/"',\]]|$)""")
"""~ at the beginning of a value, or of a value in a list."""
HOME_IN_YAML = re.compile(r"""(?<=[\s\[,"'])~(?=/)""")
HYDRA_KEYS = ("hydra/launcher", "hydra.launcher.", "hydra.sweep.", "hydra.job.")
"""Hydra's own settings that a sweep may set."""
PATHS = ("checkpoint", "input.train", "model", "data.path", "output")
"""Keys that a path without a key may be meant for: the first one that the command has and that is not typed."""
NOTHING = "nothing"
"""The registered choice, without any values, that stands for null."""
SWEEPS = (ValueType.CHOICE_SWEEP, ValueType.SIMPLE_CHOICE_SWEEP)


def check_overrides(
    words: Sequence[str], schema: type[Any], conf: Path, command: str, is_sweep: bool = False
) -> tuple[list[str], list[Problem]]:
    """Checks every override against ``schema`` and the groups in ``conf``. Returns the good ones in Hydra's form,
    and the problems of the others: unknown keys (with the nearest known one), wrong types and unknown choices.

    If a group has a folder named after ``command``, its choices are the files in that folder (docs/adr/0005).
    A group's choice may be the path of a YAML file (``tables=my_tables.yaml``), which is registered as a choice.
    ``is_sweep``: a key may have several values, one for each run.
    Raises ConfigError with all these problems if a word cannot be read, because other problems are then unknown.
    """
    reader = _Reader(schema, conf, command, is_sweep)
    checked: list[str] = []
    unreadable: list[Problem] = []
    problems: list[Problem] = []
    for word in words:
        text = HOME.sub(str(Path.home()), word)
        try:
            checked.append(reader.read(*reader.parsed(text), word))
        except HydraException:
            unreadable.append(_unreadable(word, schema, words))
        except ConfigError as error:
            problems += error.problems
    if unreadable:
        refuse_if([*unreadable, *problems])
    return checked, problems


def plain_values(overrides: list[str]) -> dict[str, object]:
    """Key or group → value, from checked ``overrides``; None if there are several values, one for each run."""
    parsed = OverridesParser.create().parse_overrides(overrides)
    return {each.key_or_group: None if each.is_sweep_override() else each.value() for each in parsed}


def settings_named_as_groups(schema: type[Any], conf: Path) -> set[str]:
    """Keys with a plain value and the name of a folder in ``conf``, where Hydra would look for a choice."""
    return {key for key, kind in types_of(schema).items() if not is_section(kind) and (conf / key).is_dir()}


def choices_of(group: str, conf: Path, command: str) -> tuple[str, list[str]]:
    """The folder of ``group``'s choices below ``conf/group`` ("" or with a slash
    at the end), and the names of the choices.
    """
    folder = f"{command}/" if (conf / group / command).is_dir() else ""
    return folder, sorted(file.stem for file in (conf / group / folder).glob("*.yaml"))


def _unreadable(word: str, schema: type[Any], words: Sequence[str]) -> Problem:
    key, equals, value = word.partition("=")
    if key and equals:
        if type_of(key, schema) is None:
            return unknown_key(key, schema)
        rule = (
            "cannot be read: lists are written 'key=[a,b]', with quotes around each text that has any of "
            "[ ] { } , or quotes"
        )
        return Problem(repr(word), rule, f"one text is written {setting(key, value)}")
    cure = "no spaces around =, and quotes around any, as 'output=my run'"
    if not equals and ("/" in word or Path(word).exists()):
        kinds = {
            path: type_of(path, schema) for path in PATHS if not any(w.startswith(f"{path}=") for w in words)
        }
        meant = [path for path, kind in kinds.items() if kind is not None and not is_section(kind)]
        cure = f"did you mean {setting(meant[0], word)}?" if meant else cure
    return Problem(word, "is not key=value", cure)


@dataclass(frozen=True)
class _Reader:
    """Turns overrides of one command into Hydra's form; raises ConfigError for those that Hydra must not see."""

    schema: type[Any]
    conf: Path
    command: str
    is_sweep: bool

    def parsed(self, text: str) -> tuple[Override, str]:
        """The override ``text`` and its words for Hydra: a text that Hydra
        cannot read is taken as it stands, in quotes.

        Raises HydraException where the key takes no text.
        """
        parse = OverridesParser.create().parse_override
        try:
            override = parse(text)
        except HydraException:
            text = self._with_quotes(text)
            override = parse(text)
        if not override.key_or_group:
            raise HydraException
        return override, text

    def _with_quotes(self, text: str) -> str:
        """``key=value`` with quotes around the text, or the texts of the list,
        after the first =, if the key takes such.
        """
        key, equals, value = text.partition("=")
        kind = type_of(key.lstrip("+"), self.schema)
        if kind is None or not equals or value[:1] in ("'", '"'):
            return text
        takes_text, takes_list = (
            (self.conf / key).is_dir() if is_section(kind) else type_problem(key, each, kind) is None
            for each in ("text", ["text"])
        )
        if takes_list and (items := re.fullmatch(r"\[([^][{}'\"]+)\]", value)):
            return f"{key}=[{','.join(quoted(item.strip()) for item in items[1].split(','))}]"
        return f"{key}={quoted(value)}" if takes_text and not value.startswith("[") else text

    def read(self, override: Override, text: str, word: str) -> str:
        """Reads ``text``, which was parsed as ``override`` and typed as ``word``."""
        key, value = override.key_or_group, text.partition("=")[2]
        kind = type_of(key, self.schema)
        values, is_listed = [override.value()], override.value_type in SWEEPS
        if is_listed:
            values = list(override.sweep_iterator(transformer=Transformer.identity))
        is_setting = key in settings_named_as_groups(self.schema, self.conf)
        is_group = (self.conf / key).is_dir() and not is_setting and (kind is not None or key == "experiment")
        if override.package is not None or override.is_delete():
            raise ConfigError(Problem(word, "moves or deletes a key", f"write {key}={value or 'null'}"))
        if re.match(r"hydra\b", key):
            if not key.startswith(HYDRA_KEYS) or "_target_" in text:  # _target_ names code to call
                raise ConfigError(
                    Problem(
                        word, "is not one of Hydra's settings that can be set", f"use {', '.join(HYDRA_KEYS)}"
                    )
                )
            return text
        if kind is None and not is_group:
            raise ConfigError(unknown_key(key, self.schema))
        if len(values) > 1 and (is_setting or not self.is_sweep):
            each = "" if is_setting else "a run with each needs --multirun, "
            ways = f"a list is written {shlex.quote(f'{key}=[{value}]')}, one text {setting(key, value)}"
            raise ConfigError(Problem(word, "gives several values", f"{each}{ways}"))
        if is_group and all(isinstance(value, str | None) for value in values):
            # without +: every group has its place in the defaults
            return f"{key}={','.join(self._choices(key, [each or 'null' for each in values]))}"
        if is_listed or override.value_type is ValueType.ELEMENT:  # Hydra itself makes the numbers of a range
            refuse_if([fault for each in values for fault in mapping_problems({key: each}, self.schema)])
        # without ++ Hydra would refuse new keys of a mapping
        is_mapping = isinstance(values[0], dict) and override.type is OverrideType.CHANGE
        return f"++{text}" if is_mapping and is_free_form(kind) else text

    def _choices(self, group: str, given: Sequence[str]) -> list[str]:
        """Hydra's names of the choices ``given``."""
        folder, known = choices_of(group, self.conf, self.command)
        names, unknown = [], []
        problems: list[Problem] = []
        for choice in given:
            if choice == "null" and (group == "experiment" or self._may_be_left_out(group)):
                names.append(_register(NOTHING, group, {}, "_global_"))
            elif Path(choice).suffix in (".yaml", ".yml"):
                try:
                    names.append(self._register_file(Path(choice), group))
                except ConfigError as error:
                    problems += [fault.within(f"{group}={choice}") for fault in error.problems]
            elif gone := replacement(f"{group}={choice}"):
                problems.append(Problem(f"{group}={choice}", *gone))
            else:
                names.append(f"{folder}{choice}")
                unknown += [choice] if choice not in known else []
        if unknown:
            near = [name for choice in unknown for name in difflib.get_close_matches(choice, known, n=1)]
            hint = f"did you mean {group}={','.join(near)}? " if near else ""
            problems.append(
                Problem(
                    f"{group}={','.join(unknown)}",
                    "is not known",
                    f"{hint}choose one of {', '.join(known)}, or give the path of a YAML file",
                )
            )
        refuse_if(problems)
        return names

    def _may_be_left_out(self, group: str) -> bool:
        return {group: None} in OmegaConf.load(self.conf / f"{self.command}.yaml").defaults

    def _register_file(self, path: Path, group: str) -> str:
        """Registers the file as a choice of ``group`` and returns its name.

        Raises ConfigError for keys outside of the schema.
        """
        if not path.is_file():
            raise ConfigError(Problem("", f"does not exist (looked in {Path.cwd()})"))
        try:
            text = HOME_IN_YAML.sub(str(Path.home()), yaml_text(path))
            content = OmegaConf.to_container(OmegaConf.load(StringIO(text)), resolve=False)
        except (
            Exception
        ) as error:  # the parser's errors have no common class; the file's author can fix all of them
            raise ConfigError(Problem("", f"is not readable YAML: {error}")) from error
        if not isinstance(content, dict):
            raise ConfigError(Problem("", "must hold keys and their values, not a list or a word"))
        if "hydra" in str(content.get("defaults", "")):
            raise ConfigError(Problem("", "cannot set hydra", "type hydra.KEY=VALUE on the command line"))
        is_recipe = group == "experiment"
        values = {key: value for key, value in content.items() if key != "defaults"}
        refuse_if([*mapping_problems(values, self.schema, "" if is_recipe else f"{group}.")])
        digest = hashlib.sha256(bytes(path.resolve())).hexdigest()[:8]
        name = f"file_{re.sub(r'[^a-zA-Z0-9]', '_', path.stem)}_{digest}"  # safe for Hydra, and unique to the file
        # a recipe's keys are at the top level; a file in conf/ says so in its first line
        return _register(name, group, content, "_global_" if is_recipe else None)


def _register(name: str, group: str, content: Any, package: str | None) -> str:
    ConfigStore.instance().store(group=group, name=name, node=content, package=package)
    return name
