"""Which checkpoint a run goes on from, and whether it may."""

import logging
from dataclasses import asdict
from pathlib import Path

from dlrm_app.checkpoint.format import list_checkpoints
from dlrm_app.checkpoint.load import Checkpoint, open_checkpoint
from dlrm_app.config.train import TrainConfig
from dlrm_app.data.manifest import Manifest
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import ConfigError, DataError, DlrmError

logger = logging.getLogger(__name__)

FIXED_KEYS = (
    ("data", "lanes"),
    ("data", "shuffle"),
    ("trainer", "seed"),
    ("trainer", "global_batch_size"),
)
"""Keys that decide which rows make which batch: a run that goes on must have them as they were."""


def find_checkpoint(config: TrainConfig, runtime: Runtime) -> Checkpoint | None:
    """The checkpoint that ``resume`` names, verified; None to start afresh.

    ``resume=auto``: the newest in the run folder that is whole, saying which ones are not. A path: that one,
    or the newest of that run folder. Raises DlrmError where a named one cannot be used.
    """
    if config.resume == "none":
        return None
    if config.resume == "auto":
        for folder in list_checkpoints(Path(config.output or "") / "checkpoints"):
            try:
                return open_checkpoint(folder, runtime)
            except DlrmError as error:
                logger.warning("%s\ngoing back to the checkpoint before it", error)
        return None
    folder = Path(config.resume)
    if checkpoints := list_checkpoints(folder / "checkpoints"):
        folder = checkpoints[0]
    return open_checkpoint(folder, runtime)


def check_resumable(checkpoint: Checkpoint, config: TrainConfig, manifest: Manifest) -> None:
    """Raises an error naming all that makes the run under ``config`` another one than the checkpoint's."""
    folder, saved = checkpoint.folder, checkpoint.marker.config
    if checkpoint.marker.dataset != manifest.fingerprint():
        raise DataError(
            f"checkpoint {folder} was trained on another dataset ({saved['data']['path']}) than "
            f"{config.data.path}: name that one, or start a new run with resume=none and another output"
        )
    now = asdict(config)
    problems = []
    for section, key in FIXED_KEYS:
        then = saved[section][key]
        if then != now[section][key]:
            problems.append(
                f"{section}.{key} is {now[section][key]}, the run in {folder} has {then}: "
                f"give {section}.{key}={then}, or start a new run"
            )
    if problems:
        raise ConfigError(problems)
