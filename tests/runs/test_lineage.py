"""Any sequence of starts, stops, kills and damage leaves in a run folder the history that a simple model keeps."""

import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dlrm_app.checksums import describe_files
from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import DlrmError
from dlrm_app.files import write_json, write_text
from dlrm_app.reports.run_record import read_run
from dlrm_app.runs.checkpoint.evaluation import Evaluation
from dlrm_app.runs.checkpoint.load import find_checkpoint
from dlrm_app.runs.checkpoint.marker import Marker, read_marker
from dlrm_app.runs.checkpoint.names import (
    best_first,
    checkpoint_name,
    checkpoint_step,
    complete,
    list_checkpoints,
    make_partial,
    partial_path,
    remove_old,
)
from dlrm_app.runs.checkpoint.progress import LossSums, Progress
from dlrm_app.runs.events import TrainEvent
from dlrm_app.runs.folder import open_run_folder

ALONE = Runtime(0, 0, 1, 1, torch.device("cpu"), 1)
KEEP_LAST, KEEP_BEST = 2, 1
RUNS = ("a", "b", "c")


@dataclass(frozen=True)
class Saved:
    """A checkpoint in the model: the start that wrote it, its AUC on val, and what was done to it."""

    start: int
    auc: float | None
    damage: str | None = None


@dataclass
class Run:
    """A run folder in the model: the start that logged each step, checkpoints by step, and where it came to its end."""

    events: list[int] = field(default_factory=list)
    saved: dict[int, Saved] = field(default_factory=dict)
    ended_at: int | None = None
    set_aside: list[int] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        """Whether it stands where it came to its end: steps taken after that are gone, if they were never saved."""
        return self.ended_at == len(self.events)

    def go_on_from(self, step: int) -> None:
        """Leaves the history after ``step``."""
        newer = sorted(number for number in self.saved if number > step)
        self.set_aside += [self.saved.pop(number).start for number in newer]
        if newer or (self.ended_at or 0) > step:
            self.ended_at = None
        del self.events[step:]

    def save(self, saved: Saved) -> None:
        """Saves the present step and lets go of what is neither new nor best."""
        self.saved[len(self.events)] = saved
        whole = sorted((step for step, each in self.saved.items() if each.damage != "cut"), reverse=True)
        rated = [(auc, step) for step in whole if (auc := self.saved[step].auc) is not None]
        kept = {*whole[:KEEP_LAST], *(step for _, step in sorted(rated, reverse=True)[:KEEP_BEST])}
        self.saved = {step: each for step, each in self.saved.items() if step in kept or step not in whole}


class Lineage(RuleBasedStateMachine):
    """Runs that save at every second step, and are what ``Run`` says after every start."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.runs: dict[str, Run] = {}
        self.num_starts = 0

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @initialize(steps=st.integers(1, 9), auc=st.floats(0, 1))
    def first_run(self, steps: int, auc: float) -> None:
        self.start("a", "none", None, steps, auc, "end")

    @rule(
        name=st.sampled_from(RUNS),
        steps=st.integers(0, 6),
        auc=st.none() | st.floats(0, 1),
        end=st.sampled_from(["end", "kill", "kill while saving", "kill while replacing"]),
        resume=st.sampled_from(["none", "auto", "auto", "here", "elsewhere"]),
        choice=st.randoms(use_true_random=False),
    )
    def train(self, name: str, steps: int, auc: float | None, end: str, resume: str, choice: object) -> None:
        sources = [n for n in self.runs if (n == name) == (resume == "here") and self.runs[n].saved]
        if resume in ("none", "auto") or not sources:
            self.start(name, "auto" if resume != "none" else "none", None, steps, auc, end)
        else:
            source = choice.choice(sources)  # type: ignore[attr-defined]
            step = choice.choice(sorted(self.runs[source].saved))  # type: ignore[attr-defined]
            self.start(name, source, step, steps, auc, end)

    @rule(name=st.sampled_from(RUNS), newest=st.booleans(), damage=st.sampled_from(["flip", "cut"]))
    def damage(self, name: str, newest: bool, damage: str) -> None:
        run = self.runs.get(name)
        if run is None or not run.saved:
            return
        step = max(run.saved) if newest else min(run.saved)
        path = self.folder / name / "checkpoints" / checkpoint_name(step) / "tensors"
        path.write_bytes(b"x" * (4 if damage == "flip" and path.stat().st_size == 4 else 2))
        was_cut = run.saved[step].damage == "cut"
        run.saved[step] = replace(run.saved[step], damage="cut" if was_cut else damage)

    def start(
        self, name: str, source: str, step: int | None, num_steps: int, auc: float | None, end: str
    ) -> None:
        """Starts a run, in the folder and in the model."""
        self.num_starts += 1
        resume = source if step is None else f"{self.folder / source}/checkpoints/{checkpoint_name(step)}"
        run = self.runs.get(name)
        if step is None:
            is_refused = source == "none" and run is not None
        else:
            is_refused = self.runs[source].saved[step].damage is not None
            is_refused = is_refused or (run is not None and source != name)
        if is_refused:
            with pytest.raises(DlrmError):
                train_stub(self.folder / name, resume, num_steps, auc, end, self.num_starts)
            return
        train_stub(self.folder / name, resume, num_steps, auc, end, self.num_starts)
        run = self.runs.setdefault(name, Run())
        if step is None:
            step = max((n for n, saved in run.saved.items() if saved.damage is None), default=0)
        run.go_on_from(step)
        if not run.saved and step:  # it has gone on elsewhere
            run.events = self.runs[source].events[:step]
            run.save(Saved(self.num_starts, self.runs[source].saved[step].auc))
        for _ in range(num_steps):
            run.events.append(self.num_starts)
            if len(run.events) % 2 == 0:
                run.save(Saved(self.num_starts, auc))
        if num_steps and end == "end":
            run.ended_at = len(run.events)
            run.save(Saved(self.num_starts, auc))

    @invariant()
    def the_folders_are_what_the_model_says(self) -> None:
        for name, run in self.runs.items():
            folder = self.folder / name
            record = read_run(folder)
            assert [int(event.loss) for event in record.train] == run.events
            assert (record.result is not None) == run.has_ended
            if record.result is not None:
                assert record.result["steps"] == len(run.events)
            saved = {checkpoint_step(path): path for path in list_checkpoints(folder / "checkpoints")}
            assert {n: int(read_marker(path).random_state) for n, path in saved.items()} == {
                n: each.start for n, each in run.saved.items()
            }
            rated = [(each.auc, n) for n, each in run.saved.items() if each.auc is not None]
            best = best_first(list_checkpoints(folder / "checkpoints"))
            assert [checkpoint_step(path) for path in best[:1]] == [n for _, n in sorted(rated)[-1:]]
            aside = [
                int(read_marker(path).random_state)
                for n in range(1, 1 + len(list(folder.glob("set-aside-*"))))
                for path in reversed(list_checkpoints(folder / f"set-aside-{n}" / "checkpoints"))
            ]
            assert aside == run.set_aside


def train_stub(output: Path, resume: str, num_steps: int, auc: float | None, end: str, start: int) -> None:
    """What a start does to its folder, without a model: every step logs ``start``, as its loss."""
    config = TrainConfig(resume=resume, output=str(output))
    with open_run_folder(config.output, resume, ALONE) as folder:
        checkpoint = find_checkpoint(config.resume, config.output, ALONE)
        folder.continue_from(checkpoint)
        progress = checkpoint.marker.progress if checkpoint else Progress()
        if checkpoint and not list_checkpoints(output / "checkpoints"):
            save_stub(folder.metrics_bytes(), output, progress, start)
        write_text(output / "config.yaml", "trainer: {global_batch_size: 1}")
        for _ in range(num_steps):
            progress.step += 1
            folder.tell(TrainEvent(0, progress.step, float(start), 1.0, {}))
            if progress.step % 2 == 0:
                rated = [] if auc is None else [Evaluation("val", 0, progress.step, {"auc": auc})]
                save_stub(folder.metrics_bytes(), output, replace(progress, evals=rated), start)
        rated = [] if auc is None else [Evaluation("val", 0, progress.step, {"auc": auc})]
        newest = output / "checkpoints" / checkpoint_name(progress.step)
        if end == "kill while saving":
            make_partial(output / "checkpoints" / checkpoint_name(progress.step + 1))
        elif end == "kill while replacing" and newest.exists():
            newest.rename(newest.with_name(f".{newest.name}.replaced"))
        elif end == "end" and num_steps:
            save_stub(folder.metrics_bytes(), output, replace(progress, evals=rated), start)
            write_json(output / "result.json", {"steps": progress.step})
    with open_run_folder(config.output, "auto", ALONE):
        pass  # what the next start does before all else


def save_stub(metrics_bytes: int, output: Path, progress: Progress, start: int) -> None:
    """A checkpoint of four bytes, by the code that saves real ones."""
    folder = output / "checkpoints" / checkpoint_name(progress.step)
    make_partial(folder)
    (partial_path(folder) / "tensors").write_bytes(b"good")
    files = describe_files(partial_path(folder), ["tensors"])
    marker = Marker(
        progress,
        LossSums([], 0, 0.0, 0, []),
        str(start),
        "",
        {},
        {},
        1,
        {},
        metrics_bytes,
        {},
        "",
        files=files,
    )
    complete(folder, marker)
    remove_old(folder.parent, KEEP_LAST, KEEP_BEST)


TestLineage = Lineage.TestCase
TestLineage.settings = settings(max_examples=20, stateful_step_count=10, deadline=None)
