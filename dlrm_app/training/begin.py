"""Begins a run with a checkpoint: its own, to resume it, or another run's (a warm start, as in dlrm-days)."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from dlrm_app.runs.checkpoint.inherit import Described, Inherited, inherit_tensors
from dlrm_app.runs.checkpoint.load import load_tensors, open_checkpoint
from dlrm_app.runs.checkpoint.marker import EMA, keeps_ema
from dlrm_app.runs.checkpoint.storage import TensorReader
from dlrm_app.runs.checkpoint.tensors import collect_weights, create_states, set_step
from dlrm_app.runs.checkpoint.trained import TrainedModel
from dlrm_app.table import Column, text_table
from dlrm_app.text import count
from dlrm_app.training.state import RunState

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StartingPoint:
    """The checkpoint ``previous`` that a run of the model ``now`` begins with.

    resumes: it is the run's own checkpoint, verified already; everything continues, to the bit if ranks and plan are
    the same. optimizer: the optimizers' states are taken over too. may_differ: the dense part may differ. given_again:
    table → rows [R] whose ids now belong to other values; they keep their initial weights.
    """

    previous: TrainedModel
    now: Described
    resumes: bool = False
    optimizer: bool = True
    may_differ: bool = False
    given_again: Mapping[str, Tensor] = field(default_factory=dict)


def load_start(state: RunState, start: StartingPoint) -> None:
    """Fills the run's tensors from the checkpoint before the first step, and logs what became of them.

    Raises DlrmError.
    """
    previous, optimizer = start.previous, state.trainable.optimizer
    marker, folder = previous.marker, previous.folder
    if not start.resumes:
        open_checkpoint(folder, state.runtime)
    if start.optimizer:
        create_states(optimizer)
    tensors = state.tensors() if start.optimizer else collect_weights(state.trainable.model)
    continues_ema = start.resumes and keeps_ema(marker.config)
    if not continues_ema:
        tensors = {name: value for name, value in tensors.items() if not name.startswith(f"{EMA}/")}
    if start.resumes:
        state.runtime.together(load_tensors, TensorReader(folder), tensors)
        state.continue_from(marker)
        epoch, step = state.progress.epoch + 1, state.progress.step
        logger.info("resuming from %s: epoch %d, step %s", folder, epoch, f"{step:,}")
    else:
        then = Described(previous.spec, previous.dense_names)
        given_again, may_differ = start.given_again, start.may_differ
        inherited = state.runtime.together(
            inherit_tensors, folder, tensors, then, start.now, given_again, may_differ
        )
        if start.optimizer:
            state.progress.earlier_updates = marker.progress.counted_updates
        where, steps = previous.data_path, count(marker.progress.step, "step")
        became = inherited_table(inherited)
        logger.info("beginning with %s, trained on %s: %s\n%s", folder, where, steps, became)
    if start.optimizer:
        set_step(optimizer, state.progress.counted_updates)
    if state.ema is not None and not continues_ema:
        state.ema.start()


def inherited_table(inherited: Inherited) -> str:
    """A table of what became of each table (rows), dense layer (weights) and dense column; whole ones share a line.

    ``runs/checkpoint/inherit.py`` explains the words.
    """
    rows = []
    for kind, kept in (
        ("tables", inherited.tables),
        ("weights of dense layers", inherited.layers),
        ("dense columns", inherited.columns),
    ):
        changed = {name: each for name, each in kept.items() if each.state != "whole"}
        if num_whole := len(kept) - len(changed):
            rows.append([f"{num_whole:,} {kind}", "whole", "", "", "", ""])
        for name, each in changed.items():
            numbers = (each.kept, each.new, each.reset, each.dropped)
            rows.append([name, each.state, *(f"{number:,}" if number else "" for number in numbers)])
    return text_table(["", Column("is", is_words=True), "kept", "new", "given again", "dropped"], rows)
