"""The configuration of dlrm-preprocess. Values and their explanations stand in conf/preprocess.yaml."""

import math
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from dlrm_app.config.checks import one_of, threads_problems, within
from dlrm_app.config.dask import DaskConfig
from dlrm_app.files import is_file

SPLITS = ("train", "val", "test")
ENCODINGS = ("hash", "vocab", "from_dataset")
TRANSFORMS = ("log1p", "log3", "standardize", "none")
SHUFFLES = ("none", "block", "full")
COMPRESSIONS = ("zstd", "lz4", "snappy", "none")


@dataclass(slots=True)
class DatasetConfig:
    """See ``dlrm_app.preprocess.read.spec`` for what each of ``columns`` holds."""

    name: str = MISSING
    delimiter: str = "\t"
    quote: str | None = None
    header: bool = False
    columns: list[Any] = MISSING


@dataclass(slots=True)
class InputConfig:
    """A file, a glob, or a list of them, for each split."""

    train: Any = None
    val: Any = None
    test: Any = None
    unlabelled: list[str] = field(default_factory=list)


@dataclass(slots=True)
class SplitConfig:
    val: float | None = None
    test: float | None = None


@dataclass(slots=True)
class EncodingConfig:
    kind: str = MISSING
    num_embeddings: Any = None
    min_count: int | None = None
    top_k: Any = None
    path: str | None = None


@dataclass(slots=True)
class DenseConfig:
    transform: str = MISSING
    bucket_columns: Any = None
    bucket_boundaries: list[float] = MISSING
    target_columns: Any = None


@dataclass(slots=True)
class MultiHotConfig:
    sizes: Any = None


@dataclass(slots=True)
class RejectsConfig:
    max_fraction: float = MISSING


@dataclass(slots=True)
class LayoutConfig:
    unit_mib: int = MISSING
    row_group_rows: int = MISSING
    shuffled_shard_rows: int = MISSING
    compression: str = MISSING
    compression_level: int | None = None


@dataclass(slots=True)
class PreprocessConfig:
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    input: InputConfig = field(default_factory=InputConfig)
    split: SplitConfig = field(default_factory=SplitConfig)
    encoding: EncodingConfig = field(default_factory=EncodingConfig)
    dense: DenseConfig = field(default_factory=DenseConfig)
    multi_hot: MultiHotConfig = field(default_factory=MultiHotConfig)
    shuffle: str = MISSING
    seed: int = MISSING
    rejects: RejectsConfig = field(default_factory=RejectsConfig)
    layout: LayoutConfig = field(default_factory=LayoutConfig)
    threads: int | None = None
    memory_gib: float = MISSING
    executor: str = MISSING
    dask: DaskConfig = field(default_factory=DaskConfig)
    output: str = MISSING

    def problems(self) -> list[str]:
        """What types cannot express and no data is needed to see; every problem, with what to do about it."""
        return [
            *_input_problems(self.input, self.split),
            *_encoding_problems(self.encoding),
            *one_of("dense.transform", self.dense.transform, TRANSFORMS),
            *_boundary_problems(self.dense.bucket_boundaries),
            *one_of("shuffle", self.shuffle, SHUFFLES),
            *one_of("layout.compression", self.layout.compression, COMPRESSIONS),
            *within("seed", self.seed, 0, 2**63 - 1),
            *within("rejects.max_fraction", self.rejects.max_fraction, 0, 1),
            *within("layout.unit_mib", self.layout.unit_mib, 1, 256),
            *within("layout.compression_level", self.layout.compression_level, -7, 22),
            *within("layout.row_group_rows", self.layout.row_group_rows, 1, 1 << 20),
            *within("layout.shuffled_shard_rows", self.layout.shuffled_shard_rows, 1, 1 << 24),
            *threads_problems("threads", self.threads),
            *within("memory_gib", self.memory_gib, 0.001, 1 << 20),
            *self.dask.problems(self.executor),
            *_output_problems(self),
        ]


def _output_problems(config: PreprocessConfig) -> list[str]:
    problems = []
    if not config.output:
        problems.append("output is required and has no default: give output=FOLDER")
    if config.executor == "dask" and config.threads is not None:
        problems.append("threads is for executor=local: Dask's workers have their own numbers of threads")
    return problems


def _input_problems(given: InputConfig, split: SplitConfig) -> list[str]:
    inputs = {name: getattr(given, name) for name in SPLITS}
    problems = [
        f"input.{name} must be a file, a glob or a list of them, got {value!r}"
        for name, value in inputs.items()
        if not _is_file_list(value)
    ]
    if all(value is None for value in inputs.values()):
        problems.append(
            "there is no input: give input.train=FILE (and input.val, input.test, or split.val, split.test)"
        )
    fractions = {name: getattr(split, name) for name in ("val", "test")}
    for name, fraction in fractions.items():
        problems += within(f"split.{name}", fraction, 0, 1)
        if fraction is not None and inputs[name] is not None:
            problems.append(
                f"split.{name}={fraction} and input.{name} both make the {name} split: give only one"
            )
        if fraction is not None and inputs["train"] is None:
            problems.append(f"split.{name}={fraction} takes the end of input.train, which is not given")
    if sum(fraction or 0 for fraction in fractions.values()) >= 1:
        problems.append("split.val and split.test leave nothing to train on: their sum must be under 1")
    for name in given.unlabelled:
        problems += one_of("input.unlabelled", name, SPLITS)
        if name in fractions and fractions[name] is not None:
            problems.append(
                f"input.unlabelled={name}: that split is cut from input.train, which has labels or has not"
            )
    return problems


def _is_file_list(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) > 0 and all(isinstance(item, str) for item in value)
    return value is None or (isinstance(value, str) and bool(value))


def _encoding_problems(encoding: EncodingConfig) -> list[str]:
    kind = encoding.kind
    problems = one_of("encoding.kind", kind, ENCODINGS)
    owners = {"num_embeddings": "hash", "min_count": "vocab", "top_k": "vocab", "path": "from_dataset"}
    for key, owner in owners.items():
        if getattr(encoding, key) is not None and kind in ENCODINGS and kind != owner:
            problems.append(f"encoding.{key} is for encoding={owner}, this is encoding={kind}: leave it out")
    if kind == "hash" and encoding.num_embeddings is None:
        problems.append(
            "encoding=hash needs encoding.num_embeddings: one number, or one for each sparse column"
        )
    if kind == "from_dataset" and not encoding.path:
        problems.append(
            "encoding=from_dataset needs encoding.path: the folder of the dataset whose ids to keep"
        )
    if kind == "from_dataset" and encoding.path and not is_file(Path(encoding.path) / "manifest.json"):
        problems.append(
            f"encoding.path={encoding.path} holds no manifest.json: give a finished dataset folder"
        )
    return [*problems, *within("encoding.min_count", encoding.min_count, 1, 1 << 62)]


def _boundary_problems(boundaries: list[float]) -> list[str]:
    rising = all(low < high for low, high in pairwise(boundaries))
    if boundaries and rising and all(math.isfinite(bound) for bound in boundaries):
        return []
    return [f"dense.bucket_boundaries must be rising numbers, at least one, got {boundaries}"]
