"""Checks exports, predictions and servers before any work starts. Does not import torch."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from dlrm_app.config.export import ExportConfig
from dlrm_app.config.predict import PredictConfig
from dlrm_app.config.serve import ServeConfig
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.distributed.ranks import num_started
from dlrm_app.errors import ConfigError, DataError, DlrmError, Problem, refuse_all, refuse_if
from dlrm_app.files import output_problems
from dlrm_app.inference.record import is_export, read_delta, read_export, refuse_other_base
from dlrm_app.logs.sources.find_sources import find_files
from dlrm_app.runs.checkpoint.evaluation import Judgement
from dlrm_app.runs.checkpoint.marker import read_marker
from dlrm_app.runs.checkpoint.names import choose_checkpoint, refuse_no_checkpoint
from dlrm_app.runs.checkpoint.progress import Progress
from dlrm_app.text import bytes_text
from dlrm_app.typed import install_command

_SMALLER = "quantize=int8 or int4"
COPIES = {
    "aoti": (3, f"use format=torchscript, which holds them once, or {_SMALLER}"),
    "triton": (5, "use format=aoti or torchscript, which can hold them as integers"),
    "torchscript": (1, f"use {_SMALLER}, or format=parquet, which holds a block of rows"),
}
"""Format → the copies of the tables in memory at its peak (torch's compiler joins all constants in one buffer, and
packs it), and what to do where they do not fit. Measured: docs/experiments/evaluation.md."""


def check_export(config: ExportConfig) -> None:
    """Raises one error with all problems of dlrm-export's values and paths."""
    problems = config.problems()
    if config.output:
        problems += output_problems("output", Path(config.output), is_folder=True, is_new=True)
    if num_started() > 1:
        cure = "start it without torchrun"
        problems.append(Problem("dlrm-export", "is one process for any number of training ranks", cure))

    def look_at_exports() -> None:
        if base := config.since or config.base:
            read_export(Path(base))
        if config.base and config.apply:
            refuse_other_base(Path(config.base), Path(config.apply), read_delta(Path(config.apply)))

    looks = [look_at_exports, lambda: _look_at_dataset(config.data.path)]
    if checkpoint := config.checkpoint:

        def look_at_checkpoint() -> None:
            refuse_no_checkpoint(Path(checkpoint))
            marker = read_marker(choose_checkpoint(Path(checkpoint), config.which))
            refuse_judged(checkpoint, marker.progress, config.judgement)

        looks.insert(0, look_at_checkpoint)
    refuse_all(problems, *looks)


def refuse_judged(name: str, progress: Progress, choice: str) -> None:
    """Raises DlrmError if the model ``name`` must not be used by what training found, unless ``choice`` is to ignore
    that: a label was not learnt, or there was nothing to learn it from.
    """
    bad = {label: each for label, each in progress.judgements.items() if each.is_bad}
    for label, judgement in bad.items():
        refuse_bad(name, judgement, choice, label)
    for why in progress.untaught.values() if choice != "ignore" else ():
        rule = f"is not exported, because {why}, from which it could learn nothing"
        cure = (
            "correct the label's column and preprocess again, or leave it out of dataset.labels; "
            "judgement=ignore exports it as it is"
        )
        raise DlrmError(Problem(name, rule, cure))


def refuse_bad(name: str, judgement: Judgement, choice: str, label: str) -> None:
    """Raises DlrmError for a bad ``judgement`` of the model ``name``, or of another ``label``, unless ``choice`` is to
    ignore it.
    """
    if not judgement.is_bad or choice == "ignore":
        return
    of_label = f"its {label} is " if label else "it is "
    cure = "train it again, or add judgement=ignore to export it as it is"
    raise DlrmError(Problem(name, f"is not exported, because {of_label}{judgement.text}", cure))


def check_predict(config: PredictConfig) -> None:
    """Raises one error with all problems of dlrm-predict's values and paths."""
    problems = config.problems()
    if config.output:
        problems += output_problems("output", Path(config.output), is_new=True)

    def look_at_rows() -> None:
        _look_at_dataset(config.data.path)
        if config.input is not None and not problems:
            find_files("input", config.input)

    refuse_all(problems, lambda: _look_at_model(config.model), look_at_rows)


def _look_at_model(path: str) -> None:
    if not path or is_export(Path(path)):
        return
    if not Path(path).is_dir():
        raise ConfigError(
            Problem(f"model={path}", "does not exist", "give an export, a run folder or a checkpoint")
        )
    try:
        refuse_no_checkpoint(Path(path))
    except DataError as error:
        cure = "of a delta dlrm-export base=EXPORT apply=DELTA makes one"
        raise DataError(Problem(f"model={path}", "is not an export", cure), *error.problems) from error


def _look_at_dataset(path: str | None) -> None:
    if path:
        read_manifest(Path(path))


def check_serve(config: ServeConfig) -> None:
    """Raises one error with all problems of dlrm-serve's values and paths."""
    problems, path = config.problems(), config.model
    lacking = [name for name in ("starlette", "uvicorn", "prometheus_client") if find_spec(name) is None]
    if lacking:
        names = ", ".join(lacking)
        rule = f"needs {names}, which this Python lacks"
        problems.append(Problem("dlrm-serve", rule, install_command("serve")))
    if path and not is_export(Path(path)):
        cure = "make one with dlrm-export checkpoint=RUN output=EXPORT, then model=EXPORT"
        problems.append(Problem(f"model={path}", "is not an export", cure))
    refuse_if(problems)


def memory_problems(formats: Sequence[str], table_bytes: int, memory: int) -> list[Problem]:
    """Problems: formats that hold tables of ``table_bytes`` more often than ``memory`` bytes allow."""
    return [
        Problem(
            f"format={name}",
            f"holds the tables {copies} times while it writes them, {bytes_text(copies * table_bytes)} "
            f"in all, and this machine has {bytes_text(memory)}",
            cure,
        )
        for name, (copies, cure) in COPIES.items()
        if name in formats and copies * table_bytes > memory
    ]
