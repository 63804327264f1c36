"""An export opened for scoring: verified, refused where it cannot run, tried on its reference rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dlrm_app.dataset.columns import describe_columns, refuse_other_columns
from dlrm_app.dataset.manifest import Manifest, read_manifest
from dlrm_app.errors import DataError
from dlrm_app.inference import package, torchscript
from dlrm_app.inference.encoding import ENCODING
from dlrm_app.inference.record import ExportedFeature, ExportRecord, check_files, installed, read_record
from dlrm_app.inference.reference import TOLERANCE, Inputs, read_reference
from dlrm_app.text import bullets

Run = Callable[[Sequence[torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]
LOADERS: dict[str, tuple[str, Callable[[Path], Run]]] = {
    "aoti": (package.MODEL, package.Package),
    "torchscript": (torchscript.MODEL, torchscript.Script),
}
"""Format → its file, and what loads it."""


@dataclass(frozen=True)
class ExportedModel:
    """``encoding`` is the manifest of the export's encoding/."""

    folder: Path
    record: ExportRecord
    encoding: Manifest
    run: Run

    @property
    def features(self) -> list[str]:
        """The sparse features, in the order that the model reads them."""
        return [feature.name for feature in self.record.features]

    def score(self, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        """(probabilities [B], logits [B]). Raises DataError for inputs of other shapes and ids outside their tables."""
        check_inputs(inputs, len(self.record.dense), self.record.features)
        return self.run(inputs)

    def check_columns(self, manifest: Manifest) -> None:
        """Raises DataError naming every column that ``manifest`` lacks or encodes in another way."""
        encoding = f"encoding.path={self.folder / ENCODING}"
        refuse_other_columns(describe_columns(self.encoding), manifest, self.features, self.folder, encoding)


def open_export(folder: Path) -> ExportedModel:
    """Verifies every file of the export at ``folder``, then loads its compiled model.

    Raises DataError for a damaged or changed file, for another torch, fbgemm or CPU than it was made for, and where the
    reference rows get other scores.
    """
    record = read_record(folder)
    check_files(folder, record.files)
    kinds = [name for name in record.formats if name in LOADERS]
    if not kinds:
        raise DataError(
            f"{folder} holds plain weights ({', '.join(record.formats)}), which do not score by themselves: "
            "dlrm-export with format=aoti as well"
        )
    refuse_other_machine(folder, record, kinds[0])
    file, load = LOADERS[kinds[0]]
    run = load(folder / file)
    inputs, expected = read_reference(folder, len(record.dense))
    difference = float((run(inputs)[0] - expected).abs().max())
    if not difference <= TOLERANCE:
        raise DataError(
            f"{folder / file} scores its reference rows otherwise here than where it was made (by {difference:.2g}, "
            f"{TOLERANCE} is rounding): export it again on this machine"
        )
    return ExportedModel(folder, record, read_manifest(folder / ENCODING), run)


def refuse_other_machine(folder: Path, record: ExportRecord, kind: str) -> None:
    """Raises DataError for what is compiled against other libraries, or for another CPU."""
    here = installed()
    problems = [
        f"it was made with {name} {record.versions.get(name)}, this is {name} {here.get(name)}: "
        f"install {name}=={record.versions.get(name)}, or export again here"
        for name in ("torch", "fbgemm-gpu")
        if record.versions.get(name) != here.get(name)
    ]
    lacking = sorted(set(record.cpu) - package.cpu_instructions()) if kind == "aoti" else []
    if lacking:
        problems.append(
            f"it needs a CPU with {', '.join(lacking)}, which this one lacks: export with cpu=avx2, or on such a machine"
        )
    if problems:
        raise DataError(f"{folder} cannot run here:\n{bullets(problems)}")


def check_inputs(inputs: Inputs, num_dense: int, features: Sequence[ExportedFeature]) -> None:
    """Raises DataError for shapes that do not fit together and ids outside their tables: nothing behind this looks."""
    dense, values, lengths = inputs
    if dense.dim() != 2 or dense.shape[1] != num_dense:
        raise DataError(f"the dense features must be [rows, {num_dense}], got {list(dense.shape)}")
    if lengths.shape != (len(features), len(dense)):
        raise DataError(f"the lengths must be [{len(features)}, {len(dense)}], got {list(lengths.shape)}")
    counts = lengths.sum(1)
    total = int(counts.sum())
    if values.dim() != 1 or total != len(values) or (lengths.numel() and int(lengths.min()) < 0):
        raise DataError(f"the lengths add up to {total}, there are {len(values)} ids")
    sizes = torch.tensor([feature.num_embeddings for feature in features])
    is_wrong = (values < 0) | (values >= sizes.repeat_interleave(counts, output_size=total))
    if is_wrong.any():
        first = int(is_wrong.nonzero()[0])
        feature = features[int((counts.cumsum(0) <= first).sum())]
        raise DataError(
            f"feature {feature.name}: id {int(values[first])} is outside its table of {feature.num_embeddings:,} rows"
        )
