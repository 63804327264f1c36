"""Opens an export for scoring: verifies its files, refuses it if it cannot run here, tests it on reference rows.

reference/ holds input rows of the model and their scores, as text that any program can read. rows.tsv has a row a line:
every dense value, then the ids of every feature, separated by commas, in the order of export.json. An id with another
weight than 1 is followed by a colon and the weight. scores.tsv: the probability of each row, one a line, or those of
several labels, separated by tabs. Numbers are written so that they can be read back exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dlrm_app.dataset.columns import describe_columns, read_as_known
from dlrm_app.dataset.label import LabelRule
from dlrm_app.dataset.manifest import Manifest, read_manifest
from dlrm_app.errors import DataError, Problem
from dlrm_app.inference.formats import COMPILED, LOADERS, Forward, Inputs, cpu_instructions
from dlrm_app.inference.record import ENCODING, ExportRecord, check_files, installed, read_export

ROWS, SCORES = "reference/rows.tsv", "reference/scores.tsv"
WITHOUT_LABELS = LabelRule(setting="labels=false")
"""The rule of dlrm-predict: with this setting it scores rows of another label, without the label."""
TOLERANCE = 1e-6
"""The largest allowed difference between a probability and its reference: other machines add in other orders."""


@dataclass(frozen=True)
class ExportedModel:
    """A loaded export. ``encoding``: the manifest in its encoding/."""

    folder: Path
    record: ExportRecord
    encoding: Manifest
    run: Forward

    @property
    def features(self) -> list[str]:
        """The sparse features, in the order that the model reads them."""
        return [feature.name for feature in self.record.features]

    @property
    def labels(self) -> list[str]:
        """The names of several labels, the main one first."""
        return [label.name for label in self.encoding.labels]

    def score(self, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        """Computes (probabilities [B], logits [B]); [B, L] of several labels.

        Raises DataError for inputs of other shapes and ids outside their tables.
        """
        check_inputs(inputs, self.record)
        return self.run(inputs)

    def check_columns(self, manifest: Manifest) -> Manifest:
        """``manifest`` as the model reads it.

        Raises DataError naming every column that is missing or encoded differently.
        """
        encoding = f"encoding.path={self.folder / ENCODING}"
        known = describe_columns(self.encoding)
        rows = read_as_known(known, manifest, self.features, self.folder, encoding, label=WITHOUT_LABELS)
        return rows.with_labels(self.encoding.labels)


def open_export(folder: Path) -> ExportedModel:
    """Verifies every file of the export at ``folder``, then loads its compiled model.

    Raises DataError for a damaged or changed file, for another torch, fbgemm or CPU than it was made for, and if the
    reference rows get different scores.
    """
    record = read_export(folder)
    check_files(folder, record.files)
    kinds = [name for name in record.formats if name in LOADERS]
    if not kinds:
        rule = f"holds plain weights ({', '.join(record.formats)}), which do not score by themselves"
        raise DataError(Problem(str(folder), rule, "dlrm-export with format=aoti as well"))
    refuse_other_machine(folder, record, kinds[0])
    file, load = LOADERS[kinds[0]]
    run = load(folder / file)
    refuse_other_scores(folder, file, run, len(record.dense), record.is_weighted)
    return ExportedModel(folder, record, read_manifest(folder / ENCODING), run)


def refuse_other_scores(folder: Path, file: str, run: Forward, num_dense: int, is_weighted: bool) -> None:
    """Raises DataError if ``run``, loaded from FOLDER/``file``, gives the reference rows other scores."""
    inputs, expected = read_reference(folder, num_dense, is_weighted)
    difference = float((run(inputs)[0] - expected).abs().max())
    if not difference <= TOLERANCE:
        rule = (
            "gives its reference rows other scores here than the model that it was made from (by "
            f"{difference:.2g}, {TOLERANCE} is rounding)"
        )
        raise DataError(Problem(str(folder / file), rule, "export it again on this machine"))


def refuse_other_machine(folder: Path, record: ExportRecord, kind: str) -> None:
    """Raises DataError if the export was compiled for other libraries or for another CPU."""
    made, here = record.versions, installed()
    problems = [
        Problem(
            name,
            f"is {here.get(name)} here, the export was made with {made.get(name)}",
            f"install {name}=={made.get(name)}, or export again here",
        )
        for name in ("torch", "fbgemm-gpu")
        if made.get(name) != here.get(name)
    ]
    if kind in COMPILED and (lacking := sorted(set(record.cpu) - cpu_instructions())):
        cure = "export with cpu=avx2, or on such a machine"
        problems.append(Problem("the CPU", f"lacks {', '.join(lacking)}, which the export uses", cure))
    if problems:
        raise DataError(Problem(str(folder), "cannot run here"), *problems)


def check_inputs(inputs: Inputs, record: ExportRecord) -> None:
    """Raises DataError for inconsistent shapes, ids outside their tables and wrong weights. The compiled model checks
    nothing.
    """
    features, num_dense = record.features, len(record.dense)
    if len(inputs) != 3 + record.is_weighted:
        rule = "must be dense, values and lengths" + ", and the weights of values" * record.is_weighted
        raise DataError(Problem("inputs", rule, value=len(inputs)))
    dense, values, lengths, *weights = inputs
    if dense.dim() != 2 or dense.shape[1] != num_dense:
        raise DataError(Problem("dense", f"must be [rows, {num_dense}]", value=list(dense.shape)))
    if lengths.shape != (len(features), len(dense)):
        raise DataError(
            Problem("lengths", f"must be [{len(features)}, {len(dense)}]", value=list(lengths.shape))
        )
    counts = lengths.sum(1)
    total = int(counts.sum())
    if values.dim() != 1 or total != len(values) or (lengths.numel() and int(lengths.min()) < 0):
        raise DataError(Problem("lengths", f"add up to {total}, there are {len(values)} ids"))
    # NumPy takes a fifth of torch's time for what follows
    for given in weights:
        numbers = given.numpy()
        if given.shape != values.shape or not ((numbers >= 0) & np.isfinite(numbers)).all():
            raise DataError(Problem("weights", f"must be {len(values)} numbers from 0 on, one for each id"))
    ids, sizes = values.numpy(), np.array([feature.num_embeddings for feature in features])
    is_wrong = (ids < 0) | (ids >= np.repeat(sizes, counts.numpy()))
    if is_wrong.any():
        first = int(is_wrong.argmax())
        feature = features[int((counts.cumsum(0) <= first).sum())]
        raise DataError(
            Problem(
                f"feature {feature.name}",
                f"has the id {int(values[first])}, outside its table of {feature.num_embeddings:,} rows",
            )
        )


def write_reference(folder: Path, inputs: Inputs, scores: torch.Tensor) -> None:
    (folder / ROWS).parent.mkdir()
    (folder / ROWS).write_text("".join(f"{line}\n" for line in to_lines(inputs)), encoding="utf-8")
    rows = scores.numpy().reshape(len(scores), -1)
    text = "".join("\t".join(str(np.float32(score)) for score in row) + "\n" for row in rows)
    (folder / SCORES).write_text(text, encoding="utf-8")


def to_lines(inputs: Inputs) -> list[str]:
    """The rows of ``inputs`` as lines of rows.tsv."""
    dense, values, lengths, *weights = (tensor.numpy() for tensor in inputs)
    cells = list(map(str, values.tolist()))
    if weights:
        cells = [i if w == 1 else f"{i}:{w!s}" for i, w in zip(cells, weights[0], strict=True)]
    num_features, num_rows = lengths.shape
    ends = np.concatenate([[0], lengths.reshape(-1).cumsum()])
    lines = []
    for row in range(num_rows):
        fields = [str(np.float32(value)) for value in dense[row]]
        for feature in range(num_features):
            cell = feature * num_rows + row
            fields.append(",".join(cells[ends[cell] : ends[cell + 1]]))
        lines.append("\t".join(fields))
    return lines


def read_reference(folder: Path, num_dense: int, is_weighted: bool = False) -> tuple[Inputs, torch.Tensor]:
    """The inputs and the scores in FOLDER/reference: [B], or [B, L] of several labels.

    ``is_weighted``: ids have weights.
    """
    lines = (folder / ROWS).read_text(encoding="utf-8").splitlines()
    scores = (folder / SCORES).read_text(encoding="utf-8").splitlines()
    expected = torch.tensor([list(map(float, line.split("\t"))) for line in scores], dtype=torch.float32)
    if expected.shape[1:] == (1,):
        expected = expected.squeeze(1)
    return from_lines(lines, num_dense, is_weighted), expected


def from_lines(lines: Sequence[str], num_dense: int, is_weighted: bool = False) -> Inputs:
    """The inverse of ``to_lines``."""
    rows = [line.split("\t") for line in lines]
    dense = np.array([row[:num_dense] for row in rows], np.float64).astype(np.float32)
    columns = zip(*(row[num_dense:] for row in rows), strict=True)
    bags = [
        [[cell.partition(":") for cell in bag.split(",") if cell] for bag in column] for column in columns
    ]
    cells = [cell for feature in bags for bag in feature for cell in bag]
    lengths = [[len(bag) for bag in feature] for feature in bags]
    weights = torch.from_numpy(
        np.array([weight or "1" for _, _, weight in cells], np.float64).astype(np.float32)
    )
    return (
        torch.from_numpy(dense).reshape(len(rows), num_dense),
        torch.tensor([int(i) for i, _, _ in cells], dtype=torch.int32),
        torch.tensor(lengths, dtype=torch.int32),
        *([weights] if is_weighted else []),
    )
