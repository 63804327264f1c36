"""The settings of the commands that a day calls.

Typed settings come after those that they may change, and before those that are fixed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from dlrm_app.config.days import RESERVED, DaysConfig, composed, is_of
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.dates import hours_of
from dlrm_app.records import leaves
from dlrm_app.text import in_brief, json_text, without_credentials
from dlrm_app.typed import quoted

FIRST_DAY_KEYS = ("encoding", "dense", "multi_hot", "experiment")
"""Settings of dlrm-preprocess that decide the encoding. Only the first day uses them; later days reuse its encoding."""
EACH_DAY_KEYS = ("encoding.min_count", "encoding.capacity", "encoding.expire_days")
"""Keys that decide how vocabularies grow, which every day uses."""

_FREE = {
    "preprocess": ("threads", "memory_gib", "executor", "dask", "rejects"),
    "train": (
        "trainer.threads",
        "trainer.log_every_steps",
        "trainer.timeout_minutes",
        "data.prefetch_batches",
        "data.decode_workers",
        "checkpoint",
        "logging",
        "report",
        "sharding",
        "topology",
    ),
    "export": ("threads",),
}
"""Command → groups, sections and keys that may change while a day is unfinished: they change no result."""
_OF_DAYS = ("holdout", "replay", "replay_window", "full_retrain", "retrain_window", "export")
"""Keys of ``days`` that decide what a day is made of."""


def given(key: str, value: object) -> str:
    """``key=value``, quoted for Hydra if the value needs it."""
    return f"{key}={quoted(str(value))}"


def preprocess_words(config: DaysConfig, day: date, parent: Manifest | None, output: Path) -> list[str]:
    """Settings of dlrm-preprocess for the rows of ``day``.

    The rows are encoded like those of ``parent``, if it exists, with grown vocabularies.
    """
    typed = config.preprocess
    encoded = _first_words(typed, day) if parent is None else _next_words(typed, day, parent)
    rows = [
        given("input.train", config.input.files(day)),
        f"split.val={config.days.holdout}",
        "split.by=content",
    ]
    return [f"dataset={config.dataset}", *rows, *encoded, given("output", output)]


def _first_words(typed: Sequence[str], day: date) -> list[str]:
    """The ``typed`` settings, with vocabularies that can grow unless they choose another encoding."""
    choices = [word for word in typed if word.startswith(("encoding=", "experiment="))]
    if not choices:  # no target columns: their values would always come from the first day's clicks
        return ["encoding=vocab", given("encoding.day", day), "dense.target_columns=null", *typed]
    return [*([given("encoding.day", day)] if "encoding=vocab" in choices else []), *typed]


def _next_words(typed: Sequence[str], day: date, parent: Manifest) -> list[str]:
    kept = [word for word in typed if not is_of(word, FIRST_DAY_KEYS)]
    if all(column.encoding["kind"] != "vocab" for column in parent.sparse):
        return [*kept, "encoding=from_dataset", given("encoding.path", parent.folder)]
    growth = [word for word in typed if is_of(word, EACH_DAY_KEYS)]
    grown = [given("encoding.grow_from", parent.folder), given("encoding.day", day)]
    return [*kept, "encoding=vocab", *grown, *growth]


def train_words(config: DaysConfig, rows: Path, before: Path | None, output: Path) -> list[str]:
    """Settings of dlrm-train for one epoch of the dataset ``rows``. ``before``: the run that it begins with."""
    return [
        given("data.path", rows),
        *([given("warm_start.checkpoint", before)] if before else []),
        "trainer.epochs=1",
        "checkpoint.every_minutes=10",
        "checkpoint.keep_last=1",
        "checkpoint.keep_best=0",
        *config.train,
        "evaluation.test=false",
        "resume=auto",
        given("output", output),
    ]


def _plugins(config: DaysConfig) -> list[str]:
    return [word for word in config.train if word.startswith("plugins=")]


def evaluate_words(
    config: DaysConfig, rows: Path, split: str, models: Sequence[Path], output: Path
) -> list[str]:
    """Settings of dlrm-evaluate for one model or two models to compare."""
    compared = [given(key, model) for key, model in zip(("checkpoint", "against"), models, strict=False)]
    weighed = ["weights=false"] if "trainer.weights=false" in config.train else []
    rest = [given("data.path", rows), f"split={split}", given("output", output)]
    return [*compared, *_plugins(config), *weighed, *rest]


def export_words(config: DaysConfig, rows: Path, model: Path, output: Path) -> list[str]:
    """Settings of dlrm-export for ``model``, verified on the held-out rows."""
    source = [given("checkpoint", model), "which=newest", given("data.path", rows), "split=val"]
    return [*source, *_plugins(config), *config.export, given("output", output)]


def sample_words(config: DaysConfig) -> dict[str, list[str]]:
    """Command → its settings on a first day, for a check before any work."""
    folder, day = Path(config.output), date(2026, 11, 1)
    day = hours_of(day)[0] if config.input.are_hours else day
    words = {
        "preprocess": preprocess_words(config, day, None, folder),
        "train": train_words(config, folder, None, folder),
    }
    return words | ({"export": export_words(config, folder, folder, folder)} if config.days.export else {})


def settings_of(config: DaysConfig, words: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Key → value of all settings that decide the result of a day, YAML files included. ``words``: by command.

    Paths that dlrm-days gives itself, and settings that change no result, are left out.
    """
    of_days = asdict(config.days)
    settings = {"input.days": config.input.days} | {f"days.{key}": of_days[key] for key in _OF_DAYS}
    for command, typed in words.items():
        whole = _by_name(composed(command, typed))
        left_out = (*(key for key in RESERVED[command] if key != "dataset"), *_FREE[command])
        settings |= {f"{command}.{key}": value for key, value in leaves(whole) if not is_of(key, left_out)}
    plain: dict[str, Any] = json.loads(without_credentials(json_text(settings)))
    return plain


def _by_name(value: Any) -> Any:
    """Turns lists of named mappings, such as columns, into mappings by name, so that a change names what changed."""
    if isinstance(value, dict):
        return {key: _by_name(part) for key, part in value.items()}
    if isinstance(value, list) and value and all(isinstance(part, dict) and "name" in part for part in value):
        named = {str(part["name"]): _by_name(part) for part in value}
        order = {"order": list(named)}
        return named | order if len(named) == len(value) else value
    return value


def of_later_days(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` without those that only the first day uses."""
    first, each = ([f"preprocess.{key}" for key in keys] for keys in (FIRST_DAY_KEYS, EACH_DAY_KEYS))
    return {key: value for key, value in settings.items() if is_of(key, each) or not is_of(key, first)}


def setting_changes(
    before: Mapping[str, Any], now: Mapping[str, Any], words: Mapping[str, Sequence[str]]
) -> list[str]:
    """``key: value then → value now`` for each setting that differs.

    ``words``: by command, the words that ``now`` was composed of.
    """
    keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    return [
        f"{key}: {in_brief(before.get(key))} → {in_brief(now.get(key)) if _is_given(key, words) else 'not given'}"
        for key in keys
    ]


def _is_given(key: str, words: Mapping[str, Sequence[str]]) -> bool:
    """True if one of ``words`` gives the setting ``key``, such as train.model.kind: itself, its group, or a recipe."""
    command, _, setting = key.partition(".")
    names = [
        word.partition("=")[0].lstrip("+") for word in words.get(command, ()) if word != "experiment=null"
    ]
    return command not in words or "experiment" in names or is_of(setting, names)
