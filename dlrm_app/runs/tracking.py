"""Tells trackers of a run, each in a thread of its own: one that fails or hangs costs a warning, never the run.

RUN/trackers.json holds each tracker's name of the run, so that a resumed run continues it, and so that an export and a
published model are kept with it. A run in a folder below a study's belongs to that study.
"""

import json
import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dlrm_app.files import write_json
from dlrm_app.runs.events import Event
from dlrm_app.runs.tracker import TrackedRun, Tracker, new_tracker

logger = logging.getLogger(__name__)

NAMES = "trackers.json"
SECONDS = 60.0
"""The time that a tracker has at the end of a run."""
_LEVELS = 3
"""Folders above a run that may be a study's."""
Call = Callable[[Tracker], object]


class _Thread:
    """Calls one tracker, in order. After an error or a timeout it calls nothing more."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def call(self, call: Call) -> None:
        self._calls.put(call)

    def end(self, seconds: float) -> None:
        """Waits until all calls are made, or warns after ``seconds``."""
        self._calls.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            logger.warning(
                "the tracker %s does not answer for %g s: the run ends without it", self.name, seconds
            )

    def _work(self) -> None:
        try:
            tracker = new_tracker(self.name)
            while (call := self._calls.get()) is not None:
                call(tracker)
        except Exception as error:  # a library may raise anything
            logger.warning(
                f"the tracker {self.name} failed and gets no more events (metrics.jsonl does): "
                f"{type(error).__name__}: {error}"
            )


class Tracking:
    """The trackers ``names`` of one run."""

    def __init__(self, names: Sequence[str]) -> None:
        self._threads = [_Thread(name) for name in dict.fromkeys(names)]
        self._lock = threading.Lock()

    def begin(
        self, folder: Path, config: Mapping[str, object], dataset: Mapping[str, object], step: int = 0
    ) -> None:
        """Begins the run of ``folder``, or continues it if it was begun before."""
        if not self._threads:
            return
        known, parents = run_ids_in(folder), study_ids_above(folder)
        for thread in self._threads:
            run = TrackedRun(
                folder,
                "/".join(folder.absolute().parts[-2:]),
                config,
                dict(dataset),
                step,
                known.get(thread.name) if step else None,
                parents.get(thread.name),
            )
            thread.call(lambda tracker, run=run, name=thread.name: self._begin(tracker, run, name))  # type: ignore[misc]

    def _begin(self, tracker: Tracker, run: TrackedRun, name: str) -> None:
        known = tracker.begin(run)
        if known is not None:
            with self._lock:
                write_json(run.folder / NAMES, {**run_ids_in(run.folder), name: known})

    def add(self, event: Event) -> None:
        for thread in self._threads:
            thread.call(lambda tracker: tracker.add(event))

    def end(self, files: Sequence[Path], *, is_finished: bool) -> None:
        """Ends the run. Keeps those of ``files`` that exist with it."""
        found = [file for file in files if file.is_file()]
        for thread in self._threads:
            thread.call(lambda tracker: tracker.end(found, is_finished=is_finished))
        for thread in self._threads:
            thread.end(SECONDS)


def track_study(folder: Path, names: Sequence[str], settings: Mapping[str, object]) -> None:
    """Begins a study in ``folder``, to which the runs below it will belong, unless it was begun before."""
    if not run_ids_in(folder):
        tracking = Tracking([name for name in names if name != "tensorboard"])
        tracking.begin(folder, settings, {})
        tracking.end([], is_finished=True)


def attach(run: Path, folder: Path) -> None:
    """Keeps ``folder``, such as an export, with the ``run`` in all trackers that know it."""
    _for_known(run, lambda tracker, known: tracker.attach(known, folder))


def publish(run: Path, folder: Path, model: str) -> None:
    """Registers ``folder``, made from ``run``, as the published version of ``model`` in all trackers that know the run."""
    _for_known(run, lambda tracker, known: tracker.publish(known, folder, model))


def _for_known(run: Path, call: Callable[[Tracker, str], None]) -> None:
    threads = []
    for name, known in run_ids_in(run).items():
        threads.append(_Thread(name))
        threads[-1].call(lambda tracker, known=known: call(tracker, known))  # type: ignore[misc]
    for thread in threads:
        thread.end(SECONDS)


def run_ids_in(folder: Path) -> dict[str, str]:
    """Tracker → its name of the run in ``folder``; empty if no tracker knows it."""
    try:
        found = json.loads((folder / NAMES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def study_ids_above(folder: Path) -> dict[str, str]:
    """Tracker → its name of the study that has ``folder`` below it."""
    above = (run_ids_in(each) for each in folder.absolute().parents[:_LEVELS])
    return next(filter(None, above), {})
