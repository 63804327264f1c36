"""The "next:" lines: the command to type after a command, made from its result."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlrm_app.api.command import Call
from dlrm_app.result import Result
from dlrm_app.typed import next_line, setting

if TYPE_CHECKING:
    from dlrm_app.dataset.manifest import Manifest
    from dlrm_app.evaluation.result import EvaluationResult
    from dlrm_app.inference.result import Export
    from dlrm_app.preprocessing.summary import Dataset
    from dlrm_app.reports.comparison import Page
    from dlrm_app.runs.run import Run
    from dlrm_app.tools.checking.findings import Findings
    from dlrm_app.tools.checking.raw_logs import Proposal
    from dlrm_app.tools.diagnosis.examine import Examination
    from dlrm_app.tools.planning.plan_cluster import PlannedCluster
    from dlrm_app.tools.synthetic.clicks import Clicks
    from dlrm_app.tools.synthetic.inputs import ModelInputs
    from dlrm_app.tools.tuning.study import Study

Lines = list[str]


def next_lines(name: str, result: Result, call: Call) -> Lines:
    """The lines with the next command after ``dlrm-<name>``; none if there is nothing to do next."""
    return _AFTER[name](result, call) if name in _AFTER else []


def _typed(call: Call, *without: str) -> Lines:
    """The settings as they were typed, without those of the keys or groups ``without``."""
    words = [word for word in call.words if "=" in word]
    return [shlex.quote(word) for word in words if word.partition("=")[0].lstrip("+") not in without]


def _after_preprocess(dataset: "Dataset", call: Call) -> Lines:
    return [_use_of(dataset.manifest)]


def _use_of(manifest: "Manifest") -> str:
    """The line that trains on the dataset; that evaluates on it if it has no training rows; that checks it otherwise."""
    path = {"data.path": manifest.path}
    labelled = [name for name, split in manifest.splits.items() if split.positives is not None]
    if "train" in labelled:
        model = {} if manifest.dense else {"model": "concat"}  # other models need dense columns
        return next_line("dlrm-train", {**path, **model, "tables": "dataset", "trainer.epochs": 1})
    if labelled:
        return next_line("dlrm-evaluate", {"checkpoint": "RUN", **path, "split": labelled[0]})
    return next_line("dlrm-check", path)


def _after_check(found: "Findings | Proposal", call: Call) -> Lines:
    if hasattr(found, "manifest"):
        return [_use_of(found.manifest)]
    given, file = found.given, found.path or f"{found.name}.yaml"
    is_one = isinstance(given, str)
    train = setting("input.train", given) if is_one else shlex.quote(f"input.train=[{','.join(given)}]")
    words = ["split.val=0.1", "split.test=0.1"] if found.has_label else ["'input.unlabelled=[train]'"]
    # twice the share of the sample: dlrm-preprocess accepts 0.001 by itself
    words += [f"rejects.max_fraction={2 * found.rejected:.2g}"] * (found.rejected > 0.0005)
    what = (
        f"check the guesses in {file}, then"
        if found.path
        else f"save this as {file}, check its guesses, then"
    )
    output = setting("output", f"{found.name}_dataset")
    return [what, next_line("dlrm-preprocess", {"dataset": file}, train, *words, output)]


def _after_generate(generated: "Clicks | ModelInputs", call: Call) -> Lines:
    if hasattr(generated, "described_by"):
        clicks = generated.path
        dataset = clicks.with_name(clicks.name.split(".")[0] + "_dataset" * clicks.is_dir())
        shares = {"input.train": clicks, "split.val": 0.1, "split.test": 0.1}
        settings = {**generated.described_by, **shares}
        return [next_line("dlrm-preprocess", {**settings, "output": dataset})]
    typed = [each for each in _typed(call) if each.lstrip("'").startswith(("tables=", "merlin="))]
    model = [] if any(each.startswith("merlin=") for each in typed) else ["model=concat"]
    return [next_line("dlrm-train", {"data.path": generated.path}, *typed, *model, "output=run")]


def _after_train(run: "Run", call: Call) -> Lines:
    """Exports the run, with which=best if the last evaluation on val is not the best one."""
    if not run.evaluations:
        return [next_line("dlrm-evaluate", {"checkpoint": run.path, "split": "train"})]
    last = [each for each in run.evaluations if each.split == "val"][-1:]
    judged = (run.best if run.best is not None else run.evaluations[-1]).by_label.values()
    if run.untaught or any(each.is_bad for each in judged):  # which dlrm-export would refuse
        return [next_line("dlrm-report", {}, shlex.quote(str(run.path)))]
    which = {} if run.best is None or run.best in last else {"which": "best"}
    return [next_line("dlrm-export", {"checkpoint": run.path, **which, "output": f"{run.path}_export"})]


def _after_evaluate(result: "EvaluationResult", call: Call) -> Lines:
    checkpoint, which = call.config.checkpoint, call.config.which
    if checkpoint and call.config.output and call.config.importance.repeats:
        run = Path(result.models[0].checkpoint).parents[1]
        return [next_line("dlrm-report", {"importance": call.config.output}, shlex.quote(str(run)))]
    if checkpoint:
        settings = {"checkpoint": checkpoint, "output": f"{Path(checkpoint)}_export"}
        return [next_line("dlrm-export", settings, f"which={which}")]
    return [next_line("dlrm-evaluate", {"checkpoint": "RUN"}, *_typed(call, "blend", "output"))]


def _after_export(export: "Export", call: Call) -> Lines:
    if export.delta is not None:
        full = {"base": call.config.since, "apply": export.path, "output": f"{export.path}_full"}
        return [next_line("dlrm-export", full)]
    if export.verified_on is None or not export.record.proofs:  # plain weights cannot be scored with
        return []
    dataset, split = export.verified_on
    settings = {"model": export.path, "data.path": dataset, "split": split, "output": "scores.parquet"}
    return [next_line("dlrm-predict", settings)]


def _after_plan(planned: "PlannedCluster", call: Call) -> Lines:
    if planned.path is None:
        return [next_line("dlrm-plan", {}, *_typed(call, "output"), "output=plan")]
    cluster, meet = planned.plan.cluster, "--standalone"
    if cluster.nodes > 1:
        meet = f"--nnodes {cluster.nodes} --rdzv-backend c10d --rdzv-endpoint HOST:29500"
    settings = [each for each in _typed(call, "output", "smallest", "topology") if "topology." not in each]
    if call.config.data.path is None:
        settings.append("data.path=DATASET")
    settings.append(setting("sharding.plan", planned.path))
    command = f"torchrun {meet} --nproc-per-node {cluster.devices_per_node} -m dlrm_app.cli train"
    lines = [f"next: {' '.join([command, *settings])}"]
    if cluster.nodes > 1:
        lines.append("      on each machine, with the first one's name for HOST")
    return [*lines, *(f"      dlrm-train will also ask for this: {each}" for each in planned.batch_problems)]


def _after_tune(study: "Study", call: Call) -> Lines:
    return [f"next: {study.command}"] if study.command else []


def _after_report(page: "Page", call: Call) -> Lines:
    first, *others = page.runs
    against = {"against": others[0]} if others else {}
    return [next_line("dlrm-evaluate", {"checkpoint": first, **against})]


def _after_doctor(examination: "Examination", call: Call) -> Lines:
    return [] if examination.wrong else ["next: dlrm-generate rows=400_000 output=clicks.tsv"]


_AFTER: dict[str, Callable[[Any, Call], Lines]] = {
    "preprocess": _after_preprocess,
    "check": _after_check,
    "generate": _after_generate,
    "train": _after_train,
    "evaluate": _after_evaluate,
    "export": _after_export,
    "plan": _after_plan,
    "tune": _after_tune,
    "report": _after_report,
    "doctor": _after_doctor,
}
