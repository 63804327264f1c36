"""Starts from another run's tensors. Tables may have grown; features, tables and dense layers may have been added or removed.

A table's rows keep their places. Rows whose ids now belong to other values start again, and so does their optimizer state.
Weights of dense layers are matched by the names of their inputs and outputs. A weight from a new input to an old output is 0,
so that a model begins with the scores that it ended with. All other new weights keep their initial values.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.inputs import Axes, Names, named_axes
from dlrm_app.runs.checkpoint.load import Places, grid, load_tensors
from dlrm_app.runs.checkpoint.marker import MODEL
from dlrm_app.runs.checkpoint.storage import TensorReader
from dlrm_app.runs.checkpoint.tensors import Tensors, local_pieces, table_name
from dlrm_app.tables.specs import Table


@dataclass(frozen=True)
class Described:
    """A run's model, and the names of the dense features that it reads."""

    spec: ModelSpec
    dense: Sequence[str]

    @property
    def tables(self) -> dict[str, Table]:
        """The model's tables by name."""
        return {table.name: table for table in self.spec.tables}


@dataclass(frozen=True)
class Kept:
    """Counts of what was kept, is new, was reset (rows whose ids now belong to other values) and was dropped."""

    kept: int = 0
    new: int = 0
    reset: int = 0
    dropped: int = 0


@dataclass(frozen=True)
class Inherited:
    """Counts for each table's rows, each dense layer's weights (in an ensemble: its last model's) and each dense column."""

    tables: Mapping[str, Kept]
    layers: Mapping[str, Kept]
    columns: Mapping[str, Kept]


@torch.no_grad()
def inherit_tensors(
    folder: Path,
    tensors: Tensors,
    then: Described,
    now: Described,
    given_again: Mapping[str, torch.Tensor],
    may_differ: bool,
) -> Inherited:
    """Fills ``tensors``, which hold initial values, in place from the checkpoint ``folder`` of the run ``then``.

    ``given_again``: table → the rows [R] whose ids were assigned since then, new rows or not; they keep their initial values.
    ``may_differ``: the dense part may differ; otherwise a missing dense tensor or one of another size is a DataError.
    """
    reader = TensorReader(folder)
    stored = {name: saved.size for name, saved in reader.tensors.items()}
    tables = {name: tensor for name, tensor in tensors.items() if table_name(name) in then.tables}
    dense = {name: tensor for name, tensor in tensors.items() if table_name(name) is None}
    given_again = {
        name: rows[rows < then.tables[name].rows] for name, rows in given_again.items() if name in then.tables
    }
    places = _find_places(dense, stored, then, now)
    wanted = tables | {name: tensor for name, tensor in dense.items() if name in places or not may_differ}
    initial = [
        (piece, rows, piece[rows].clone())
        for (name, begin), piece in local_pieces(tables).items()
        for table in [table_name(name) or ""]
        if table in given_again
        for rows in [_rows_of(piece, begin[0], now.tables[table].rows, given_again[table])]
    ]
    load_tensors(reader, wanted, places, may_grow=True)
    for piece, rows, values in initial:
        piece[rows] = values
    for name in places:
        if name.startswith(f"{MODEL}/") and dense[name].dim() == 2:
            _zero_new_inputs(dense[name], places[name])
    columns = {
        name: Kept(name in then.dense and name in now.dense, name not in then.dense, 0, name not in now.dense)
        for name in (*then.dense, *now.dense)
    }
    return Inherited(_tables_kept(then, now, given_again), _layers_kept(dense, stored, places), columns)


def _zero_new_inputs(weight: torch.Tensor, places: Places) -> None:
    """Sets ``weight`` [outputs, inputs] to 0 between new inputs and old outputs."""
    outputs, inputs = places.now
    is_new = torch.ones(weight.size(1), dtype=torch.bool)
    is_new[inputs] = False
    weight[grid([outputs, is_new.nonzero().squeeze(1)])] = 0


def _find_places(
    dense: Tensors, stored: Mapping[str, torch.Size], then: Described, now: Described
) -> dict[str, Places]:
    """The places of the values that both have, for each of the ``dense`` tensors that has such values."""
    axes_then, axes_now = (named_axes(each.spec, each.dense) for each in (then, now))
    found: dict[str, Places] = {}
    for name in dense.keys() & stored.keys():
        unnamed = (None,) * dense[name].dim()
        before, after = (axes.get(_parameter(name), unnamed) for axes in (axes_then, axes_now))
        places = _common_places(before, after, stored[name], dense[name].size())
        found |= {name: places} if places else {}
    return found


def _parameter(name: str) -> str:
    """The parameter that the tensor ``name`` belongs to, as weight or optimizer state, without an ensemble's model number."""
    return re.sub(r"^(model\.)?(models\.\d+\.)?", "", name.split("/")[1])


def _common_places(then: Axes, now: Axes, stored: torch.Size, size: torch.Size) -> Places | None:
    """The places of all values that both have; None if there are none, or if an axis without names has another length."""
    if len(stored) != len(size):
        return None
    pairs = [
        _common(*names, *lengths)
        for names, lengths in zip(zip(then, now, strict=True), zip(stored, size, strict=True), strict=True)
    ]
    if not all(pairs):
        return None
    found = [torch.tensor(axis).unbind(1) for axis in pairs]
    return Places([before for before, _ in found], [after for _, after in found])


def _common(then: Names | None, now: Names | None, length: int, length_now: int) -> list[tuple[int, int]]:
    """(place then, place now) of each name that both have."""
    if then is None or now is None:
        return [(place, place) for place in range(length)] if then is now and length == length_now else []
    before = {name: place for place, name in enumerate(then)}
    return [(before[name], place) for place, name in enumerate(now) if name in before]


def _layers_kept(
    dense: Tensors, stored: Mapping[str, torch.Size], places: Mapping[str, Places]
) -> dict[str, Kept]:
    names = [name for name in {**stored, **dense} if name.startswith(f"{MODEL}/") and not table_name(name)]
    layers = {}
    for name in names:
        common = prod(map(len, places[name].now)) if name in places else 0
        then = stored[name].numel() if name in stored else 0
        now = dense[name].numel() if name in dense else 0
        layers[_parameter(name)] = Kept(common, now - common, dropped=then - common)
    return layers


def _rows_of(piece: torch.Tensor, begin: int, num_rows: int, rows: torch.Tensor) -> torch.Tensor:
    """The table's ``rows`` that lie in ``piece``, counted from its first row. A state of one number a row has the
    numbers of one shard of columns after those of another."""
    first = begin % num_rows
    return (rows[(rows >= first) & (rows < first + len(piece))] - first).to(piece.device)


def _tables_kept(then: Described, now: Described, given_again: Mapping[str, torch.Tensor]) -> dict[str, Kept]:
    kept = {name: Kept(new=table.rows) for name, table in now.tables.items() if name not in then.tables}
    for name, table in then.tables.items():
        if name not in now.tables:
            kept[name] = Kept(dropped=table.rows)
            continue
        reset = len(given_again.get(name, ()))
        kept[name] = Kept(table.rows - reset, now.tables[name].rows - table.rows, reset)
    return kept
