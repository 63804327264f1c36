"""What a run is to do, worked out before it begins: plain values that any process can be sent."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dlrm_app.config.preprocess import SPLITS, PreprocessConfig
from dlrm_app.dataset.shards import ShardLayout
from dlrm_app.errors import ConfigError, refuse_if
from dlrm_app.preprocess.read.spec import Spec
from dlrm_app.preprocess.units.source import Source

MIB = 1 << 20


@dataclass(frozen=True)
class Plan:
    """The run: its input, its format, and where the lines of a source go."""

    spec: Spec
    sources: tuple[Source, ...]
    unlabelled: frozenset[str]
    fractions: Mapping[str, float]
    unit_bytes: int
    layout: ShardLayout
    shuffle: str
    seed: int
    output: Path

    @property
    def splits(self) -> list[str]:
        """The splits of the dataset, in their order."""
        given = {source.split for source in self.sources}
        return [split for split in SPLITS if split in given or split in self.fractions]

    @property
    def studied(self) -> set[str]:
        """The splits that vocabularies, moments and statistics are taken from."""
        return {"train"} if "train" in self.splits else set(self.splits)

    def spec_of(self, split: str) -> Spec:
        return self.spec.without_label() if split in self.unlabelled else self.spec


def make_plan(config: PreprocessConfig, spec: Spec, sources: Sequence[Source]) -> Plan:
    fractions = {name: getattr(config.split, name) for name in ("val", "test")}
    return Plan(
        spec,
        tuple(sources),
        frozenset(config.input.unlabelled),
        {name: fraction for name, fraction in fractions.items() if fraction},
        config.layout.unit_mib * MIB,
        ShardLayout(config.layout.row_group_rows, config.layout.compression, config.layout.compression_level),
        config.shuffle,
        config.seed,
        Path(config.output),
    )


_NOT_PART_OF_THE_DATASET = ("threads", "memory_gib", "executor", "dask", "output")


def identity(config: PreprocessConfig) -> dict[str, Any]:
    """The part of the configuration that decides what the dataset holds, byte for byte."""
    return {key: value for key, value in asdict(config).items() if key not in _NOT_PART_OF_THE_DATASET}


def refuse_other_config(
    before: Mapping[str, Any], now: Mapping[str, Any], output: Path, state: str, open_keys: Sequence[str]
) -> None:
    """Raises ConfigError, naming each key that differs; ``state``: what ``output`` holds.

    ``open_keys``, and the keys under them, may differ.
    """
    old, new = _flat(before), _flat(now)
    if old.get("encoding.kind") == "from_dataset":
        open_keys = [*open_keys, "dense.transform"]  # comes with the encoding; early versions noted another
    problems = [
        f"{key} is {new.get(key)!r}, it was {old.get(key)!r}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not f"{key}.".startswith(tuple(f"{name}." for name in open_keys))
    ]
    if problems:
        hint = f"{output} holds {state} of another configuration: give the same values, or another output=, or delete it"
        raise ConfigError([*problems, hint])


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix.rstrip("."): value}
    return {
        key: leaf for name, part in value.items() for key, leaf in _flat(part, f"{prefix}{name}.").items()
    }


@dataclass(frozen=True, slots=True)
class Segment:
    """Lines of a unit, counted from its first one, that go to one split; ``stop`` None: to the unit's end."""

    split: str
    start: int
    stop: int | None


@dataclass(frozen=True)
class Cuts:
    """Where the training input is cut: lines [0, train) train, [train, val) validate, the others test."""

    train: int
    val: int
    first_lines: Mapping[tuple[int, int], int]
    """The number of each unit's first line among all lines of the training input."""

    def segments(self, source: int, unit: int) -> list[Segment]:
        """The split of every line of a unit."""
        first = self.first_lines[source, unit]
        bounds = {"train": (0, self.train), "val": (self.train, self.val), "test": (self.val, None)}
        segments = []
        for split, (start, stop) in bounds.items():
            low = max(start - first, 0)
            high = None if stop is None else stop - first
            if high is None or high > low:
                segments.append(Segment(split, low, high))
        return segments


def refuse_empty_cuts(num_lines: int, fractions: Mapping[str, float]) -> None:
    """Raises ConfigError if one of ``fractions`` of ``num_lines`` is less than a line."""
    refuse_if(
        [
            f"split.{name}={fraction} of the {num_lines:,} lines of input.train is less than one, "
            f"so the {name} split has no rows: give split.{name}={2 / num_lines:.2g} or more"
            for name, fraction in fractions.items()
            if not int(num_lines * fraction)
        ]
    )


def cut_lines(lines: Mapping[tuple[int, int], int], fractions: Mapping[str, float]) -> Cuts:
    """Takes ``fractions`` of all lines from the end, rounded down; ``lines``: of each unit, in order."""
    first_lines, total = {}, 0
    for unit, count in lines.items():
        first_lines[unit] = total
        total += count
    test = int(total * fractions.get("test", 0))
    val = int(total * fractions.get("val", 0))
    return Cuts(total - test - val, total - test, first_lines)
