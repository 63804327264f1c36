"""The configuration of dlrm-days. Values and their explanations are in conf/days.yaml."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime, timedelta
from typing import Annotated, Any

from msgspec import Meta

from dlrm_app.config.compose import compose_config
from dlrm_app.config.datasets import DatasetConfig, PreprocessConfig
from dlrm_app.config.export import ExportConfig
from dlrm_app.config.overrides import Settings
from dlrm_app.config.schema import REQUIRED, Section, known_keys, required
from dlrm_app.config.train import TablesConfig, TrainConfig
from dlrm_app.config.values import Count, NonNegative, Share, Whole
from dlrm_app.config.words import WordReader
from dlrm_app.dates import Hour, day_of, hours_of
from dlrm_app.errors import ConfigError, Problem, refuse_if
from dlrm_app.records import Json

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
"""Commands with settings typed after their name (``train.model=dcn``) → keys that dlrm-days sets itself."""
_TWO_YEARS = 731
RELATIVE = {"yesterday": 1, "today": 0}
"""Word for a day → the number of days ago."""


@dataclass(slots=True)
class DaysInputConfig(Section):
    days: str = REQUIRED

    @property
    def are_hours(self) -> bool:
        """True if each hour has files of its own, and counts as a day."""
        return "{hour" in self.days

    def files(self, day: date) -> str:
        hour = _TwoDigits(day.hour) if isinstance(day, Hour) else None
        return self.days.format(
            day=date(day.year, day.month, day.day), **({} if hour is None else {"hour": hour})
        )

    def rules(self) -> Iterator[Problem]:
        dates = [date(2026, 1, 1) + timedelta(number) for number in range(_TWO_YEARS)]
        days = [hour for day in dates for hour in hours_of(day)] if self.are_hours else dates
        try:
            texts = {self.files(day) for day in days}
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            texts = set()
        if len(texts) < len(days) and self.days:  # an empty value is reported already
            rule = "must name the files of a day, with {day} for its date, and those of no other day"
            cure = (
                "as logs/dt={day}/*, or {day:%Y%m%d} for 20261101; by the hour as logs/dt={day}/hour={hour}/*"
            )
            yield Problem("days", rule, cure, self.days)


class _TwoDigits(int):
    """A number that is written with two digits unless a format says otherwise."""

    def __format__(self, form: str) -> str:
        return int.__format__(self, form or "02d")


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
        if self.on_held is not None and not self.command_on_held:
            rule = "must be a command: words as in a shell, or a list of texts"
            cure = "as 'mail -s held ops@example.com', or [notify, --page]"
            yield Problem("on_held", rule, cure, self.on_held)
        for key, day in [("from", self.from_), ("to", self.to), *(("accept", day) for day in self.accept)]:
            if day and _date(day) is None:
                yield Problem(key, "must be a date such as 2026-11-01, yesterday or today", value=day)
        first, last = _date(self.from_), _date(self.to)
        if first and last and last.isoformat() < first.isoformat()[:10] and self.to not in RELATIVE:
            yield Problem("to", f"must not lie before days.from ({first})", value=self.to)

    def days(self) -> list[date]:
        """The days from the first to the last; empty if the last is before the first."""
        first, last = _date(self.from_), _date(self.to)
        assert first is not None
        assert last is not None
        return [first + timedelta(number) for number in range((last.toordinal() - first.toordinal()) + 1)]

    def hours(self) -> list[date]:
        """The hours from the first, of a day or an hour, to the last; with ``to=today`` to the last whole one."""
        first, last = _date(self.from_), _date(self.to)
        assert first is not None
        begin = first.isoformat()
        end = last.isoformat() if isinstance(last, Hour) else "9999"
        running = f"{datetime.now():%Y-%m-%dT%H}" if self.to == "today" else "9999"  # local time, like cron
        found: list[date] = []
        for day in self.days():
            hours = hours_of(date(day.year, day.month, day.day))
            found += [each for each in hours if begin <= str(each) <= end and str(each) < running]
        return found

    def is_accepted(self, day: date) -> bool:
        """True if ``accept`` names the day, or the hour or its day."""
        return day.isoformat() in self.accepted or day.isoformat()[:10] in self.accepted

    @property
    def accepted(self) -> set[str]:
        return {found.isoformat() for day in self.accept if (found := _date(day)) is not None}

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
    max_weight_change: Factor = REQUIRED
    min_effective_rows: Share = REQUIRED
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
        return day_of(text)
    except ValueError:
        return None


@dataclass(slots=True)
class DaysConfig(Section):
    input: DaysInputConfig = field(default_factory=DaysInputConfig)
    dataset: str = REQUIRED
    output: str = REQUIRED
    days: DaysSettings = field(default_factory=DaysSettings)
    gate: GateConfig = field(default_factory=GateConfig)
    preprocess: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    export: dict[str, Any] = field(default_factory=dict)

    def list_days(self) -> list[date]:
        """The days to learn, or the hours if each has files of its own."""
        return self.days.hours() if self.input.are_hours else self.days.days()

    def rules(self) -> Iterator[Problem]:
        if not self.output:
            yield required("output")
        if not self.input.are_hours:
            for key, day in (("from", self.days.from_), ("to", self.days.to)):
                if day and "T" in day:
                    cure = (
                        "give a date, or name the files of an hour: input.days='logs/dt={day}/hour={hour}/*'"
                    )
                    yield Problem(f"days.{key}", "is an hour, and the files are of days", cure, day)
        for command, keys in RESERVED.items():
            for key in getattr(self, command):
                if belongs_to(key, keys):
                    rule = "is what dlrm-days gives each day itself"
                    yield Problem(f"{command}.{key}", rule, "leave it out")
        if self.export and not self.days.export:
            yield Problem("export", "settings are for days.export=true", "add that, or leave them out")


SCHEMAS: dict[str, type[Any]] = {"preprocess": PreprocessConfig, "train": TrainConfig, "export": ExportConfig}
"""Command → its schema, for the commands whose settings dlrm-days takes."""


def described_log(settings: Settings) -> DatasetConfig:
    """The description of the log in ``settings`` of dlrm-preprocess. Raises ConfigError."""
    return compose_config("preprocess", PreprocessConfig, settings).dataset


def tables_to_begin(settings: Settings) -> tuple[TablesConfig, Sequence[str]]:
    """The tables in ``settings`` of dlrm-train, and its warm_start.allow. Raises ConfigError."""
    config = compose_config("train", TrainConfig, settings)
    return config.tables, config.warm_start.allow


def composed_json(command: str, settings: Settings) -> Json:
    """The whole configuration of ``dlrm-<command>`` with ``settings``, the contents of YAML files included.

    Raises ConfigError.
    """
    return asdict(compose_config(command, SCHEMAS[command], settings))


def belongs_to(key: str, keys: Sequence[str]) -> bool:
    """True if ``key`` belongs to one of ``keys``, which may be groups, sections or keys."""
    return f"{key}.".startswith(tuple(f"{each}." for each in keys))


_GIVEN_AS = {"split.val": "days.holdout", "input.train": "input.days"}
"""Key of another command → the key of dlrm-days that it comes from."""


def as_given(problem: Problem, command: str) -> Problem:
    """A ``problem`` of another command with the key that is typed for dlrm-days: train.model.kind for model.kind."""
    key, equals, value = problem.key.partition("=")
    is_known = command in SCHEMAS and key in known_keys(SCHEMAS[command])
    if key in _GIVEN_AS or not is_known or belongs_to(key, RESERVED[command]):
        return replace(problem, key=f"{_GIVEN_AS.get(key, key)}{equals}{value}")
    return problem.within(command, ".")


def regrouped(settings: Settings) -> dict[str, object]:
    """The settings of dlrm-days, with those of other commands (``train.model``) in a mapping for each command.

    They may also be given as a list of words: ``train=[model=dcn]``. Raises ConfigError for words that set nothing.
    """
    rest: dict[str, object] = {}
    readers = {command: WordReader(schema, command) for command, schema in SCHEMAS.items()}
    for key, value in settings.items():
        command, _, setting = key.partition(".")
        if command in readers and setting:
            readers[command].add({setting: value})
        elif command in readers and isinstance(value, list) and all(isinstance(word, str) for word in value):
            readers[command].read(value)
        elif command in readers and isinstance(value, Mapping):
            readers[command].add(value)
        else:
            rest[key] = value
    problems: list[Problem] = []
    for command, reader in readers.items():
        try:
            found, wrong = reader.finish()
        except ConfigError as error:
            found, wrong = {}, error.problems
        problems += [each.within(command, ".") for each in wrong]
        if found:
            rest[command] = found
    refuse_if(problems)
    return rest
