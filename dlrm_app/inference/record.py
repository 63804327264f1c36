"""The records of an export and of a delta, and the encoding of an export's rows.

export.json   the content of an export, its requirements, its differences from the trained model; written last
encoding/     a dataset folder without rows, with all that is needed to encode raw rows as in training
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dlrm_app import machine
from dlrm_app.checksums import checksum, describe_files, differences
from dlrm_app.dataset.encoding_files import copy_encoding_files
from dlrm_app.dataset.manifest import Manifest, write_manifest
from dlrm_app.errors import DataError, Problem
from dlrm_app.files import escapes
from dlrm_app.records import ALWAYS, IF_SET, Format, R

RECORD, DELTA, ENCODING = "export.json", "delta.json", "encoding"
_CURE = "export again"


@dataclass(frozen=True)
class FileMark:
    """Size and checksum of a verified file."""

    bytes: int
    checksum: str


@dataclass(frozen=True)
class RowsAt:
    """Rows of ``table`` from ``first_row`` on, stored unchanged in a file from ``offset`` on, ``row_bytes`` each."""

    table: str
    first_row: int
    offset: int
    rows: int
    row_bytes: int


@dataclass(frozen=True)
class ExportedTable:
    """A table in an export.

    ``type``: fp32, fp16, int8, int4 or int2.
    ``bytes``: the size of all rows with their scales.
    """

    name: str
    rows: int
    dim: int
    pooling: str
    type: str
    bytes: int


@dataclass(frozen=True)
class ExportedFeature:
    """A feature in an export. Its ids lie in [0, ``num_embeddings``); a one-hot feature has one id in every row.

    ``weighted``: its ids have weights.
    """

    name: str
    table: str
    num_embeddings: int
    multi_hot: bool
    weighted: bool = field(default=False, metadata=IF_SET)


@dataclass(frozen=True)
class Verification:
    """The comparison of one file with the trained model, on the same ``rows`` of ``split``.

    Differences are of probabilities. ``auc_loss`` is the trained model's AUC minus the file's, with the bounds of its
    interval and the p-value for no difference (DeLong, paired).

    ``milliseconds``: batch size → the longest time of the fastest tenth of calls.
    ``busy``: the batch sizes that were timed while other programs ran.
    """

    file: str
    split: str
    rows: int
    max_difference: float
    mean_difference: float
    auc_trained: float
    auc: float
    auc_loss: float
    auc_loss_low: float
    auc_loss_high: float
    p_value: float
    bytes: int
    milliseconds: dict[str, float]
    busy: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ExportRecord:
    """An export: its inputs in their order, origin, library versions, requirements, files and their verification.

    ``cpu``: the instructions that model.pt2 needs.
    ``trained_bytes``: the size of the tables as they were trained.
    ``rows``: file → the places of rows in it, which deltas compare.
    """

    checkpoint: str
    step: int
    dense: list[str]
    features: list[ExportedFeature]
    tables: list[ExportedTable]
    trained_bytes: int
    versions: dict[str, str]
    cpu: list[str]
    formats: list[str]
    proofs: list[Verification]
    files: dict[str, FileMark]
    shards: int = 1
    rows: dict[str, list[RowsAt]] = field(default_factory=dict)
    format: str = field(default="dlrm-export", metadata=ALWAYS)
    version: int = field(default=1, metadata=ALWAYS)

    @property
    def is_weighted(self) -> bool:
        """True if the model takes a weight for each id."""
        return any(feature.weighted for feature in self.features)


@dataclass(frozen=True)
class DeltaRecord:
    """A delta. ``base`` and ``result``: the checksums of both exports' export.json, which has those of their files.

    ``patched``: the files that changed.
    ``files``: the delta's own files.
    """

    base: str
    base_step: int
    result: str
    record: ExportRecord
    patched: list[str]
    files: dict[str, FileMark]
    format: str = field(default="dlrm-delta", metadata=ALWAYS)
    version: int = field(default=1, metadata=ALWAYS)


EXPORT_FORMAT, DELTA_FORMAT = Format(ExportRecord, _CURE), Format(DeltaRecord, _CURE)


def installed() -> dict[str, str]:
    """The versions that a compiled model depends on, without a build's suffix (+cpu)."""
    names = ("torch", "fbgemm-gpu", "fbgemm-gpu-cpu", "torchrec", "dlrm-app")
    found = {name.removesuffix("-cpu"): version for name in names if (version := machine.installed(name))}
    return {name: version.split("+")[0] for name, version in found.items()}


def described_inputs(
    dense: Sequence[str], features: Sequence[ExportedFeature], cpu: Sequence[str]
) -> dict[str, str]:
    """The inputs, for programs that read a package alone: one name a line, features with their number of ids."""
    weighted = [feature.name for feature in features if feature.weighted]
    return {
        "dlrm.dense": "\n".join(dense),
        "dlrm.features": "\n".join(f"{f.num_embeddings} {f.name}" for f in features),
        "dlrm.torch": installed()["torch"],
        "dlrm.cpu": " ".join(cpu),
        **({"dlrm.weighted": "\n".join(weighted)} if weighted else {}),
    }


def mark_files(folder: Path, files: Sequence[Path] | None = None) -> dict[str, FileMark]:
    """Path below ``folder`` → its mark, for ``files`` or for every file there."""
    found = sorted(path for path in folder.rglob("*") if path.is_file()) if files is None else files
    names = [str(path.relative_to(folder)) for path in found]
    return {name: FileMark(*described) for name, described in describe_files(folder, names).items()}


def is_export(folder: Path) -> bool:
    return (folder / RECORD).is_file()


def read_export(folder: Path) -> ExportRecord:
    """Reads FOLDER/export.json. Raises DataError if it is missing, damaged or of another version."""
    return _read(folder / RECORD, EXPORT_FORMAT, "export")


def read_delta(folder: Path) -> DeltaRecord:
    """Reads FOLDER/delta.json. Raises DataError if it is missing, damaged or of another version."""
    record = _read(folder / DELTA, DELTA_FORMAT, "delta")
    if outside := [name for name in record.record.files if escapes(name)]:
        raise DataError(
            Problem(str(folder / DELTA), f"names a file outside its folder, {outside[0]!r}", "export again")
        )
    return record


def _read(path: Path, file_format: Format[R], what: str) -> R:
    if not path.is_file():
        cure = "name a folder that dlrm-export wrote"
        raise DataError(Problem(str(path.parent), f"holds no {what}, because it has no {path.name}", cure))
    return file_format.read(path)


def refuse_other_base(base: Path, delta: Path, record: DeltaRecord) -> None:
    """Raises DataError if ``delta`` was made from another export than ``base``."""
    if checksum(base / RECORD) != record.base:
        found = read_export(base)
        rule = (
            f"was made from another export (of step {record.base_step}) than base={base} ({found.checkpoint}, "
            f"step {found.step}), by the checksum of {RECORD}"
        )
        cure = "give base= the export that since= named, or take the full export"
        raise DataError(Problem(f"apply={delta}", rule, cure))


def check_files(folder: Path, files: dict[str, FileMark]) -> None:
    """Compares every file with its mark. Raises DataError naming each that differs."""
    if problems := differences(folder, {name: (mark.bytes, mark.checksum) for name, mark in files.items()}):
        raise DataError(
            Problem(str(folder), "is damaged or was changed", "copy it again, or export again"), *problems
        )


def write_encoding(folder: Path, manifest: Manifest) -> None:
    """Writes FOLDER/encoding: the manifest without rows, and the files that encoding needs. Raises DataError."""
    target = folder / ENCODING
    target.mkdir()
    manifest = replace(manifest, lineage=manifest.encoding_lineage, lacks_vectors=True)
    copy_encoding_files(manifest, target)
    # without the dataset's inputs, which must not be known where the model is served
    config = {"dataset": manifest.config["dataset"]} if "dataset" in manifest.config else {}
    if crosses := manifest.config.get("encoding", {}).get("crosses"):
        config["encoding"] = {"crosses": crosses}
    usual = manifest.usual_values
    write_manifest(target, replace(manifest, splits={}, sources=[], best=None, config=config, usual=usual))
