"""The configuration of dlrm-preprocess. Values and their explanations are in conf/preprocess.yaml."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from importlib.util import find_spec
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeGuard

from msgspec import Meta

from dlrm_app.config.schema import REQUIRED, RejectsConfig, Section, required
from dlrm_app.config.values import (
    SPLITS,
    Minutes,
    Seed,
    Share,
    Split,
    Threads,
    VectorType,
    Whole,
    file_problems,
)
from dlrm_app.dates import day_number
from dlrm_app.errors import Problem
from dlrm_app.typed import install_command

TRANSFORMS = ("log1p", "log3", "standardize", "none")
AUTO = "auto"
"""The value of settings that are chosen from a sample of the rows (``dlrm_app.preprocessing.choose``)."""
CHOSEN_KEYS = ("num_embeddings", "min_count", "top_k", "shared")
"""Keys of an encoding that can be combined with ``auto``."""
VOCAB_KEYS = ("min_count", "top_k", "shared", "grow_from", "day", "capacity", "expire_days")
OWNERS = {"num_embeddings": "hash", **dict.fromkeys(VOCAB_KEYS, "vocab"), "path": "from_dataset"}
"""Key of an encoding → the kind that it belongs to."""
KINDS = (AUTO, *OWNERS.values())
SPLITS_BY = ("end", "content")
"""The values of ``split.by`` that do not name a column."""
TIME_KEYS = ("val_from", "test_from", "zone", "missing")
"""Keys of splits by a time column."""


@dataclass(slots=True)
class DatasetConfig(Section):
    """The format of a raw log. ``dlrm_app.logs.spec`` describes the entries of ``columns``."""

    name: str = REQUIRED
    delimiter: str = "\t"
    quote: str | None = None
    line_breaks: bool = False
    header: bool = False
    null_values: list[str | None] | None = None
    label: str | None = None
    labels: list[Any] | None = None
    published_rows: dict[str, Whole] | None = None
    negatives_kept: Any = None
    columns: list[Any] = REQUIRED
    derived: list[Any] | None = None

    def rules(self) -> Iterator[Problem]:
        if self.line_breaks and self.quote is None:
            yield Problem(
                "line_breaks", "needs dataset.quote, within which they are", "such as quote: '\"'", True
            )
        given = self.negatives_kept
        shares = given if isinstance(given, dict) else {"all": given}
        names_splits = not isinstance(given, dict) or {*given} <= {*SPLITS}
        if given is not None and not (names_splits and all(map(_is_share, shares.values()))):
            rule = (
                "must be a share above 0 and up to 1, or one for each of train, val and test that was sampled"
            )
            yield Problem("negatives_kept", rule, "such as 0.1, or {train: 0.1}", given)

    def kept_shares(self) -> dict[str, float]:
        """The share of negatives that each split has kept in the log, of splits that were sampled."""
        given = self.negatives_kept
        shares = given if isinstance(given, dict) else dict.fromkeys(SPLITS, given or 1.0)
        return {name: float(share) for name, share in shares.items() if share < 1}


def _is_share(value: object) -> bool:
    return _is_number(value) and 0 < value <= 1


@dataclass(slots=True)
class SamplingConfig(Section):
    negatives: Annotated[float, Meta(gt=0, le=1)] | None = None


@dataclass(slots=True)
class InputConfig(Section):
    """A file, a glob, or a list of them, for each split."""

    train: Any = None
    val: Any = None
    test: Any = None
    unlabelled: list[Split] = field(default_factory=list)
    by_position: bool = REQUIRED

    def rules(self) -> Iterator[Problem]:
        for name in SPLITS:
            yield from file_problems(name, getattr(self, name))
        if self.train is None and self.val is None and self.test is None:
            cure = "give input.train=FILE (and input.val, input.test, or split.val, split.test)"
            yield Problem("", "names no files", cure)


@dataclass(slots=True)
class SplitConfig(Section):
    val: Share | None = None
    test: Share | None = None
    by: str = REQUIRED
    val_from: str | None = None
    test_from: str | None = None
    zone: str | None = None
    missing: Split | None = None

    @property
    def is_by_time(self) -> bool:
        """True if ``by`` names a time column."""
        return self.by not in SPLITS_BY

    @property
    def keys(self) -> dict[str, str]:
        """Split that is cut off the training input → the key that asks for it."""
        given = {"val": self.val, "test": self.test}
        asked = {name: f"split.{name}" for name, share in given.items() if share is not None}
        moments = {"val": self.val_from, "test": self.test_from}
        return asked | {name: f"split.{name}_from" for name, moment in moments.items() if moment is not None}

    def rules(self) -> Iterator[Problem]:
        if not self.is_by_time:
            rule = f"is for splits by a time column, this is split.by={self.by}"
            yield from self.needless(*TIME_KEYS, rule=rule, cure="give split.by=COLUMN, or leave it out")
            return
        for name, share, moment in (("val", self.val, self.val_from), ("test", self.test, self.test_from)):
            if share is not None and moment is not None:
                yield Problem(f"{name}_from", f"and split.{name} both make the {name} split", "give only one")
            if moment is not None and not _is_moment(moment):
                cure = "such as 2026-11-20, 2026-11-20T06:30 or 2026-11-20T06:30+01:00"
                yield Problem(f"{name}_from", "must be a date or a moment", cure, moment)
        if not self.keys:
            cure = "give split.val=0.1 or split.val_from=2026-11-20, and the same for test"
            yield Problem("by", "divides the rows by time, and no split is to be cut off", cure, self.by)
        if self.missing not in (None, "train", *self.keys):
            yield Problem("missing", f"must be train or one of {', '.join(self.keys)}", value=self.missing)


def _is_moment(text: str) -> bool:
    try:
        datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return False
    return True


@dataclass(slots=True)
class EncodingConfig(Section):
    kind: Literal["auto", "hash", "vocab", "from_dataset"] = REQUIRED
    num_embeddings: Any = None
    min_count: Any = None
    top_k: Any = None
    shared: Any = None
    crosses: Any = None
    grow_from: str | None = None
    day: Any = None
    capacity: Any = None
    expire_days: Annotated[int, Meta(ge=1, le=1 << 30)] | None = None
    path: str | None = None

    def rules(self) -> Iterator[Problem]:
        kind = self.kind
        hashes_some = kind == "vocab" and isinstance(self.num_embeddings, dict)
        free = {
            AUTO: CHOSEN_KEYS,
            "vocab": ("num_embeddings",) * hashes_some,
            "from_dataset": ("min_count",),
        }.get(kind, ())
        for key, owner in OWNERS.items():
            if kind in KINDS and kind != owner and key not in free:
                yield from self.needless(key, rule=f"is for encoding={owner}, this is encoding={kind}")
        if kind == "hash" and self.num_embeddings is None:
            cure = "one number, or one for each sparse column"
            yield Problem("num_embeddings", "is needed by encoding=hash", cure)
        source = {"from_dataset": "path", "vocab": "grow_from"}.get(kind, "")
        folder = getattr(self, source, None)
        if kind == "from_dataset" and not folder:
            cure = "the folder of the dataset whose ids to keep"
            yield Problem("path", "is needed by encoding=from_dataset", cure)
        if self.day is not None and not _is_day(self.day):
            cure = "such as 2026-11-02; or a whole number, such as 2"
            yield Problem("day", "must be a date", cure, self.day)
        of_source = f"comes with the dataset at encoding.{source}"
        if folder and self.crosses != AUTO:
            yield from self.needless("crosses", rule=of_source)
        if kind == "vocab" and folder:
            yield from self.needless("shared", "num_embeddings", rule=of_source)
        if kind == "vocab" and (folder or self.day is not None):
            rule = "is for vocabularies that do not grow"
            yield from self.needless("top_k", rule=rule, cure="give encoding.capacity")
        elif kind == "vocab":
            rule = "is for vocabularies that grow"
            cure = "give encoding.day of the first day, or encoding.grow_from of the next ones"
            yield from self.needless("capacity", "expire_days", rule=rule, cure=cure)


def _is_day(day: object) -> bool:
    """True for a date after 1970-01-01 or a number from 1 on."""
    try:
        return not isinstance(day, bool | float) and 0 < day_number(str(day)) < 1 << 30
    except ValueError:
        return False


@dataclass(slots=True)
class DenseConfig(Section):
    transform: Any = REQUIRED
    bucket_columns: Any = None
    bucket_boundaries: Any = REQUIRED
    target_columns: Any = None

    def rules(self) -> Iterator[Problem]:
        """Problems: unknown transforms, and boundaries that do not rise. Both may be mappings by column name."""
        for which, value in _by_column(self.transform):
            if value not in (*TRANSFORMS, AUTO) and not _is_standardize(value):
                yield Problem(f"transform{which}", f"must be {', '.join(TRANSFORMS)} or {AUTO}", value=value)
        for which, value in _by_column(self.bucket_boundaries):
            if value != AUTO and not _are_rising(value):
                rule = "must be rising numbers, at least one"
                yield Problem(f"bucket_boundaries{which}", rule, value=value)


def _by_column(value: object) -> list[tuple[str, object]]:
    """(the column in words, its value) for each entry of a mapping by column name; ("", value) for other values."""
    if not isinstance(value, dict):
        return [("", value)]
    return [(f" of {name}", each) for name, each in value.items()]


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_standardize(value: object) -> bool:
    """True for a standardize with given moments, as in a manifest."""
    match value:
        case {"kind": "standardize", "mean": mean, "deviation": deviation, **rest}:
            return not rest and _is_number(mean) and _is_number(deviation) and deviation > 0
    return False


def _are_rising(value: object) -> bool:
    if not isinstance(value, list) or not value or not all(map(_is_number, value)):
        return False
    return all(low < high for low, high in pairwise(value))


@dataclass(slots=True)
class VectorsConfig(Section):
    dtype: VectorType = REQUIRED


@dataclass(slots=True)
class MultiHotConfig(Section):
    sizes: Any = None


@dataclass(slots=True)
class LayoutConfig(Section):
    unit_mib: Annotated[int, Meta(ge=1, le=256)] = REQUIRED
    row_group_rows: Annotated[int, Meta(ge=1, le=1 << 20)] = REQUIRED
    shuffled_shard_rows: Annotated[int, Meta(ge=1, le=1 << 24)] = REQUIRED


@dataclass(slots=True)
class DaskConfig(Section):
    """The ``address`` of a running scheduler."""

    address: str | None = None

    def executor_rules(self, executor: str) -> Iterator[Problem]:
        """Problems of ``executor``, a missing package included."""
        if executor != "dask" and self.address is not None:
            yield Problem("dask.address", "is for executor=dask", "add that, or leave it out")
        if executor == "dask" and find_spec("distributed") is None:
            yield Problem("executor=dask", "needs the package distributed", install_command("dask"))
        if executor == "dask" and self.address is None:
            cure = "give dask.address=tcp://HOST:8786 of a running scheduler"
            yield Problem("executor=dask", "needs dask.address", cure)


@dataclass(slots=True)
class PreprocessConfig(Section):
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    input: InputConfig = field(default_factory=InputConfig)
    split: SplitConfig = field(default_factory=SplitConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    encoding: EncodingConfig = field(default_factory=EncodingConfig)
    dense: DenseConfig = field(default_factory=DenseConfig)
    multi_hot: MultiHotConfig = field(default_factory=MultiHotConfig)
    vectors: VectorsConfig = field(default_factory=VectorsConfig)
    keep: list[str] = field(default_factory=list)
    shuffle: Literal["none", "block", "full"] = REQUIRED
    seed: Seed = REQUIRED
    rejects: RejectsConfig = field(default_factory=RejectsConfig)
    layout: LayoutConfig = field(default_factory=LayoutConfig)
    threads: Threads | None = None
    memory_gib: Annotated[float, Meta(ge=0.001, le=1 << 20)] = REQUIRED
    executor: Literal["local", "dask"] = REQUIRED
    dask: DaskConfig = field(default_factory=DaskConfig)
    ranks: Annotated[int, Meta(ge=1)] | None = None
    timeout_minutes: Minutes = REQUIRED
    output: str = REQUIRED

    def rules(self) -> Iterator[Problem]:
        fractions = {"val": self.split.val, "test": self.split.test}
        for name, key in self.split.keys.items():
            if getattr(self.input, name) is not None:
                yield Problem(key, f"and input.{name} both make the {name} split", "give only one")
            if self.input.train is None:
                yield Problem(key, "takes rows of input.train, which is not given")
            if name in self.input.unlabelled:
                rule = f"names {name}, which is cut from input.train and has labels as that has"
                yield Problem("input.unlabelled", rule, "leave it out")
        if sum(fraction or 0 for fraction in fractions.values()) >= 1:
            rule = "and split.test leave nothing to train on"
            yield Problem("split.val", rule, "their sum must be under 1")
        shares = {} if list(self.dataset.rules()) else self.dataset.kept_shares()
        for name, key in self.split.keys.items():
            if shares.get(name) != shares.get("train"):
                rule = f"says that {name} and train are other samples, and {key} cuts one off the other"
                cure = f"give one share for both, or input.{name}"
                yield Problem("dataset.negatives_kept", rule, cure, self.dataset.negatives_kept)
        if self.sampling.negatives is not None and self.input.train is None:
            yield Problem("sampling.negatives", "samples the train split, and input.train is not given")
        for name in {name for name in self.keep if self.keep.count(name) > 1}:
            yield Problem("keep", f"names {name} twice", "once is enough")
        if not self.output:
            yield required("output")
        if self.executor == "dask":
            cure = "Dask's workers have their own numbers of threads"
            yield from self.needless("threads", rule="is for executor=local", cure=cure)
        yield from self.dask.executor_rules(self.executor)
