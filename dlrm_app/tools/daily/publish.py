"""Publishes a day, and deletes the files of old ones."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from dlrm_app.errors import DataError, Problem
from dlrm_app.runs import tracking as trackers
from dlrm_app.tools.daily.record import DayRecord


def prune(days: Path, records: Sequence[DayRecord], num_kept: int) -> None:
    """Deletes the files of days before the last ``num_kept`` published ones.

    Keeps their records, and the models that later days are compared with: the first and the newest from scratch.
    """
    published = [record.day for record in records if record.published]
    retrained = [record.day for record in records if record.retrained]
    for day in (record.day for record in records if record.day < published[-num_kept:][0]):
        parts = ["dataset", "rows", "export"]
        parts += ["model"] if day != published[0] else []
        parts += ["retrain"] if day not in retrained[-1:] else []
        for part in parts:
            shutil.rmtree(days / day / part, ignore_errors=True)


def publish(folder: Path) -> None:
    """Makes OUTPUT/published a link to the ``folder`` of a day, in one step. Raises DataError if it is not a link."""
    output = folder.parents[1]
    link, target = output / "published", folder.relative_to(output)
    if link.exists() and not link.is_symlink():
        raise DataError(
            Problem(str(link), "is not a link to the published day", "remove it and run the same command")
        )
    if not link.is_symlink() or link.readlink() != target:
        temporary = output / ".published.partial"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.replace(link)


def track_published(folder: Path) -> None:
    """Registers the export of a published day, or its run without one, in the trackers that know the run."""
    export, model = folder / "export", folder / "model"
    trackers.publish(model, export if export.is_dir() else model, folder.parents[1].name)
