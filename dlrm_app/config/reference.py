"""The meaning of every key, from the comments in conf/: as the text of ``--help``, a JSON schema."""

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from omegaconf import OmegaConf

from dlrm_app.config.compose import BUILDS_ON, compose_tree, conf_dir
from dlrm_app.config.overrides import choices_of
from dlrm_app.config.schema import is_free_form, is_section, type_of, types_of, unknown_key
from dlrm_app.errors import refuse_if
from dlrm_app.text import as_typed

FOOTER = """
Set a key with key=value; choose from a group with group=choice or group=path/to/file.yaml.
--help KEY                        only the keys that KEY is a part of; --version: this program's
--cfg job                         print the configuration and stop; --cfg schema: its JSON schema, for editors
--multirun                        one run for each combination of comma-separated values
--shell-completion install=bash   print what completes keys and choices with the Tab key; fish and zsh too"""

_LINE = re.compile(r"( *)(?:(\w+):)?.*?(?:(?:^|(?<= ))# ?(.*))?$")
_WIDTH, _KEY_WIDTH, _LONGEST_VALUE = 120, 46, 30


@dataclass(frozen=True)
class Comments:
    """A file's first lines, and the comment behind each dotted key; lines that continue one are joined to it."""

    header: str
    by_key: dict[str, str]


@dataclass(frozen=True)
class Entry:
    """A key with its value as it would be typed."""

    key: str
    value: str
    comment: str


@dataclass
class HelpSection:
    """The keys below one at the top, or a run of keys that stand there alone."""

    title: str
    about: str
    entries: list[Entry] = field(default_factory=list)


def read_comments(path: Path) -> Comments:
    """The comments of a file of conf/, which indents by two spaces."""
    header: list[str] = []
    by_key: dict[str, str] = {}
    parents: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        match = _LINE.match(line)
        indent, name, comment = match.groups() if match else ("", None, None)
        if name is not None:
            parents = [*parents[: len(indent) // 2], name]
            by_key[".".join(parents)] = comment or ""
        elif comment and not parents and not comment.startswith("@package"):
            header.append(comment)
        elif comment and indent and by_key[".".join(parents)]:
            by_key[".".join(parents)] += f" {comment}"
    return Comments(" ".join(header), by_key)


class Reference:
    """The keys of ``dlrm-<command> *overrides``, with their values and what they mean. Raises ConfigError."""

    def __init__(self, command: str, schema: type[Any], overrides: list[str]) -> None:
        self._command, self._schema, self._conf = command, schema, conf_dir()
        self._tree, choices = compose_tree(command, schema, overrides)
        self.choices = {group: Path(choice or "null").name for group, choice in choices.items()}
        """Group → the choice in force, or null."""
        self.header = read_comments(self._conf / f"{command}.yaml").header
        self._comments: dict[str, str] = {}
        for name in (BUILDS_ON.get(command), command):
            if name is not None:
                self._comments |= read_comments(self._conf / f"{name}.yaml").by_key
        for group, chosen in self.choices.items():
            for choice in sorted(self.choices_of(group), key=lambda choice: choice != chosen):
                for key, comment in self._file(group, choice).by_key.items():
                    if comment:
                        self._comments.setdefault(f"{group}.{key}", comment)

    def choices_of(self, group: str) -> list[str]:
        """Choices of ``group``, as this command names it."""
        return choices_of(group, self._conf, self._command)[1]

    def choices_text(self, group: str) -> str:
        """The choices, after what the one in force means where it is no section of keys."""
        names = ", ".join(self.choices_of(group))
        if group in self._tree or self.choices[group] not in self.choices_of(group):
            return names
        return f"{self._file(group, self.choices[group]).header}. Choices: {names}"

    def sections(self) -> list[HelpSection]:
        """Every key, in the order of the schema."""
        values = OmegaConf.to_container(self._tree, resolve=False)
        assert isinstance(values, dict)
        sections: list[HelpSection] = []
        for name, value in values.items():
            if isinstance(value, dict):
                sections.append(self._section(str(name)))
                self._add_entries(value, f"{name!s}.", sections[-1].entries)
            else:
                if not sections or sections[-1].title:
                    sections.append(HelpSection("", ""))
                self._add_entries({name: value}, "", sections[-1].entries)
        return sections

    def _section(self, key: str) -> HelpSection:
        if key not in self.choices:
            return HelpSection(key, self._comments.get(key, ""))
        choice = self.choices[key]
        is_ours = choice in self.choices_of(key)
        return HelpSection(f"{key}={choice}", self._file(key, choice).header if is_ours else "")

    def _add_entries(self, values: Mapping[Any, Any], prefix: str, entries: list[Entry]) -> None:
        for name, value in values.items():
            key = f"{prefix}{name}"
            if isinstance(value, dict) and not is_free_form(type_of(key, self._schema)):
                self._add_entries(value, f"{key}.", entries)
            else:
                # a setting that tables and dense weights share is explained once
                comment = self._comments.get(key) or self._comments.get(key.replace(".dense.", ".sparse."))
                entries.append(Entry(key, _shown(value), comment or ""))

    def _file(self, group: str, choice: str) -> Comments:
        folder, _ = choices_of(group, self._conf, self._command)
        return read_comments(self._conf / group / folder / f"{choice}.yaml")


def _shown(value: Any) -> str:
    """``value`` as it would be given on the command line; of a long list, how many entries it has."""
    text = as_typed(value, lambda text: text if text.isprintable() and text else repr(text))
    is_long = isinstance(value, list) and len(text) > _LONGEST_VALUE
    return f"[… {len(value)} entries]" if is_long else text


def help_text(command: str, schema: type[Any], overrides: list[str], asked: Sequence[str] = ()) -> str:
    """Text of ``dlrm-<command> *overrides --help``: groups, and every key with its value and its meaning.

    ``asked``: parts of the keys to show, all others are left out. Raises ConfigError for what no key has.
    """
    reference = Reference(command, schema, overrides)
    sections = reference.sections()
    keys = [*reference.choices, *(entry.key for section in sections for entry in section.entries)]
    refuse_if([unknown_key(word, schema) for word in asked if not any(word in key for key in keys)])
    shown = {key for key in keys if not asked or any(word in key for word in asked)}
    lines = [*_wrapped("", reference.header, 0), ""]
    if groups := sorted(shown & reference.choices.keys()):
        lines += ["== Groups and their choices =="]
        for group in groups:
            lines += _wrapped(f"{group}={reference.choices[group]}: ", reference.choices_text(group), 4)
        lines += [""]
    lines += ["== Keys and their values now =="]
    for section in sections:
        section.entries = [entry for entry in section.entries if entry.key in shown]
    for section in (section for section in sections if section.entries):
        lines += (
            ["", *_wrapped(f"# {section.title}: {section.about}".strip(" :"), "", 2)]
            if section.title
            else [""]
        )
        for entry in section.entries:
            start = f"{entry.key}={entry.value} ".ljust(_KEY_WIDTH)
            lines += _wrapped(start, entry.comment, _KEY_WIDTH)
    return "\n".join([*lines, FOOTER])


def _wrapped(start: str, text: str, indent: int) -> list[str]:
    return textwrap.wrap(start + text, _WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)


def json_schema(command: str, schema: type[Any], overrides: list[str]) -> str:
    """The JSON schema of ``dlrm-<command> *overrides``, for editors of YAML files."""
    reference = Reference(command, schema, overrides)
    described = {entry.key: entry.comment for section in reference.sections() for entry in section.entries}

    def section(part: Any, prefix: str) -> dict[str, Any]:
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
