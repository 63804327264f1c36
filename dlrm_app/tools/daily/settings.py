"""The settings of the commands that a day consists of.

Typed settings come after those that they may change, and before those that are fixed.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date
from pathlib import Path

from dlrm_app.config.days import RESERVED, DaysConfig, as_given, belongs_to, composed_json
from dlrm_app.config.overrides import Settings
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.dates import hours_of
from dlrm_app.errors import DlrmError, Problem
from dlrm_app.records import leaves
from dlrm_app.text import in_brief, json_text, without_credentials

Typed = dict[str, object]
"""Settings: key or group → value."""
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
"""Keys of ``days`` that decide which rows a day is made of."""


def preprocess_settings(config: DaysConfig, day: date, parent: Manifest | None, output: Path) -> Typed:
    """Settings of dlrm-preprocess for the rows of ``day``.

    The rows are encoded like those of ``parent``, if it exists, with grown vocabularies.
    """
    typed = config.preprocess
    encoded = _first_settings(typed, day) if parent is None else _next_settings(typed, day, parent)
    rows = {"input.train": config.input.files(day), "split.val": config.days.holdout, "split.by": "content"}
    return {"dataset": config.dataset, **rows, **encoded, "output": str(output)}


def _first_settings(typed: Settings, day: date) -> Typed:
    """The ``typed`` settings, with vocabularies that can grow unless they choose another encoding."""
    if "encoding" not in typed and "experiment" not in typed:
        # no target columns: their values would always come from the first day's clicks
        return {"encoding": "vocab", "encoding.day": str(day), "dense.target_columns": None, **typed}
    return {**({"encoding.day": str(day)} if typed.get("encoding") == "vocab" else {}), **typed}


def _next_settings(typed: Settings, day: date, parent: Manifest) -> Typed:
    kept = {key: value for key, value in typed.items() if not belongs_to(key, FIRST_DAY_KEYS)}
    if all(column.encoding["kind"] != "vocab" for column in parent.sparse):
        return {**kept, "encoding": "from_dataset", "encoding.path": str(parent.folder)}
    growth = {key: value for key, value in typed.items() if belongs_to(key, EACH_DAY_KEYS)}
    grown = {"encoding.grow_from": str(parent.folder), "encoding.day": str(day)}
    return {**kept, "encoding": "vocab", **grown, **growth}


def train_settings(config: DaysConfig, rows: Path, before: Path | None, output: Path) -> Typed:
    """Settings of dlrm-train for one epoch of the dataset ``rows``. ``before``: the run that it begins with."""
    return {
        "data.path": str(rows),
        **({"warm_start.checkpoint": str(before)} if before else {}),
        "trainer.epochs": 1,
        "checkpoint.every_minutes": 10,
        "checkpoint.keep_last": 1,
        "checkpoint.keep_best": 0,
        **config.train,
        "evaluation.test": False,
        "resume": "auto",
        "output": str(output),
    }


def _plugins(config: DaysConfig) -> Typed:
    return {"plugins": config.train["plugins"]} if "plugins" in config.train else {}


def evaluate_settings(
    config: DaysConfig, rows: Path, split: str, models: Sequence[Path], output: Path
) -> Typed:
    """Settings of dlrm-evaluate for one model or two models to compare."""
    compared = {key: str(model) for key, model in zip(("checkpoint", "against"), models, strict=False)}
    unweighted = {"weights": False} if config.train.get("trainer.weights") is False else {}
    rest = {"data.path": str(rows), "split": split, "output": str(output)}
    return {**compared, **_plugins(config), **unweighted, **rest}


def export_settings(config: DaysConfig, rows: Path, model: Path, output: Path) -> Typed:
    """Settings of dlrm-export for ``model``, verified on the held-out rows."""
    source = {"checkpoint": str(model), "which": "newest", "data.path": str(rows), "split": "val"}
    return {**source, **_plugins(config), **config.export, "output": str(output)}


def sample_settings(config: DaysConfig) -> dict[str, Typed]:
    """Command → its settings on a first day, for a check before any work."""
    folder, day = Path(config.output), date(2026, 11, 1)
    day = hours_of(day)[0] if config.input.are_hours else day
    settings = {
        "preprocess": preprocess_settings(config, day, None, folder),
        "train": train_settings(config, folder, None, folder),
    }
    exported = {"export": export_settings(config, folder, folder, folder)} if config.days.export else {}
    return settings | exported


@contextmanager
def keys_as_typed(command: str) -> Iterator[None]:
    """Raises DlrmErrors of ``command`` with the keys that are typed for dlrm-days."""
    try:
        yield
    except DlrmError as error:
        problems = [as_given(each, command) for each in error.problems]
        if command in RESERVED:
            cure = f"its settings are typed as {command}.KEY=VALUE"
            problems.append(Problem(f"dlrm-{command}", "failed", cure))
        raise type(error)(*problems) from error


def settings_of(config: DaysConfig, called: Mapping[str, Settings]) -> dict[str, object]:
    """Key → value of all settings that decide the result of a day, YAML files included.

    ``called``: command → the settings that it is called with.

    Paths that dlrm-days gives itself, and settings that change no result, are left out.
    """
    of_days = asdict(config.days)
    settings = {"input.days": config.input.days} | {f"days.{key}": of_days[key] for key in _OF_DAYS}
    for command, typed in called.items():
        whole = {key: _by_name(value) for key, value in composed_json(command, typed).items()}
        left_out = (*(key for key in RESERVED[command] if key != "dataset"), *_FREE[command])
        settings |= {
            f"{command}.{key}": value for key, value in leaves(whole) if not belongs_to(key, left_out)
        }
    plain: dict[str, object] = json.loads(without_credentials(json_text(settings)))
    return plain


def _by_name(value: object) -> object:
    """Turns lists of named mappings, such as columns, into mappings by name, so that a change names what changed."""
    if isinstance(value, dict):
        return {key: _by_name(part) for key, part in value.items()}
    if isinstance(value, list) and value and all(isinstance(part, dict) and "name" in part for part in value):
        named = {str(part["name"]): _by_name(part) for part in value}
        order = {"order": list(named)}
        return named | order if len(named) == len(value) else value
    return value


def of_later_days(settings: Mapping[str, object]) -> dict[str, object]:
    """``settings`` without those that only the first day uses."""
    first, each = ([f"preprocess.{key}" for key in keys] for keys in (FIRST_DAY_KEYS, EACH_DAY_KEYS))
    return {
        key: value for key, value in settings.items() if belongs_to(key, each) or not belongs_to(key, first)
    }


def setting_changes(
    before: Mapping[str, object], now: Mapping[str, object], called: Mapping[str, Settings]
) -> list[str]:
    """``key: value then → value now`` for each setting that differs.

    ``called``: command → the settings that ``now`` was composed of.
    """
    keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    return [
        f"{key}: {in_brief(before.get(key))} → {in_brief(now.get(key)) if _is_given(key, called) else 'not given'}"
        for key in keys
    ]


def _is_given(key: str, called: Mapping[str, Settings]) -> bool:
    """True if ``called`` gives the setting ``key``, such as train.model.kind: itself, its group, or a recipe."""
    command, _, setting = key.partition(".")
    given = called.get(command, {})
    return command not in called or given.get("experiment") is not None or belongs_to(setting, [*given])
