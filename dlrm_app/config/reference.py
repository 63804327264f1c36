"""The meaning of every key, from the comments in conf/: for ``--help``, for a JSON schema, and for the docs."""

import json
import re
import textwrap
from collections.abc import Container, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from omegaconf import OmegaConf

from dlrm_app.config.compose import compose_tree
from dlrm_app.config.conf_files import BUILDS_ON, choices_of, conf_dir
from dlrm_app.config.overrides import Overrides
from dlrm_app.config.schema import Section, flattened, is_section, known_keys, type_of, types_of, unknown_key
from dlrm_app.errors import refuse_if
from dlrm_app.typed import as_typed

FOOTER = """
Set a key with key=value; choose from a group with group=choice or group=path/to/file.yaml.
--help KEY                        only the keys that KEY is a part of; --version: this program's
--cfg job                         print the configuration and stop; --cfg schema: its JSON schema, for editors
--multirun                        one run for each combination of comma-separated values
--shell-completion install=bash   print the script that completes keys and choices with the Tab key; fish and zsh too"""

_LEFT_OUT = re.compile(r"( *)# (\w+): (.*)")
_LINE = re.compile(r"( *)(?:(\w+):)?.*?(?:(?:^|(?<= ))# ?(.*))?$")
_WIDTH, _KEY_WIDTH, _LONGEST_VALUE = 120, 46, 30


class Entry(NamedTuple):
    """A key, its value as it would be typed, and its meaning."""

    key: str
    value: str
    comment: str


class Group(NamedTuple):
    """The current ``choice`` of a group and its meaning, and the names of all choices."""

    choice: str
    about: str
    choices: list[str]


class Reference(NamedTuple):
    """The groups of a command, and its keys in the order of the schema: (title, meaning, keys) of each section."""

    header: str
    groups: dict[str, Group]
    sections: list[tuple[str, str, list[Entry]]]


def read_comments(path: Path, keys: Container[str] = ()) -> dict[str, str]:
    """Dotted key → the comment after and below it in a file of conf/ (indented by two); "" → the file's first lines.

    A line ``# key: comment`` explains one of ``keys`` that the file leaves at its default; ``#   more`` continues it.
    """
    comments = {"": ""}
    parents: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        left_out = _LEFT_OUT.match(line)
        is_key = left_out and parents and ".".join([*parents[: len(left_out[1]) // 2], left_out[2]]) in keys
        match = left_out if is_key else _LINE.match(line)
        indent, name, comment = match.groups() if match else ("", None, None)
        if name is not None:
            parents = [*parents[: len(indent) // 2], name]
            comments[".".join(parents)] = comment or ""
        elif (
            comment
            and not comment.startswith("@package")
            and (not parents or ((indent or line.startswith("#   ")) and comments[".".join(parents)]))
        ):
            comments[".".join(parents)] += f" {comment.strip()}"
    return {key: comment.strip() for key, comment in comments.items()}


def read_reference(command: str, schema: type[Section], overrides: Overrides) -> Reference:
    """Reads the keys of ``dlrm-<command>`` with ``overrides``, their values and their meanings. Raises ConfigError."""
    conf = conf_dir()
    tree, chosen = compose_tree(command, schema, overrides)
    comments: dict[str, str] = {}
    for name in filter(None, (BUILDS_ON.get(command), command)):
        comments |= read_comments(conf / f"{name}.yaml")
    groups = {}
    for group, path in chosen.items():
        folder, choices = choices_of(group, command)
        choice, about = Path(path or "null").name, ""
        # the first comment counts, so the current choice comes first
        for each in sorted(choices, key=lambda each: each != choice):
            kind = type_of(group, schema)
            keys = {*known_keys(kind)} if is_section(kind) else set()
            of_file = read_comments(conf / group / folder / f"{each}.yaml", keys)
            about = of_file[""] if each == choice else about
            comments = {f"{group}.{key}": text for key, text in of_file.items() if key and text} | comments
        groups[group] = Group(choice, about, choices)
    entries = []
    values: Any = OmegaConf.to_container(tree, resolve=False)
    for key, value in flattened(values, schema):
        # a setting for both tables and dense weights is explained once
        meaning = comments.get(key) or comments.get(key.replace(".dense.", ".sparse."), "")
        entries.append(Entry(key, _shown(value), meaning))
    sections: list[tuple[str, str, list[Entry]]] = []
    for name, of_section in groupby(entries, lambda entry: entry.key.rpartition(".")[0].split(".")[0]):
        title, about = name, comments.get(name, "") if name else ""
        if name in groups:
            title, about = f"{name}={groups[name].choice}", groups[name].about
        sections.append((title, about, [*of_section]))
    return Reference(comments[""], groups, sections)


def _shown(value: object) -> str:
    """``value`` as it would be typed; for a long list, the number of its entries."""
    text = as_typed(value, lambda text: text if text.isprintable() and text else repr(text))
    if isinstance(value, list) and len(text) > _LONGEST_VALUE:
        return f"[… {len(value)} entries]"
    return text


def json_schema(command: str, schema: type[Section], overrides: Overrides) -> str:
    """The JSON schema of ``dlrm-<command>`` with the choices of ``overrides``, for editors of YAML files."""
    reference = read_reference(command, schema, overrides)
    described = {entry.key: entry.comment for *_, entries in reference.sections for entry in entries}

    def section(part: object, prefix: str) -> dict[str, object]:
        properties = {}
        for name, kind in types_of(part).items():
            key = f"{prefix}{name}"
            if is_section(kind):
                properties[name] = section(kind, f"{key}.")
            else:
                properties[name] = {**msgspec.json.schema(kind), "description": described.get(key, "")}
        return {"type": "object", "additionalProperties": False, "properties": properties}

    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"dlrm-{command}"}
    return json.dumps(
        {**head, "description": reference.header, **section(schema, "")}, indent=2, ensure_ascii=False
    )


def help_text(command: str, schema: type[Section], overrides: Overrides, asked: Sequence[str] = ()) -> str:
    """The text of ``dlrm-<command> --help`` with ``overrides``: groups, and every key with its value and its meaning.

    ``asked``: parts of the keys to show; other keys are left out. Raises ConfigError for a part that no key has.
    """
    reference = read_reference(command, schema, overrides)
    keys = [*reference.groups, *(entry.key for *_, entries in reference.sections for entry in entries)]
    refuse_if([unknown_key(word, schema) for word in asked if not any(word in key for key in keys)])
    shown = {key for key in keys if not asked or any(word in key for word in asked)}
    lines = [*_wrapped(reference.header, 0), ""]
    if groups := sorted(shown & reference.groups.keys()):
        lines += ["== Groups and their choices =="]
        for name in groups:
            choice, about, choices = reference.groups[name]
            # the meaning of a section is shown above its keys
            says = f"{about}. Choices: " if about and type_of(name, schema) is None else ""
            lines += _wrapped(f"{name}={choice}: {says}{', '.join(choices)}", 4)
        lines += [""]
    lines += ["== Keys and their values now =="]
    for title, about, entries in reference.sections:
        entries = [entry for entry in entries if entry.key in shown]
        lines += ["", *_wrapped(f"# {title}: {about}".strip(" :") if title else "", 2)] if entries else []
        for key, value, comment in entries:
            lines += _wrapped(f"{key}={value} ".ljust(_KEY_WIDTH) + comment, _KEY_WIDTH)
    return "\n".join([*lines, FOOTER])


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)
