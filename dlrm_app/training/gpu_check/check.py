"""dlrm-gpu-check: the doctor, the CPU's runs, the same on the GPUs, waits of a step, speed, and the page of it all."""

import fnmatch
import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from dlrm_app.config.compose import compose_config
from dlrm_app.config.generate import GenerateConfig
from dlrm_app.config.gpu_check import GpuCheckConfig
from dlrm_app.distributed.ranks import started_ranks
from dlrm_app.doctor.examine import examine
from dlrm_app.errors import ConfigError, DlrmError, refuse_if
from dlrm_app.files import write_text
from dlrm_app.runs.checkpoint.progress import Evaluation
from dlrm_app.runs.events import TrainEvent, read_events
from dlrm_app.synthetic.dataset import write_inputs
from dlrm_app.training.gpu_check import speed
from dlrm_app.training.gpu_check.cases import (
    FIRST,
    STEPS,
    TABLES,
    Case,
    Reference,
    batch_size,
    cases,
    common_settings,
    references,
)
from dlrm_app.training.gpu_check.outcome import OUT_OF_TIME, Findings, Outcome, Speed, State
from dlrm_app.training.gpu_check.page import findings_markdown, findings_page
from dlrm_app.training.gpu_check.processes import Job, Result, rank_command, run_jobs

SYNCS = "syncs of a step"
DOCTOR_SECONDS = 60
FIRST_SHARE = 0.3
"""Of the time, what speed and waits may take together: they come first, and a slow machine is to get to its cases."""
PRECISIONS = {
    "fp32": [],
    "TF32": ["trainer.tf32=true"],
    "bf16": ["trainer.precision=bf16"],
    "bf16 compiled": ["trainer.precision=bf16", "trainer.compile=true"],
}


def check(config: GpuCheckConfig) -> Findings:
    """Runs the checks, prints each as it ends, and writes gpu-check.html and gpu-check.md.

    Raises ConfigError if the device is not there, DlrmError if anything differs or fails.
    """
    started = time.monotonic()
    deadline = started + 60 * config.minutes
    ranks = find_ranks(config)
    refuse_if(only_problems(config))
    folder = Path(config.output)
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    machine = []
    for finding in examine(DOCTOR_SECONDS):
        print(f"{finding.check:20} {finding.state.value:6} {finding.result}", flush=True)
        machine.append((finding.check, finding.state.value, finding.result))
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as root:
        work = Work(Path(root), logs, config, ranks, deadline)
        speeds = work.measure_speed()
        syncs = work.count_syncs() if config.device == "cuda" else None
        outcomes = work.compare()
    findings = Findings(
        config.device,
        ranks,
        time.monotonic() - started,
        ", ".join(f"{name} {version(name)}" for name in _packages()),
        machine,
        outcomes,
        syncs,
        speeds,
    )
    write_text(folder / "gpu-check.html", findings_page(findings))
    write_text(folder / "gpu-check.md", findings_markdown(findings))
    print(f"wrote {folder / 'gpu-check.html'} and, to paste where you report it, {folder / 'gpu-check.md'}")
    if not findings.is_sound:
        raise DlrmError(
            f"something differs, failed, or no case was run in time: {folder / 'gpu-check.html'} shows what, {logs} why"
        )
    return findings


def find_ranks(config: GpuCheckConfig) -> int:
    """How many ranks there are to check on. Raises ConfigError where the device is missing."""
    if config.device == "cpu":
        return config.ranks or 2
    there = torch.cuda.device_count() if started_ranks().device_type == "cuda" else 0
    if there < (config.ranks or 1):
        raise ConfigError(
            [
                f"ranks={config.ranks or 1} on device=cuda, and there are {there} GPUs: dlrm-doctor says why; "
                "device=cpu ranks=2 tries the checks themselves on the CPU"
            ]
        )
    return config.ranks or there


def only_problems(config: GpuCheckConfig) -> list[str]:
    """A pattern that fits no check."""
    names = [SYNCS, *map(speed_name, PRECISIONS), *(case.name for case in cases(config.device))]
    if fnmatch.filter(names, config.only):
        return []
    return [
        f"only={config.only} fits none of the {len(names)} checks on {config.device}, such as {SYNCS}, {speed_name('bf16')}, "
        f"{names[-1]}: a pattern has * for any text, as only=speed*"
    ]


def speed_name(precision: str) -> str:
    """What ``only`` knows the measurement by."""
    return f"speed {precision}"


def _packages() -> list[str]:
    fbgemm = "fbgemm-gpu-cpu" if torch.version.cuda is None else "fbgemm-gpu"
    return ["dlrm-app", "torch", fbgemm, "torchrec"]


class Work:
    """The runs, in ``root``, which goes away afterwards."""

    def __init__(self, root: Path, logs: Path, config: GpuCheckConfig, ranks: int, deadline: float) -> None:
        self._root, self._logs, self._config = root, logs, config
        self._ranks, self._deadline = ranks, deadline
        self._wanted = [case for case in cases(config.device) if self._is_wanted(case.name)]
        left = deadline - time.monotonic()
        self._first_deadline = deadline - (1 - FIRST_SHARE) * left if self._wanted else deadline

    def compare(self) -> list[Outcome]:
        """Every case's outcome, in the cases' order."""
        wanted = self._wanted
        if not wanted:
            return []
        self._write_dataset()
        print(
            f"\n{len(wanted)} cases on {self._ranks} rank(s) of {self._config.device}; first the CPU's own runs"
        )
        needed = {case.reference for case in wanted}
        first = run_jobs(
            [self._reference_job(each) for each in references() if each.name in needed],
            rank_command(1),
            self._logs,
            self._deadline,
            hide_gpus=True,
        )
        jobs = [self._case_job(case) for case in wanted if first.get(case.reference, _MISSING).fault is None]
        by_name = {case.name: case for case in wanted}

        def tell(result: Result) -> None:
            outcome = self._judge(by_name[result.name], result)
            said = outcome.remark or f"losses differ by {outcome.difference or 0:.1e}"
            print(f"{outcome.state.value:8} {outcome.name}: {said} ({outcome.seconds:.1f} s)", flush=True)

        results = run_jobs(jobs, rank_command(self._ranks), self._logs, self._deadline, tell=tell)
        return [self._outcome(case, first, results) for case in wanted]

    def measure_speed(self) -> list[Speed]:
        """A row for each precision that the device has."""
        device = self._config.device
        names = [name for name in PRECISIONS if self._is_wanted(speed_name(name))]
        if device == "cpu" and "TF32" in names:
            names.remove("TF32")
        tables = self._root / "speed.yaml"
        tables.write_text(speed.tables_text(device), encoding="utf-8")
        rows = speed.BATCH[device] * self._ranks
        settings = [f"tables={tables}", "data.path=none", f"trainer.global_batch_size={rows}", *speed.MODEL]
        jobs = [Job("speed", speed_name(name), [[*settings, *PRECISIONS[name]]]) for name in names]
        results = run_jobs(jobs, rank_command(self._ranks), self._logs, self._first_deadline)
        by_name = {name: results.get(speed_name(name), Result("", 0.0, fault=OUT_OF_TIME)) for name in names}
        return [Speed(name, **(result.facts or {}), fault=result.fault) for name, result in by_name.items()]

    def count_syncs(self) -> list[tuple[str, float]] | str | None:
        """Where a step of sparse_dist waits for the GPU; why that is not known; None if it is not asked for."""
        if not self._is_wanted(SYNCS):
            return None
        self._write_dataset()
        common = self._settings()
        legs = [
            [*common, f"trainer.max_steps={n}", f"output={self._root}/syncs-{n}"] for n in (STEPS, 2 * STEPS)
        ]
        jobs = [Job("syncs", SYNCS, legs)]
        results = run_jobs(jobs, rank_command(self._ranks), self._logs, self._first_deadline)
        result = results.get(SYNCS)
        if result is None:
            return OUT_OF_TIME
        return result.fault or sorted((result.facts or {})["per_step"].items(), key=lambda each: -each[1])

    def _is_wanted(self, name: str) -> bool:
        return fnmatch.fnmatch(name, self._config.only)

    def _write_dataset(self) -> None:
        if (self._root / "dataset").exists():
            return
        logging.getLogger("dlrm_app.synthetic").setLevel(logging.WARNING)
        (self._root / "tables.yaml").write_text(TABLES, encoding="utf-8")
        rows = batch_size(self._ranks)
        settings = ["format=dataset", f"tables={self._root}/tables.yaml", "num_dense=4", "alpha=1.05"]
        sizes = [f"rows={2 * STEPS * rows}", f"val_rows={rows + 7}", f"output={self._root}/dataset"]
        write_inputs(compose_config("generate", GenerateConfig, [*settings, *sizes]))

    def _settings(self) -> list[str]:
        dataset = [f"data.path={self._root}/dataset", f"tables={self._root}/tables.yaml"]
        return [*dataset, *common_settings(self._ranks)]

    def _reference_job(self, reference: Reference) -> Job:
        """In two legs, as a case is: with semi_sync the first step after a checkpoint reads fresh rows."""
        settings = [*self._settings(), *reference.settings]
        first, whole = self._first(reference.name), self._folder(reference.name)
        legs = [
            [*settings, f"trainer.max_steps={FIRST}", f"output={first}"],
            [*settings, f"resume={first}", f"output={whole}"],
        ]
        return Job("run", reference.name, legs)

    def _first(self, reference: str) -> Path:
        """The run of the CPU that cases go on from."""
        return self._folder(f"{reference} first")

    def _case_job(self, case: Case) -> Job:
        legs = []
        before = self._first(case.reference)
        for number, leg in enumerate(case.legs):
            output = self._folder(case.name) / str(number)
            resume = [] if case.is_fresh and number == 0 else [f"resume={before}"]
            legs.append([*self._settings(), *leg, *resume, f"output={output}"])
            before = output
        return Job("run", case.name, legs)

    def _folder(self, name: str) -> Path:
        return self._root / "".join(letter if letter.isalnum() else "-" for letter in name)

    def _outcome(self, case: Case, first: Mapping[str, Result], results: Mapping[str, Result]) -> Outcome:
        if reference := first.get(case.reference):
            if reference.fault:
                return Outcome(
                    case.name, State.NOT_RUN, remark=f"the CPU's own run failed: {reference.fault}"
                )
            if result := results.get(case.name):
                return self._judge(case, result)
        return Outcome(case.name, State.NOT_RUN, remark="the time was up")

    def _judge(self, case: Case, result: Result) -> Outcome:
        if result.fault:
            return Outcome(case.name, State.FAILED, result.seconds, remark=result.fault)
        expected = read_losses(self._folder(case.reference))
        losses = read_losses(self._folder(case.name) / str(len(case.legs) - 1))
        if set(losses) != set(expected):
            return Outcome(case.name, State.FAILED, result.seconds, remark=f"its steps are {sorted(losses)}")
        difference = largest_difference(expected, losses)
        state = State.OK if difference <= case.tolerance else State.DIFFERS
        return Outcome(case.name, state, result.seconds, difference)


_MISSING = Result("", 0.0, fault="not run")


def read_losses(run: Path) -> dict[str, float]:
    """Step → training loss, and val's log loss at the end."""
    losses = {}
    for event in read_events(run):
        if isinstance(event, TrainEvent):
            losses[f"{event.step:03d}"] = event.loss
        elif isinstance(event, Evaluation) and event.step == STEPS:
            losses["val"] = event.metrics["logloss"]
    return losses


def largest_difference(expected: Mapping[str, float], losses: Mapping[str, float]) -> float:
    """Relative to the expected; infinite where a loss is no number."""
    differences: Sequence[float] = [abs(losses[key] - value) / abs(value) for key, value in expected.items()]
    return max((each if each == each else float("inf") for each in differences), default=0.0)
