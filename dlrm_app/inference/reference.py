"""reference/ of an export: rows as the model takes them and what it says to them, as text that any program reads.

rows.tsv: a row a line: every dense value, then the ids of every feature, separated by commas, in the order of export.json.
scores.tsv: the probability of each row, a line each. Numbers are written so that they come back to the bit.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""dense [B, N] float32, values [V] int32 (the ids of the first feature's rows, then of the second's, and so on), lengths
[F, B] int32: how many ids each row has."""
ROWS, SCORES = "reference/rows.tsv", "reference/scores.tsv"
TOLERANCE = 1e-6
"""How far a probability may be from its reference on another machine: sums are added up in other orders."""


def write_reference(folder: Path, inputs: Inputs, scores: torch.Tensor) -> None:
    """Writes FOLDER/reference."""
    (folder / ROWS).parent.mkdir()
    (folder / ROWS).write_text("".join(f"{line}\n" for line in to_lines(inputs)), encoding="utf-8")
    text = "".join(f"{np.float32(score)!s}\n" for score in scores.numpy())
    (folder / SCORES).write_text(text, encoding="utf-8")


def to_lines(inputs: Inputs) -> list[str]:
    """The rows of ``inputs``."""
    dense, values, lengths = (tensor.numpy() for tensor in inputs)
    num_features, num_rows = lengths.shape
    ends = np.concatenate([[0], lengths.reshape(-1).cumsum()])
    lines = []
    for row in range(num_rows):
        fields = [str(np.float32(value)) for value in dense[row]]
        for feature in range(num_features):
            cell = feature * num_rows + row
            fields.append(",".join(map(str, values[ends[cell] : ends[cell + 1]].tolist())))
        lines.append("\t".join(fields))
    return lines


def read_reference(folder: Path, num_dense: int) -> tuple[Inputs, torch.Tensor]:
    """The inputs and the scores [B] in FOLDER/reference."""
    lines = (folder / ROWS).read_text(encoding="utf-8").splitlines()
    scores = (folder / SCORES).read_text(encoding="utf-8").split()
    return from_lines(lines, num_dense), torch.tensor([float(score) for score in scores], dtype=torch.float32)


def from_lines(lines: Sequence[str], num_dense: int) -> Inputs:
    """The inverse of ``to_lines``."""
    rows = [line.split("\t") for line in lines]
    dense = torch.tensor([[float(field) for field in row[:num_dense]] for row in rows], dtype=torch.float32)
    bags = [
        [[int(i) for i in row[f].split(",") if i] for row in rows] for f in range(num_dense, len(rows[0]))
    ]
    values = [i for feature in bags for bag in feature for i in bag]
    return (
        dense.reshape(len(rows), num_dense),
        torch.tensor(values, dtype=torch.int32),
        torch.tensor([[len(bag) for bag in feature] for feature in bags], dtype=torch.int32),
    )
