"""Opens a checkpoint, verifies its files and loads its tensors, on all ranks together."""

import logging
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel

from dlrm_app.config.optimizer import SparseSettings
from dlrm_app.config.sharding import ShardingConfig, TopologyConfig
from dlrm_app.distributed.collectives import while_others_wait
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import ConfigError, DataError, DlrmError, Problem, first_problems
from dlrm_app.kernels.install import install
from dlrm_app.locks import SharedLock
from dlrm_app.model.build import build_model
from dlrm_app.model.frozen_rows import set_vectors
from dlrm_app.model.loss import ClickTask, set_tf32
from dlrm_app.runs.checkpoint.machines import bring_files
from dlrm_app.runs.checkpoint.marker import (
    EMA,
    MARKER,
    MODEL,
    Checkpoint,
    Marker,
    keeps_ema,
    read_marker,
    verify_files,
)
from dlrm_app.runs.checkpoint.names import (
    checkpoints_of,
    choose_checkpoint,
    hold_checkpoint,
    list_checkpoints,
)
from dlrm_app.runs.checkpoint.resplit import resplit, shares
from dlrm_app.runs.checkpoint.storage import INDEX, SavedTensor, TensorReader
from dlrm_app.runs.checkpoint.tensors import Pieces, Tensors, collect_weights, local_pieces, table_name
from dlrm_app.runs.checkpoint.trained import TrainedModel, describe_trained
from dlrm_app.sharding.planner import plan_model, shard_model
from dlrm_app.stores.names import here, portable
from dlrm_app.tables.table import table_of

logger = logging.getLogger(__name__)


def open_checkpoint(folder: Path, runtime: Runtime) -> Checkpoint:
    """The checkpoint at ``folder``, after all its files are verified. The ranks share the work.

    Every rank takes the first rank's ``folder`` and marker. Where a store has it, files that are not on this machine
    are fetched; ranges that are read later (``bring_files``) are verified then. Raises DataError (on every rank) if it
    is incomplete or damaged.
    """
    place, marker = runtime.on_first(_read, folder)
    folder = here(place)

    def verify() -> None:
        names = {*bring_files(folder, marker.files, runtime), INDEX}
        await_file(folder / MARKER)
        verify_files(folder, {name: marked for name, marked in marker.files.items() if name in names})

    runtime.together(while_others_wait, verify)
    return Checkpoint(folder, marker)


def _read(folder: Path) -> tuple[str, Marker]:
    return portable(folder), read_marker(folder)


SECONDS_TO_APPEAR = 60.0
"""The longest that a network file system may show a node an old listing of a folder (acdirmax of NFS)."""


def await_file(path: Path) -> None:
    """Waits until ``path``, which the first rank sees, is seen here too. Raises DataError after SECONDS_TO_APPEAR."""
    deadline = time.monotonic() + SECONDS_TO_APPEAR
    while not path.is_file():
        if time.monotonic() > deadline:
            rule = f"is not visible on {platform.node()}, but on the first rank's machine"
            raise DataError(Problem(str(path), rule, "give all machines the same folder"))
        time.sleep(0.5)


@dataclass(frozen=True)
class Places:
    """Places along each axis of the same values: in a checkpoint's tensor (``then``) and in a run's (``now``)."""

    then: Sequence[torch.Tensor]
    now: Sequence[torch.Tensor]


def load_tensors(
    reader: TensorReader,
    tensors: Tensors,
    moved: Mapping[str, Places] = MappingProxyType({}),
    may_grow: bool = False,
) -> None:
    """Fills ``tensors`` in place from the checkpoint of ``reader``, written under any plan by any number of ranks.

    A state of one number a row is kept for each shard of columns; see ``resplit`` for a table that is now cut into
    others. A tensor that is ``moved`` or has more rows (``may_grow``) keeps its own values where the checkpoint has
    none. Raises DataError naming all missing or differing tensors.
    """
    stored = reader.tensors
    pieces, splits = local_pieces(tensors), _resplits(stored, tensors)
    problems: list[Problem] = []
    for name, tensor in tensors.items():
        entry = stored.get(name)
        if entry is None:
            problems.append(Problem(name, "is not in it"))
        elif not (
            name in splits
            or name in moved
            or _fits(entry.size, tensor.size(), may_grow and table_name(name) is not None)
        ):
            rule = f"has size {tuple(entry.size)} in it, the model wants {tuple(tensor.size())}"
            problems.append(Problem(name, rule))
    if problems:
        cure = "give the settings that it was saved with (config.yaml has them), or start a new run"
        summary = Problem(str(reader.folder), "is of another model or optimizer", cure)
        raise DataError(summary, *first_problems(problems, 8))
    targets = [each for name, split in splits.items() for each in _replace_by_saved(pieces, name, split)]
    wholes = {name: torch.empty(stored[name].size, dtype=tensors[name].dtype) for name in moved}
    for name, whole in wholes.items():
        pieces[name, (0,) * whole.dim()] = whole
    while_others_wait(lambda: reader.fill(pieces))
    for target in targets:
        target.fill()
    for name, places in moved.items():
        values = wholes[name][grid(places.then)].to(tensors[name].device)
        tensors[name][grid(places.now)] = values


def _fits(stored: torch.Size, size: torch.Size, may_grow: bool) -> bool:
    return stored == size or (may_grow and stored[1:] == size[1:] and stored[0] <= size[0])


def grid(places: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Indices of every combination of ``places``, which has one sequence for each axis."""
    return torch.meshgrid(*places, indexing="ij") if places else ()


@dataclass(frozen=True)
class _Resplit:
    """A table's rows, and the bounds of its column shards from 0 to the width: in a checkpoint and now."""

    rows_then: int
    rows: int
    before: list[int]
    after: list[int]


def _resplits(stored: Mapping[str, SavedTensor], tensors: Tensors) -> dict[str, _Resplit]:
    """The ``tensors`` with one number a row, of tables that have grown or whose columns are cut elsewhere."""
    found = {}
    weights = {f"table/{table}": name for name in tensors if (table := table_of(name))}
    for name, tensor in tensors.items():
        weight = weights.get(name.rpartition("/")[0])
        if weight is None or len(tensor.size()) != 1 or not {name, weight} <= stored.keys():
            continue
        now, (rows, dim) = tensors[weight], tensors[weight].size()
        shards = now.metadata().shards_metadata if isinstance(now, ShardedTensor) else []
        after = sorted({0, dim, *(shard.shard_offsets[1] for shard in shards)})
        before = sorted({0, dim, *(piece.offsets[1] for piece in stored[weight].pieces)})
        then = stored[weight].size[0]
        is_other = before != after or (then < rows and len(after) > 2)
        if is_other and stored[name].size[0] == then * (len(before) - 1):
            found[name] = _Resplit(then, rows, before, after)
    return found


@dataclass(frozen=True)
class _Target:
    """This rank's numbers for one shard of columns, and their sources: the numbers of the checkpoint's shards."""

    numbers: torch.Tensor
    saved: dict[int, torch.Tensor]
    before: list[int]
    bounds: list[int]

    def fill(self) -> None:
        """Sets the numbers, once the saved ones are read."""
        (values,) = resplit(self.saved, self.before, self.bounds)
        self.numbers.copy_(values)


def _replace_by_saved(pieces: Pieces, name: str, split: _Resplit) -> list[_Target]:
    """Puts buffers for the saved numbers of ``name`` into ``pieces``; returns what to fill from them."""
    own = [(pieces.pop(place), *divmod(place[1][0], split.rows)) for place in [*pieces] if place[0] == name]
    targets = []
    for numbers, part, first in own:
        saved_rows = numbers[: max(split.rows_then - first, 0)]  # the others belong to new rows
        if not len(saved_rows):
            continue
        bounds = split.after[part : part + 2]
        places = {
            number: (name, (number * split.rows_then + first,)) for number in shares(split.before, *bounds)
        }
        saved = {
            number: pieces.setdefault(place, torch.empty_like(saved_rows)) for number, place in places.items()
        }
        targets.append(_Target(saved_rows, saved, split.before, bounds))
    return targets


def find_checkpoint(resume: str, output: str | None, runtime: Runtime) -> Checkpoint | None:
    """The checkpoint that ``resume`` names, verified; None to start from step 0.

    ``resume=auto``: the newest complete one in the run folder; damaged ones are logged. A path: that checkpoint,
    or the newest of that run folder. Raises DlrmError if a named checkpoint cannot be used.
    """
    if resume == "none":
        return None
    if resume == "auto":
        folders = runtime.on_first(list_checkpoints, checkpoints_of(Path(output or "")))
        for folder in folders:
            try:
                return open_checkpoint(folder, runtime)
            except DlrmError as error:
                logger.warning("%s\ngoing back to the checkpoint before it", error)
        if folders:
            logger.warning("no checkpoint of %s is whole: starting from step 0", output)
        return None
    return open_checkpoint(runtime.on_first(choose_checkpoint, Path(resume), "newest"), runtime)


NO_OPTIMIZER = SparseSettings(kind="sgd", lr=1.0)
"""SGD keeps no state and is fused on every device, so a model that is only read needs no memory beyond its weights."""


def open_trained(path: Path, runtime: Runtime, which: str = "newest", ema: bool = False) -> TrainedModel:
    """Verifies the checkpoint at ``path`` and describes its model. Raises DlrmError on every rank.

    For a run folder: its newest, or with ``which="best"`` the one with the highest AUC on val. ``ema``: takes the
    average of the dense weights in their place.
    """
    held: list[SharedLock | None] = []

    def choose() -> Path:
        folder, file = hold_checkpoint(path, which)
        held.append(file)
        return folder

    folder = runtime.on_first(choose)
    checkpoint = open_checkpoint(folder, runtime)
    folder, marker = checkpoint.folder, checkpoint.marker
    trained = describe_trained(folder, marker, EMA if ema else MODEL)
    trained = replace(trained, held=held[0] if held else None)
    if ema and not keeps_ema(marker.config):
        rule = f"needs an average of the dense weights, which {folder} does not have"
        cure = "leave ema=true out, or train with optimizer.dense.ema_decay=0.999"
        raise ConfigError(Problem("ema=true", rule, cure))
    return trained


def load_trained(
    trained: TrainedModel,
    sharding: ShardingConfig,
    topology: TopologyConfig,
    batch_size: int,
    runtime: Runtime,
    rows: Mapping[str, torch.Tensor] | None = None,
) -> DistributedModelParallel:
    """The sharded model with its weights, ready for ``evaluate``. It is planned for ``batch_size`` rows a rank.

    ``rows``: for one rank, table → the numbers of the only rows to read, sorted: its tables have these rows alone.
    """
    tables = [replace(table, optimizer={}) for table in trained.tables]
    if rows is not None:
        tables = [replace(table, rows=len(rows[table.name])) for table in tables]
    spec, trainer = replace(trained.spec, tables=tables), trained.trainer
    num_rows = batch_size * runtime.world_size

    def build() -> DistributedModelParallel:
        set_tf32(trainer.tf32, runtime.device)
        model = install(build_model(spec, runtime.device), runtime.device, trainer.kernels)
        task = ClickTask(model, runtime.device, labels=spec.labels)
        rows_looked_up = num_rows * spec.config.ensemble_size
        plan = plan_model(task, tables, NO_OPTIMIZER, sharding, topology, rows_looked_up, runtime)
        return shard_model(task, plan, spec, sharding.collectives, runtime, draws=False)

    model = runtime.together(build)
    reader, tensors = TensorReader(trained.folder), collect_weights(model, trained.dense)
    if rows is not None:
        for name in [name for name in tensors if table_of(name)]:
            _set_rows(tensors.pop(name), reader.rows(name, rows[table_of(name) or ""]))
        runtime.together(set_vectors, model, tables, rows)
    runtime.together(load_tensors, reader, tensors)
    return model


@torch.no_grad()
def _set_rows(tensor: Any, values: torch.Tensor) -> None:
    for (_, (first, left)), part in local_pieces({"": tensor}).items():
        height, width = part.shape
        part.copy_(values[first : first + height, left : left + width])
