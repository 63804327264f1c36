"""The manifest: what a dataset folder holds. Written last, so it is also the mark that the dataset is whole.

    DATASET/manifest.json
    DATASET/train/part-00000.parquet  val/…  test/…
    DATASET/vocab/<feature>.parquet
    DATASET/rejects.jsonl

Columns in a shard: the label (uint8) unless ``manifest.label`` is None, every dense column (float32),
every sparse column (int32, or list<int32> when multi-hot), under the names given here.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dlrm_app.errors import DataError
from dlrm_app.files import write_json

MANIFEST = "manifest.json"
FORMAT = "dlrm-dataset"
VERSION = 1
SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class DenseColumn:
    """A float32 column. ``transform`` is complete enough to encode a raw value again at serving time."""

    name: str
    transform: dict[str, Any]
    missing_rate: float = 0.0


@dataclass(frozen=True)
class SparseColumn:
    """A column of ids in [0, ``num_embeddings``).

    ``encoding`` is complete enough, with vocab/<name>.parquet where it is a vocabulary, to encode a raw value
    again at serving time. ``distinct`` counts raw values seen; ``collisions`` those that share their id with
    another one (None where not counted); with ``estimated`` both are estimates.
    """

    name: str
    num_embeddings: int
    encoding: dict[str, Any]
    multi_hot: bool = False
    distinct: int | None = None
    missing_rate: float = 0.0
    collisions: int | None = None
    estimated: bool = False


@dataclass(frozen=True)
class Shard:
    """A Parquet file. ``path`` is relative to the dataset folder; ``row_groups`` are rows per row group."""

    path: str
    rows: int
    bytes: int
    checksum: str
    row_groups: list[int]


@dataclass(frozen=True)
class Split:
    """``positives`` is None without a label. ``rejects`` counts input lines left out."""

    rows: int
    positives: int | None
    rejects: int
    shards: list[Shard]


@dataclass(frozen=True)
class Source:
    """An input file as it was when read."""

    path: str
    split: str
    bytes: int
    checksum: str
    rows: int


@dataclass(frozen=True)
class Manifest:
    """Everything that a reader of the dataset may rely on.

    ``best`` holds the best reachable ``auc`` and ``logloss`` where the data is synthetic and they are known.
    """

    dataset: str
    label: str | None
    dense: list[DenseColumn]
    sparse: list[SparseColumn]
    splits: dict[str, Split]
    sources: list[Source]
    config: dict[str, Any]
    best: dict[str, float] | None = None
    format: str = FORMAT
    version: int = VERSION
    path: Path | None = field(default=None, compare=False)
    """The folder it was read from; not written."""

    @property
    def shards(self) -> list[Shard]:
        """The shards of all splits."""
        return [shard for split in self.splits.values() for shard in split.shards]

    @property
    def folder(self) -> Path:
        """The folder it was read from. Raises ValueError if it was not."""
        if self.path is None:
            raise ValueError("the manifest was not read from a folder: use read_manifest")
        return self.path

    def fingerprint(self) -> str:
        """sha256 over everything that decides which rows a reader sees and how they are encoded."""
        content = {
            "label": self.label,
            "dense": [(c.name, c.transform) for c in self.dense],
            "sparse": [(c.name, c.num_embeddings, c.encoding, c.multi_hot) for c in self.sparse],
            "splits": {
                name: [(s.path, s.checksum, s.row_groups) for s in split.shards]
                for name, split in self.splits.items()
            },
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes DATASET/manifest.json, whole or not at all: the last act of preprocessing."""
    value = asdict(manifest)
    del value["path"]
    write_json(folder / MANIFEST, value)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the dataset in ``folder``.

    Raises DataError if the folder is missing, unfinished, or of another format version.
    """
    path = folder / MANIFEST
    if not folder.is_dir():
        raise DataError(
            f"no dataset at {folder}: the folder does not exist; make one with dlrm-preprocess output={folder}"
        )
    if not path.is_file():
        raise DataError(
            f"{folder} holds no {MANIFEST}: its preprocessing has not finished; "
            "run the same dlrm-preprocess command again, it goes on where it stopped"
        )
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(
            f"{path} is not JSON ({error}): it was damaged after it was written; preprocess again"
        ) from error
    if value.get("format") != FORMAT or value.get("version") != VERSION:
        raise DataError(
            f"{path} is {value.get('format')!r} version {value.get('version')!r}, this program reads "
            f"{FORMAT!r} version {VERSION}: preprocess again with this version"
        )
    return _parse(value, folder)


def _parse(value: dict[str, Any], folder: Path) -> Manifest:
    try:
        return Manifest(
            dataset=value["dataset"],
            label=value["label"],
            dense=[DenseColumn(**column) for column in value["dense"]],
            sparse=[SparseColumn(**column) for column in value["sparse"]],
            splits={
                name: Split(**{**split, "shards": [Shard(**shard) for shard in split["shards"]]})
                for name, split in value["splits"].items()
            },
            sources=[Source(**source) for source in value["sources"]],
            config=value["config"],
            best=value.get("best"),
            path=folder,
        )
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{folder / MANIFEST} lacks or has too many fields ({error}): preprocess again"
        ) from error
