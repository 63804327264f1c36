"""Saves checkpoints on all ranks, at once or in a thread while training continues; keeps the newest and the best.

torch.distributed.checkpoint.async_save is not used: its thread ends once its index is written, but checksums, marker
and the deletion of older checkpoints come after that; and it copies whole tensors, on CUDA with other placements.
"""

import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.state_dict_saver import save

from dlrm_app.config.train import CheckpointConfig
from dlrm_app.distributed.collectives import new_group
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import DataError, DlrmError, Problem, SharedError
from dlrm_app.files import file_limit
from dlrm_app.runs.checkpoint.machines import gather_files
from dlrm_app.runs.checkpoint.marker import Marker
from dlrm_app.runs.checkpoint.names import (
    checkpoint_name,
    complete,
    make_partial,
    partial_path,
    remove_old,
    remove_partial,
    resume_hint,
)
from dlrm_app.runs.checkpoint.storage import TensorWriter
from dlrm_app.runs.checkpoint.tensors import Pieces, Tensors, local_pieces
from dlrm_app.stores.parts import is_apart
from dlrm_app.text import bytes_text, listed

logger = logging.getLogger(__name__)
COUNTABLE = 1 << 30


def copy_pieces(tensors: Tensors) -> Pieces:
    """Copies this rank's pieces into host memory: as many bytes as its share of the checkpoint.

    The memory is not page-locked: torch would round each piece up to a power of two and keep it for the run's life.
    """
    pieces = local_pieces(tensors)
    return {place: values.detach().to("cpu", copy=True) for place, values in pieces.items()}


def not_finite(pieces: Pieces) -> list[str]:
    """The names of the tensors in which a value is nan or inf."""
    return sorted({name for (name, _), values in pieces.items() if not is_finite(values)})


def is_finite(values: torch.Tensor) -> bool:
    """True if no value is nan or inf. Needs no memory of the size of ``values``, unlike isfinite().all()."""
    if not values.numel():
        return True
    # aminmax propagates nan and is 30 times as fast as isfinite().all(). The parts are small enough that every kernel
    # can count their values in 32 bits
    parts = torch.split(values.detach().flatten(), COUNTABLE)
    extremes = [torch.stack(torch.aminmax(part)) for part in parts]
    return bool(torch.isfinite(torch.stack(extremes)).all())


class PiecesPlanner(DefaultSavePlanner):
    """Saves given pieces instead of the tensors' current values; the tensors give only sizes and places."""

    def __init__(self, pieces: Pieces) -> None:
        super().__init__()
        self._pieces = pieces

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self._pieces[index.fqn, tuple(index.offset or ())]


def save_checkpoint(
    folder: Path,
    tensors: Tensors,
    pieces: Pieces,
    marker: Marker,
    runtime: Runtime,
    group: dist.ProcessGroup | None,
) -> None:
    """Writes the ``tensors`` of all ranks and the first rank's ``marker`` to ``folder``.

    ``pieces``: the values of this rank, or copies of them. ``group``: all ranks, for messages between them. A
    checkpoint appears under its name only once every byte is on disk. Raises DlrmError, on every rank, if any
    rank cannot write or holds a value that is NaN or inf.
    """
    partial = partial_path(folder)
    ranks = replace(runtime, group=group)
    try:
        ranks.together(check_pieces, folder, pieces)
        ranks.on_first(_explained(folder)(make_partial), folder)
        writer = TensorWriter(partial, runtime, group)
        save(tensors, storage_writer=writer, planner=PiecesPlanner(pieces), process_group=group)
        files = gather_files(folder, partial, writer.written, ranks, marker.config)
        ranks.on_first(_explained(folder)(complete), folder, replace(marker, files=files))
    except CheckpointException as error:  # DCP's: raised on every rank
        reasons = "; ".join(f"rank {rank}: {reason[0]}" for rank, reason in error.failures.items())
        raise SharedError(Problem(str(folder), f"could not be written: {reasons}{_room(folder)}")) from error
    finally:
        if runtime.is_first or is_apart(folder, runtime):
            remove_partial(folder)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(Problem(str(folder), f"could not be written: {error}{_room(folder)}")) from error


def check_pieces(folder: Path, pieces: Pieces) -> None:
    """Raises DataError if a value is NaN or inf: such a checkpoint could not be resumed."""
    if bad := not_finite(pieces):
        rule = f"is not saved, because {listed(bad)} are not finite, the weights diverged"
        cure = f"lower the learning rates or set optimizer.dense.clip_norm; {resume_hint(folder.parent)}"
        raise DataError(Problem(str(folder.name), rule, cure))


def _room(folder: Path) -> str:
    """The room on the disk, as text; torch does not report it."""
    disk = next(parent for parent in folder.absolute().parents if parent.is_dir())
    free, limit = shutil.disk_usage(disk).free / 2**30, file_limit()
    limited = "" if limit == math.inf else f", for files of up to {bytes_text(limit)} (ulimit -f)"
    return f"\n  {free:,.1f} GiB are free there{limited}; make room, then: {resume_hint(folder.parent)}"


def in_background(work: Callable[[], None]) -> Future[None]:
    """Runs ``work`` in a daemon thread, so that a process that must end does not wait for its disk."""
    future: Future[None] = Future()

    def fulfil() -> None:
        try:
            work()
        except BaseException as error:  # raised again by result()
            future.set_exception(error)
        else:
            future.set_result(None)

    Thread(target=fulfil, name="checkpoint", daemon=True).start()
    return future


SAVE_WAIT_SECONDS = 60.0
"""Seconds to wait for the current save when an error on one rank ends the run."""


def shutdown_seconds(environment: Mapping[str, str]) -> float | None:
    """The seconds that torchrun gives its ranks to end, as far as the environment tells; None without torchrun."""
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    return float(environment.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30"))


class Checkpoints:
    """Saves into ``folder`` according to ``config``.

    Leaving the block waits for the current save. Every rank makes one.

    ``group``: all ranks, for messages apart from training's.
    """

    def __init__(self, folder: Path, config: CheckpointConfig, runtime: Runtime) -> None:
        self._folder = folder
        self._config = config
        self._runtime = runtime
        self.group = new_group()
        self._pending: Future[None] | None = None
        self._saved_at = time.monotonic()
        self._has_warned = False

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        all_leave_together = error is None or (isinstance(error, DlrmError) and error.is_shared)
        if all_leave_together or self._runtime.world_size == 1:
            self.wait()
        elif self._pending is not None:
            wait([self._pending], SAVE_WAIT_SECONDS)

    def have_failed(self) -> bool:
        """True if this rank knows that a save in the background failed: ``wait`` raises it on every rank."""
        done = self._pending
        return done is not None and done.done() and done.exception() is not None

    def are_overdue(self) -> bool:
        """True if ``every_minutes`` have passed since the last save, by this rank's clock."""
        minutes = self._config.every_minutes
        return minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes

    def save(self, tensors: Tensors, marker: Marker) -> None:
        """Saves, or starts saving in the background, once the previous save has ended.

        Raises DlrmError on every rank if that one failed.
        """
        self.wait()
        folder = self._folder / checkpoint_name(marker.progress.step)
        pieces = copy_pieces(tensors) if self._config.asynchronous else local_pieces(tensors)

        def write() -> None:
            # torch's writer asks for the current stream, which makes a context on the current device
            self._runtime.use_device()
            started = time.monotonic()
            save_checkpoint(folder, tensors, pieces, marker, self._runtime, self.group)
            if self._runtime.is_first:
                self._log_seconds(folder, time.monotonic() - started)
                remove_old(self._folder, self._config.keep_last, self._config.keep_best)

        self._saved_at = time.monotonic()
        if self._config.asynchronous:
            self._pending = in_background(write)
        else:
            write()

    def _log_seconds(self, folder: Path, seconds: float) -> None:
        """Logs the duration of a save, and warns once if a launcher that ends the run would not wait for it."""
        logger.info("saved %s in %.1f s", folder.name, seconds)
        patience = shutdown_seconds(os.environ)
        if patience is not None and seconds > patience and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "a save takes %.0f s, but torchrun kills ranks %.0f s after a signal, within their last save: "
                "start with SHUTDOWN_SECONDS=%d (the scripts) or torchrun --shutdown-timeout=%d",
                seconds,
                patience,
                *[math.ceil(2 * seconds)] * 2,
            )

    def wait(self) -> None:
        """Waits for the current save. Raises DlrmError on every rank if it failed. Every rank must call it."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
