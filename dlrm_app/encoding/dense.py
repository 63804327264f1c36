"""Transforms dense values. A missing value becomes 0, which for standardize is the mean.

log1p        log(max(x, 0) + 1)                      (the DLRM paper's code)
log3         log(max(x, 0) + 3), missing: as x = 0   (NVTabular's Criteo example)
standardize  (x - mean) / deviation over the training split
none         x
logit        log(x / (1 - x))                        (of another model's score, whatever dense.transform says)

A target column has the click rate of a sparse column's value. ``passes/targets`` makes its values; here they are looked
up by id.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlrm_app.dataset.dictionary import JaggedColumns
from dlrm_app.dataset.encoding_files import read_clicks
from dlrm_app.dataset.manifest import DenseColumn
from dlrm_app.encoding.sparse import once_per_file
from dlrm_app.kernels.compiled import njit
from dlrm_app.records import Json

_TABLE_SIZE = 1 << 16
TARGET, LOGIT = "target", "logit"
"""The kinds of the transforms of target columns, and of other models' scores."""
_SMALLEST = 1e-7
"""Clips scores to this distance from 0 and 1, because the logit of 0 is infinite."""
_ADDENDS = {"log1p": 1.0, "log3": 3.0}


@lru_cache
def _log_table(addend: float) -> NDArray[np.float32]:
    return np.log(np.arange(_TABLE_SIZE) + addend).astype(np.float32)


class DenseTransforms:
    """The ``transforms`` of columns, as the manifest states them, ready to apply.

    Logarithms of small integers come from a table.
    """

    def __init__(self, transforms: Sequence[Json]) -> None:
        self._rules = np.array([_rule(transform) for transform in transforms], np.float64).reshape(-1, 3)

    def apply(self, columns: JaggedColumns[np.float64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Returns (float32 of all values of ``columns`` [C], column after column; missing values of each column)."""
        out = np.empty(int((columns.ends - columns.begins).sum()), np.float32)
        missing = np.zeros(len(columns), np.int64)
        tables = _log_table(1.0), _log_table(3.0)
        _transform(columns.values, columns.begins, columns.ends, self._rules, tables, out, missing)
        return out, missing


def missing_value(transform: Json) -> float:
    """The value that stands for a missing one."""
    values, _ = DenseTransforms([transform]).apply(JaggedColumns.joined([np.array([np.nan])]))
    return float(values[0])


def _rule(transform: Json) -> tuple[float, float, float]:
    """Returns (the addend of a logarithm, 0 without one, -1 for the logit; shift; scale)."""
    kind = transform["kind"]
    if kind in _ADDENDS:
        return _ADDENDS[kind], 0.0, 1.0
    if kind == "standardize":
        return 0.0, transform["mean"], 1.0 / transform["deviation"]
    if kind == "none":
        return 0.0, 0.0, 1.0
    if kind == LOGIT:
        return -1.0, 0.0, 1.0
    raise ValueError(f"no such dense transform: {transform}")


@njit(nogil=True, cache=True)
def _transform(values, begins, ends, rules, tables, out, missing):  # type: ignore[no-untyped-def]  # compiled
    at = 0
    for c in range(len(begins)):
        column, behind = values[begins[c] : ends[c]], at + ends[c] - begins[c]
        addend, shift, scale = rules[c]
        if addend > 0.0:
            table = tables[0] if addend == 1.0 else tables[1]
            missing[c] = _logarithms(column, addend, table, np.float32(math.log(addend)), out[at:behind])
        elif addend < 0.0:
            missing[c] = _logits(column, out[at:behind])
        else:
            missing[c] = _scaled(column, shift, scale, out[at:behind])
        at = behind


@njit(nogil=True, cache=True)
def _logits(values, out):  # type: ignore[no-untyped-def]  # compiled
    count = 0
    for i in range(len(values)):
        if values[i] != values[i]:
            out[i] = 0.0
            count += 1
        else:
            value = min(max(values[i], _SMALLEST), 1.0 - _SMALLEST)
            out[i] = np.float32(math.log(value / (1.0 - value)))
    return count


@njit(nogil=True, cache=True)
def _logarithms(values, addend, table, missing, out):  # type: ignore[no-untyped-def]  # compiled
    count = 0
    for i in range(len(values)):
        value = values[i]
        if value >= 0.0 and value < _TABLE_SIZE:
            whole = np.int64(value)
            if whole == value:
                out[i] = table[whole]
            else:
                out[i] = _logarithm(value, addend)
        elif value != value:
            out[i] = missing
            count += 1
        else:
            out[i] = _logarithm(max(value, 0.0), addend)
    return count


@njit(nogil=True, cache=True)
def _logarithm(value, addend):  # type: ignore[no-untyped-def]  # compiled
    return np.float32(math.log1p(value) if addend == 1.0 else math.log(value + addend))


@njit(nogil=True, cache=True)
def _scaled(values, shift, scale, out):  # type: ignore[no-untyped-def]  # compiled
    count = 0
    for i in range(len(values)):
        value = values[i]
        if value != value:
            out[i] = 0.0
            count += 1
        else:
            out[i] = np.float32((value - shift) * scale)
    return count


def is_target(column: DenseColumn) -> bool:
    """True if the column is made from a sparse column and the clicks."""
    return bool(column.transform["kind"] == TARGET)


def folded_file(folder: Path, file: str) -> Path:
    """The file with the values for training rows, float32 [ids, folds], of the target column with ``file``."""
    return folder / f"{Path(file).name}.npy"


def target_values(transform: Json, num_ids: int, folder: Path, folded: Path | None) -> NDArray[np.float32]:
    """The values of a target column by id [ids], from the dataset in ``folder``.

    ``folded``: the folder with the values for training rows, by id and fold [ids, folds], which are returned instead.
    Raises DataError as ``read_clicks`` does.
    """
    if folded is not None:
        by_fold: NDArray[np.float32] = np.load(folded_file(folded, transform["file"]), mmap_mode="r")
        return by_fold
    path = folder / transform["file"]
    return once_per_file(path, transform, num_ids, lambda: read_clicks(folder, transform, num_ids)[2])
