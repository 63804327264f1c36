"""Starts from another run's tensors.

Tables may have grown; features, tables and dense layers may have been added or removed.

What becomes of a table, a dense layer or a dense column, whose rows, weights or column are counted in ``Kept``:

=======  ==========================  ==================================================================================
it is    if                          its values
=======  ==========================  ==================================================================================
whole    both runs have all of it    those of the other run; a table's rows keep their places
grown    this run has more of it     the other run's, and initial ones; weights from new inputs to old outputs
                                     are 0, so that a model begins with the scores that it ended with
reset    ids have other values now   initial ones for the rows of these ids, in the table and in the optimizer's state
new      only this run has it        initial ones
dropped  only the other run has it   none
cut      this run has less of it     the other run's
=======  ==========================  ==================================================================================

Weights of dense layers are matched by the names of their inputs and outputs.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.axes import Axes, Names
from dlrm_app.model.inputs import named_axes
from dlrm_app.runs.checkpoint.load import Places, grid, load_tensors
from dlrm_app.runs.checkpoint.marker import MODEL
from dlrm_app.runs.checkpoint.storage import TensorReader
from dlrm_app.runs.checkpoint.tensors import Tensors, local_pieces, table_name
from dlrm_app.tables.table import Table


@dataclass(frozen=True)
class Described:
    """A run's model, and the names of the dense features that it reads."""

    spec: ModelSpec
    dense: Sequence[str]

    @property
    def tables(self) -> dict[str, Table]:
        """The model's tables by name, without those that are not trained."""
        return {table.name: table for table in self.spec.tables if not table.is_frozen}


@dataclass(frozen=True)
class Kept:
    """Counts of what was kept, is new, was reset (rows whose ids now belong to other values) and was dropped."""

    kept: int = 0
    new: int = 0
    reset: int = 0
    dropped: int = 0

    @property
    def state(self) -> str:
        """A word of the table above, or several: "grown and reset"."""
        if not (self.new or self.reset or self.dropped):
            return "whole"
        if not self.kept and not self.reset:
            return "new" if self.new else "dropped"
        parts = {"grown": self.new, "reset": self.reset, "cut": self.dropped}
        return " and ".join(word for word, number in parts.items() if number)


@dataclass(frozen=True)
class Inherited:
    """Counts of each table's rows, each dense layer's weights (an ensemble's: of its last model), each dense column."""

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

    ``given_again``: table → the rows [R] whose ids were assigned since then, new rows or not; they keep their initial
    values. ``may_differ``: the dense part may differ; otherwise a missing dense tensor or one of another size is a
    DataError.
    """
    reader = TensorReader(folder)
    stored = {name: saved.size for name, saved in reader.tensors.items()}
    tables = {name: tensor for name, tensor in tensors.items() if table_name(name) in then.tables}
    dense = {
        _name_then(name, then, now): tensor for name, tensor in tensors.items() if table_name(name) is None
    }
    places = _find_places(dense, stored, then, now)
    common = {name: tensor for name, tensor in dense.items() if name in places} if may_differ else dense
    reset = _rows_to_reset(given_again, then)
    initial = _initial_rows(tables, reset, now)
    load_tensors(reader, tables | common, places, may_grow=True)
    for rows in initial:
        rows.restore()
    for name in places:
        if name.startswith(f"{MODEL}/") and dense[name].dim() == 2:
            _zero_new_inputs(dense[name], places[name])
    layers = _layers_kept(dense, stored, places)
    return Inherited(_tables_kept(then, now, reset), layers, _columns_kept(then, now))


@dataclass(frozen=True)
class _InitialRows:
    """The initial ``values`` of ``rows`` of a ``piece`` of a table or of its optimizer's state."""

    piece: torch.Tensor
    rows: torch.Tensor
    values: torch.Tensor

    def restore(self) -> None:
        self.piece[self.rows] = self.values


def _rows_to_reset(given_again: Mapping[str, torch.Tensor], then: Described) -> dict[str, torch.Tensor]:
    """Table → its rows whose ids were assigned again; rows that the table did not have are new, not reset."""
    reset = {}
    for name, rows in given_again.items():
        if name in then.tables:
            reset[name] = rows[rows < then.tables[name].rows]
    return reset


def _initial_rows(tables: Tensors, reset: Mapping[str, torch.Tensor], now: Described) -> list[_InitialRows]:
    """Copies the initial values of the rows to ``reset`` that this rank has, before the checkpoint overwrites them."""
    found = []
    for (name, begin), piece in local_pieces(tables).items():
        table = table_name(name) or ""
        if table in reset:
            rows = _rows_of(piece, begin[0], now.tables[table].rows, reset[table])
            found.append(_InitialRows(piece, rows, piece[rows].clone()))
    return found


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
        parameter = _parameter(name, bool(then.spec.labels))
        before, after = (axes.get(parameter, unnamed) for axes in (axes_then, axes_now))
        places = _common_places(before, after, stored[name], dense[name].size())
        found |= {name: places} if places else {}
    return found


def _name_then(name: str, then: Described, now: Described) -> str:
    """The name that the tensor ``name`` had: the main label's top MLP is numbered if there are several labels."""
    if now.spec.labels and not then.spec.labels:
        return name.replace("over_arch.0.", "over_arch.")
    if then.spec.labels and not now.spec.labels:
        return name.replace("over_arch.", "over_arch.0.")
    return name


def _parameter(name: str, has_labels: bool = False) -> str:
    """The parameter of the weight or optimizer state ``name``, without an ensemble's model number.

    ``has_labels``: without the number of a label's top MLP, too.
    """
    parameter = re.sub(r"^(model\.)?(models\.\d+\.)?", "", name.split("/")[1])
    return re.sub(r"^over_arch\.\d+\.", "over_arch.", parameter) if has_labels else parameter


def _common_places(then: Axes, now: Axes, stored: torch.Size, size: torch.Size) -> Places | None:
    """The places of all values that both have.

    None if there are none, or if an axis without names has another length.
    """
    if len(stored) != len(size):
        return None
    before, after = [], []
    for names_then, names_now, length_then, length_now in zip(then, now, stored, size, strict=True):
        pairs = _common(names_then, names_now, length_then, length_now)
        if not pairs:
            return None
        place_then, place_now = torch.tensor(pairs).unbind(1)
        before.append(place_then)
        after.append(place_now)
    return Places(before, after)


def _common(then: Names | None, now: Names | None, length: int, length_now: int) -> list[tuple[int, int]]:
    """(place then, place now) of each name that both have."""
    if then is None or now is None:
        return [(place, place) for place in range(length)] if then is now and length == length_now else []
    before = {name: place for place, name in enumerate(then)}
    return [(before[name], place) for place, name in enumerate(now) if name in before]


def _rows_of(piece: torch.Tensor, begin: int, num_rows: int, rows: torch.Tensor) -> torch.Tensor:
    """The table's ``rows`` that lie in ``piece``, counted from its first row.

    A state of one number a row has the numbers of one shard of columns after those of another.
    """
    first = begin % num_rows
    return (rows[(rows >= first) & (rows < first + len(piece))] - first).to(piece.device)


def _tables_kept(then: Described, now: Described, reset: Mapping[str, torch.Tensor]) -> dict[str, Kept]:
    kept = {name: Kept(new=table.rows) for name, table in now.tables.items() if name not in then.tables}
    for name, table in then.tables.items():
        if name in now.tables:
            num_reset = len(reset.get(name, ()))
            kept[name] = Kept(table.rows - num_reset, now.tables[name].rows - table.rows, num_reset)
        else:
            kept[name] = Kept(dropped=table.rows)
    return kept


def _layers_kept(
    dense: Tensors, stored: Mapping[str, torch.Size], places: Mapping[str, Places]
) -> dict[str, Kept]:
    layers = {}
    for name in {**stored, **dense}:
        if name.startswith(f"{MODEL}/") and not table_name(name):
            common = prod(map(len, places[name].now)) if name in places else 0
            then = stored[name].numel() if name in stored else 0
            now = dense[name].numel() if name in dense else 0
            layers[_parameter(name)] = Kept(common, now - common, dropped=then - common)
    return layers


def _columns_kept(then: Described, now: Described) -> dict[str, Kept]:
    columns = {}
    for name in (*then.dense, *now.dense):
        if name not in now.dense:
            columns[name] = Kept(dropped=1)
        else:
            columns[name] = Kept(kept=1) if name in then.dense else Kept(new=1)
    return columns
