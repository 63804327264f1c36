"""Reads settings as they are typed, ``key=value``, into mappings. Nothing else in the library parses such text."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Transformer, ValueType
from hydra.errors import HydraException

from dlrm_app.config.overrides import is_group, is_hydra_key, overrides_of
from dlrm_app.config.schema import Section, flattened, is_free_form, is_section, type_of, unknown_key
from dlrm_app.config.values import takes_texts, type_problem
from dlrm_app.errors import ConfigError, Problem, refuse_if
from dlrm_app.typed import quoted, setting
from dlrm_app.typed import word as word_of

HOME = re.compile(r"""(?<=[=\[,"'])~(?=[/"',\]]|$)""")
"""~ at the beginning of a value, or of a value in a list."""
PATHS = ("checkpoint", "input.train", "model", "data.path", "output")
"""Keys that a path without a key may be meant for: the first one that the command has and that is not typed."""
LISTED = (ValueType.CHOICE_SWEEP, ValueType.SIMPLE_CHOICE_SWEEP)
"""Values with commas between them, one for each run of a sweep."""
NUMBER = 1
"""Stands for the numbers of a range, which Hydra makes."""


class Word(NamedTuple):
    """A word's key, its values (several in a sweep; none of a range, whose numbers Hydra makes) and Hydra's text."""

    key: str
    values: list[object]
    text: str


@dataclass
class WordReader:
    """Collects the settings of ``dlrm-<command>`` from words and mappings; later ones win.

    ``positional``: the key whose values are typed without it, as the run folders of dlrm-report are.
    """

    schema: type[Section]
    command: str
    positional: str = ""
    settings: dict[str, object] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def read(self, words: Sequence[str]) -> "WordReader":
        for text in words:
            if _is_positional(text, self.positional):
                earlier = self.settings.get(self.positional)
                self.settings[self.positional] = [*(earlier if isinstance(earlier, list) else ()), text]
                continue
            try:
                word = read_word(text, self.schema)
                refuse_if(_several_values(word))
                self.add({word.key: word.values[0]})
            except HydraException:
                self.unreadable.append(text)
            except ConfigError as error:
                self.problems += error.problems
        return self

    def add(self, settings: Mapping[str, object]) -> None:
        """Adds ``settings``, whose sections may be mappings of their own."""
        for key, value in flattened(settings, self.schema):
            earlier = self.settings.pop(key, None)  # the later one comes last
            if (
                is_free_form(type_of(key, self.schema))
                and isinstance(earlier, dict)
                and isinstance(value, Mapping)
            ):
                value = {**earlier, **value}
            self.settings[key] = value

    def finish(self) -> tuple[dict[str, object], list[Problem]]:
        """The settings by key or group, and the problems of words that set nothing.

        Raises ConfigError if a word cannot be read: no key is called missing then, as it may be the one meant.
        """
        if self.unreadable:
            others = [*self.problems, *overrides_of(self.settings, self.schema, self.command)[1]]
            typed = {*self.settings}
            refuse_if([*(_unreadable(word, self.schema, typed) for word in self.unreadable), *others])
        return self.settings, self.problems


def _is_positional(text: str, key: str) -> bool:
    return bool(key) and ("=" not in text or Path(text).is_dir())


def read_word(typed: str, schema: type[Section]) -> Word:
    """The setting of a word. Raises HydraException if it cannot be read, ConfigError if it moves or deletes a key."""
    override, text = _parsed(HOME.sub(str(Path.home()), typed), schema)
    key = override.key_or_group
    if override.package is not None or override.is_delete():
        cure = f"write {key}={text.partition('=')[2] or 'null'}"
        raise ConfigError(Problem(typed, "moves or deletes a key", cure))
    if override.value_type in LISTED:
        return Word(key, list(override.sweep_iterator(transformer=Transformer.identity)), text)
    return Word(key, [] if override.is_sweep_override() else [override.value()], text)


def _parsed(text: str, schema: type[Section]) -> tuple[Override, str]:
    """The override ``text``; a text that Hydra cannot read is taken as it stands, in quotes.

    Raises HydraException where the key takes no text.
    """
    parse = OverridesParser.create().parse_override
    try:
        override = parse(text)
    except HydraException:
        text = _with_quotes(text, schema)
        override = parse(text)
    if not override.key_or_group:
        raise HydraException
    is_text = takes_texts(type_of(override.key_or_group, schema)) and not override.is_sweep_override()
    if is_text and _holds_numbers(override.value()):  # 1e3 stays a text, which 1000.0 would not be
        text = _with_quotes(text, schema)
        override = parse(text)
    return override, text


def _holds_numbers(value: object) -> bool:
    return any(map(_holds_numbers, value)) if isinstance(value, list) else isinstance(value, bool | float)


def _with_quotes(text: str, schema: type[Section]) -> str:
    """``key=value`` with quotes around the text, or the texts of the list, after the first =, if the key takes such."""
    key, equals, value = text.partition("=")
    kind = type_of(key.lstrip("+"), schema)
    if kind is None or not equals or value[:1] in ("'", '"'):
        return text
    takes_text, takes_list = (
        is_group(key, schema) if is_section(kind) else type_problem(key, each, kind) is None
        for each in ("text", ["text"])
    )
    takes_list = takes_list or is_free_form(kind)  # another command's words: train=[model=dcn]
    if takes_list and (items := re.fullmatch(r"\[([^][{}'\"]+)\]", value)):
        return f"{key}=[{','.join(quoted(item.strip()) for item in items[1].split(','))}]"
    return f"{key}={quoted(value)}" if takes_text and not value.startswith("[") else text


def _unreadable(word: str, schema: type[Section], typed: set[str]) -> Problem:
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
        kinds = {path: type_of(path, schema) for path in PATHS if path not in typed}
        meant = [path for path, kind in kinds.items() if kind is not None and not is_section(kind)]
        cure = f"did you mean {setting(meant[0], word)}?" if meant else cure
    return Problem(word, "is not key=value", cure)


def _several_values(word: Word) -> list[Problem]:
    if len(word.values) == 1:
        return []
    value = word.text.partition("=")[2]
    ways = f"a list is written {shlex.quote(f'{word.key}=[{value}]')}, one text {setting(word.key, value)}"
    return [Problem(word.text, "gives several values", f"a run with each needs --multirun, {ways}")]


@dataclass(frozen=True)
class Sweep:
    """The settings of a sweep, whose words may have several values each.

    ``keys``: the key or group of each word, with its value if it has only one, otherwise None.
    ``texts``: the words for Hydra, which combines their values. Their keys are numbered: ``sweep.0``.
    """

    keys: list[tuple[str, object]]
    texts: list[str]

    def combination(self, values: Mapping[str, object]) -> list[tuple[str, object]]:
        """(key or group, value) of each word in one run, from Hydra's ``values`` by number."""
        return [(key, values[str(number)]) for number, (key, _) in enumerate(self.keys)]


def read_sweep(
    words: Sequence[str], schema: type[Section], command: str, positional: str = ""
) -> tuple[Sweep, list[Problem]]:
    """The settings of ``words``, and the problems of those that are wrong."""
    sweep = Sweep([], [])
    problems: list[Problem] = []
    unreadable: list[Problem] = []
    named = [word for word in words if not _is_positional(word, positional)]
    if folders := [word for word in words if word not in named]:
        named.append(word_of(positional, folders))
    for text in named:
        try:
            word = read_word(text, schema)
        except HydraException:
            unreadable.append(_unreadable(text, schema, {key for key, _ in sweep.keys}))
            continue
        except ConfigError as error:
            problems += error.problems
            continue
        for value in word.values or [NUMBER]:
            problems += overrides_of({word.key: value}, schema, command)[1]
        if is_hydra_key(word.key):
            sweep.texts.append(word.text)
        else:
            sweep.texts.append(f"+sweep.{len(sweep.keys)}={word.text.partition('=')[2]}")
            sweep.keys.append((word.key, word.values[0] if len(word.values) == 1 else None))
    if unreadable:
        refuse_if([*unreadable, *problems])
    return sweep, problems
