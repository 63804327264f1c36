"""The configuration of dlrm-days. Values and their explanations are in conf/days.yaml."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from typing import Annotated, Any

from msgspec import Meta

from dlrm_app.config.compose import compose_config
from dlrm_app.config.datasets import PreprocessConfig
from dlrm_app.config.export import ExportConfig
from dlrm_app.config.schema import REQUIRED, Section, known_keys, required
from dlrm_app.config.train import TrainConfig
from dlrm_app.config.values import Count, NonNegative, Share, Whole
from dlrm_app.errors import Problem
from dlrm_app.typed import quoted

RESERVED = {
    "preprocess": (
        "dataset",
        "input",
        "split",
        "encoding.grow_from",
        "encoding.day",
        "encoding.path",
        "output",
    ),
    "train": ("data.path", "warm_start.checkpoint", "resume", "output", "evaluation.test"),
    "export": ("checkpoint", "which", "data.path", "split", "output"),
}
"""Commands whose settings are typed after their name (``train.model=dcn``) →
groups, sections and keys that dlrm-days sets itself.
"""
_TWO_YEARS = 731
RELATIVE = {"yesterday": 1, "today": 0}
"""Word for a day → the number of days ago."""


@dataclass(slots=True)
class DaysInputConfig(Section):
    days: str = REQUIRED

    def rules(self) -> Iterator[Problem]:
        """Problems: ``days`` without a place for the day, or the same files for two days."""
        try:
            texts = {
                self.days.format(day=date(2026, 1, 1) + timedelta(number)) for number in range(_TWO_YEARS)
            }
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            texts = set()
        if len(texts) < _TWO_YEARS and self.days:  # an empty value is reported already
            rule = "must name the files of a day, with {day} for its date, and those of no other day"
            yield Problem("days", rule, "as logs/dt={day}/*, or {day:%Y%m%d} for 20261101", self.days)


@dataclass(slots=True)
class DaysSettings(Section):
    from_: str = REQUIRED
    to: str = REQUIRED
    holdout: Annotated[float, Meta(gt=0, le=0.5)] = REQUIRED
    replay: Share = REQUIRED
    replay_window: Whole = REQUIRED
    full_retrain: Count | None = None
    retrain_window: Count = REQUIRED
    accept: list[str] = field(default_factory=list)
    export: bool = REQUIRED
    verify_files: bool = REQUIRED
    keep: Count = REQUIRED
    on_held: Any = None

    def rules(self) -> Iterator[Problem]:
        """Problems: invalid dates, or dates in the wrong order; a command that is no command."""
        if self.on_held is not None and not self.command_on_held:
            rule = "must be a command: words as in a shell, or a list of texts"
            yield Problem(
                "on_held", rule, "as 'mail -s held ops@example.com', or [notify, --page]", self.on_held
            )
        for key, day in [("from", self.from_), ("to", self.to), *(("accept", day) for day in self.accept)]:
            if day and _date(day) is None:
                yield Problem(key, "must be a date such as 2026-11-01, yesterday or today", value=day)
        first, last = _date(self.from_), _date(self.to)
        if first and last and last < first and self.to not in RELATIVE:
            yield Problem("to", f"must not lie before days.from ({first})", value=self.to)

    def days(self) -> list[date]:
        """The days from the first to the last; empty if the last is before the first."""
        first, last = _date(self.from_), _date(self.to)
        assert first is not None
        assert last is not None
        return [first + timedelta(number) for number in range((last - first).days + 1)]

    def is_accepted(self, day: date) -> bool:
        """True if ``accept`` names the day."""
        return day in map(_date, self.accept)

    @property
    def command_on_held(self) -> list[str]:
        """The words of ``on_held``; none if it is null, or no command."""
        if isinstance(self.on_held, list):
            return self.on_held if all(isinstance(word, str) for word in self.on_held) else []
        try:
            return shlex.split(self.on_held) if isinstance(self.on_held, str) else []
        except ValueError:
            return []

    @property
    def num_kept(self) -> int:
        """The number of days whose datasets and models are kept: ``keep``, or the longest window if that is larger."""
        retrained = self.retrain_window if self.full_retrain else 1
        return max(self.keep, self.replay_window + 1, retrained + 1)


Factor = Annotated[float, Meta(ge=1, le=1e6)]


@dataclass(slots=True)
class GateConfig(Section):
    window: Count = REQUIRED
    min_rows: Share = REQUIRED
    max_click_change: Factor = REQUIRED
    max_missing_change: Share = REQUIRED
    max_unseen_rise: Share = REQUIRED
    max_shift: NonNegative = REQUIRED
    max_id_shift: NonNegative = REQUIRED
    max_known_rows: Share = REQUIRED
    min_hour_rows: Share = REQUIRED
    max_auc_drop: Share = REQUIRED
    max_ne_rise: NonNegative = REQUIRED
    max_calibration_change: Factor = REQUIRED
    max_logloss_rise: NonNegative = REQUIRED
    max_calibration: Factor = REQUIRED


def _date(text: str) -> date | None:
    if text in RELATIVE:
        return date.today() - timedelta(RELATIVE[text])  # the machine's local date, like cron
    try:
        return date.fromisoformat(text) if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else None
    except ValueError:
        return None


@dataclass(slots=True)
class DaysConfig(Section):
    input: DaysInputConfig = field(default_factory=DaysInputConfig)
    dataset: str = REQUIRED
    output: str = REQUIRED
    days: DaysSettings = field(default_factory=DaysSettings)
    gate: GateConfig = field(default_factory=GateConfig)
    preprocess: list[str] = field(default_factory=list)
    train: list[str] = field(default_factory=list)
    export: list[str] = field(default_factory=list)

    def rules(self) -> Iterator[Problem]:
        """Problems: no output, or settings that dlrm-days sets itself for each day."""
        if not self.output:
            yield required("output")
        for command, keys in RESERVED.items():
            for word in getattr(self, command):
                if is_of(word, keys):
                    key = f"{command}.{word.partition('=')[0]}"
                    yield Problem(key, "is what dlrm-days gives each day itself", "leave it out")
        if self.export and not self.days.export:
            yield Problem("export", "settings are for days.export=true", "add that, or leave them out")


_SCHEMAS: dict[str, type[Any]] = {
    "preprocess": PreprocessConfig,
    "train": TrainConfig,
    "export": ExportConfig,
}


def composed(command: str, words: Sequence[str]) -> dict[str, Any]:
    """The whole configuration of ``dlrm-<command>`` with ``words``, the contents of YAML files included.

    Raises ConfigError.
    """
    return asdict(compose_config(command, _SCHEMAS[command], words))


def is_of(word: str, keys: Sequence[str]) -> bool:
    """True if the setting ``word`` belongs to one of ``keys``, which may be groups, sections or keys."""
    return f"{word.partition('=')[0].lstrip('+')}.".startswith(tuple(f"{key}." for key in keys))


_GIVEN_AS = {"split.val": "days.holdout", "input.train": "input.days"}
"""Key of another command → the key of dlrm-days that it comes from."""
_DOTTED = re.compile(r"(?<![\w./-])[a-z_]+(?:\.[a-z_]+)+(?![\w/])")


def as_typed(message: str) -> str:
    """A ``message`` of another command with keys as they are typed for
    dlrm-days: ``train.model.kind`` for ``model.kind``.
    """

    def named(found: re.Match[str]) -> str:
        key = found[0]
        commands = [name for name in _SCHEMAS if key in known_keys(_SCHEMAS[name])]
        if key in _GIVEN_AS or not commands or is_of(key, RESERVED[commands[0]]):
            return _GIVEN_AS.get(key, key)
        return f"{commands[0]}.{key}"

    return _DOTTED.sub(named, message)


def with_words(words: Sequence[str]) -> list[str]:
    """The words after ``dlrm-days``, with other commands' settings
    (``train.model=dcn``) joined into one ``train=[…]`` each.

    The other command can then read them itself, with its groups, recipes and YAML files.
    """
    rest: list[str] = []
    given: dict[str, list[str]] = {}
    for word in words:
        command, _, setting = word.partition(".")
        if command in RESERVED and "=" in setting:
            given.setdefault(command, []).append(quoted(setting))
        else:
            rest.append(word)
    return [*rest, *(f"{command}=[{','.join(settings)}]" for command, settings in given.items())]
