"""The commands: the schema, checks and job of each, and the page that it writes. Modules are imported only when they are needed."""

import gc
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from dlrm_app.cli.process import loading
from dlrm_app.distributed.launcher import LAUNCHED
from dlrm_app.distributed.ranks import started_ranks
from dlrm_app.errors import ConfigError, DlrmError, refuse_if

Job = Callable[[Any], Any]


def _find(place: str) -> Any:
    """Imports and returns the object ``folder.module.name``."""
    module, _, name = place.rpartition(".")
    return getattr(import_module(f"dlrm_app.{module}"), name)


def _job(place: str) -> Job:
    """The job at ``place``, which is imported when it runs."""

    def run(config: Any) -> None:
        with loading():
            work = _find(place)
        work(config)

    return run


def _lazily(place: str, *more: Callable[[], Any]) -> Job:
    """A function that imports ``place`` and calls it with the configuration and the results of ``more``."""
    return lambda config: _find(place)(config, *(each() for each in more))


def _check(config: Any) -> None:
    with loading():
        from dlrm_app.checking.check_dataset import check_dataset, conclude, log_tables
        from dlrm_app.checking.raw_logs import check_raw

    if config.input is not None:
        check_raw(config.input, config.output)
        return
    findings = check_dataset(Path(config.data.path), num_threads=config.threads, memory_gib=config.memory_gib)
    log_tables(findings)
    conclude(findings)


def _train(config: Any) -> float | None:
    """Trains. Returns the best AUC on val; None without a labelled val split."""
    with loading():
        from dlrm_app.reports.run_page import write_report
        from dlrm_app.training.train import train

    return train(config, write_report).best_val_auc


def _tune(config: Any) -> None:
    with loading():
        from dlrm_app.reports.study import write_study
        from dlrm_app.text import typed_settings
        from dlrm_app.tuning.study import tune

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that trials save on SIGTERM too
    typed = typed_settings("output")
    try:
        tune(config, [word for word in typed if not word.lstrip("'+").startswith("tune.")])
    finally:
        if page := write_study(Path(str(config.output))):
            print(f"page: {page}")


def report_runs(config: Any) -> None:
    """Writes the page of a run, or a comparison of several, and prints its path. Raises DlrmError."""
    with loading():
        from dlrm_app.reports.comparison import read_runs, write_comparison
        from dlrm_app.reports.run_page import write_report
        from dlrm_app.text import next_line

    runs = read_runs(config.runs)
    if len(runs) == 1:
        (record,) = runs.values()
        print(write_report(record.path, Path(config.output) if config.output else None))
        print(next_line("dlrm-evaluate", {"checkpoint": record.path}))
        return
    print(write_comparison(runs, config.split, config.output))
    first, second, *_ = runs.values()
    print(next_line("dlrm-evaluate", {"checkpoint": first.path, "against": second.path}))


def _check_days(config: Any) -> None:
    """Raises one error with all problems that can be found without a dataset, those of other commands' settings included."""
    from dlrm_app.config.compose import compose_config
    from dlrm_app.daily.words import sample_words
    from dlrm_app.files import output_problems

    problems = [*config.problems(), *output_problems("output", Path(config.output), is_folder=True)]
    has_files = config.dataset and not config.input.problems()
    for name, words in sample_words(config).items() if has_files else ():
        try:
            schema = schema_of(name)
            problems += [f"{name}.{each}" for each in compose_config(name, schema, words).problems()]
        except ConfigError as error:
            problems += [f"{name}.{each}" for each in error.problems]
    refuse_if(problems)


def _days(config: Any) -> None:
    with loading():
        from dlrm_app.daily.days import go_through_days
        from dlrm_app.reports.days import write_days

    ranks = started_ranks()
    try:
        outcome = go_through_days(config, run_words, ranks)
    finally:
        if ranks.is_first and (page := write_days(Path(config.output))):
            print(f"page: {page}")
    if ranks.is_first and outcome.exit_code:
        sys.exit(outcome.exit_code)


def run_words(name: str, words: Sequence[str], log: Path) -> None:
    """Runs ``dlrm-<name>`` with ``words`` in this process (an export in its own), and appends its output to ``log``.

    Raises DlrmError.
    """
    from dlrm_app.config.compose import compose_config

    if name == "export":  # runs on one rank, and compiles
        return _run_alone(name, words, log)
    typed, sys.argv = sys.argv, [f"dlrm-{name}", *words]  # for the next command that it prints
    try:
        with log.open("a", encoding="utf-8") as file, redirect_stdout(file):
            print(f"\n$ {shlex.join(sys.argv)}", flush=True)
            command, schema = COMMANDS[name], schema_of(name)
            command.job(compose_config(name, schema, words, command.check, command.complete))
    finally:
        sys.argv = typed


def _run_alone(name: str, words: Sequence[str], log: Path) -> None:
    import subprocess  # other commands do not need it

    of_launcher = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    environment = {key: value for key, value in os.environ.items() if key not in of_launcher}
    command = [sys.executable, "-m", "dlrm_app.cli", name, *words]
    with log.open("a", encoding="utf-8") as file:
        print(f"\n$ {shlex.join([f'dlrm-{name}', *words])}", file=file, flush=True)
        done = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, env={**environment, LAUNCHED: "1"}, check=False
        )
    if done.returncode:
        raise DlrmError(f"dlrm-{name} failed, see the end of {log}")


def _doctor(timeout: float) -> None:
    with loading():
        from dlrm_app.diagnosis.examine import examine, report

    report(examine(timeout))


def _check_schema(config: Any) -> None:
    refuse_if(config.problems())


@dataclass(frozen=True)
class Command:
    """The place of a schema below config/, and the functions for configurations of that schema.

    ``check`` raises one error with all problems before any work, and does not import torch. ``complete`` adds to the checked
    overrides the settings that they leave open. ``reworded`` turns words that are not settings into settings.
    """

    schema: str
    job: Job
    check: Job = _check_schema
    complete: Callable[[list[str]], list[str]] = list
    reworded: Callable[[list[str]], list[str]] = list


_with_recipe = _lazily("cli.auto_recipe.with_recipe")
COMMANDS = {
    "preprocess": Command("datasets.PreprocessConfig", _job("preprocessing.preprocess.preprocess")),
    "check": Command("datasets.CheckConfig", _check),
    "train": Command(
        "train.TrainConfig",
        _train,
        # all ranks check it again together, after they have joined
        lambda config: _find("training.validation.check_training")(config, started_ranks(), starts_run=True),
        _with_recipe,
    ),
    "evaluate": Command(
        "scoring.EvaluateConfig",
        _job("evaluation.evaluate_checkpoints.evaluate_checkpoints"),
        _lazily("evaluation.problems.check_paths", lambda: started_ranks().is_first),
    ),
    "export": Command(
        "scoring.ExportConfig",
        _job("inference.export.export_model"),
        _lazily("inference.problems.check_export"),
    ),
    "predict": Command(
        "scoring.PredictConfig",
        _job("inference.predict.predict.predict"),
        _lazily("inference.problems.check_predict"),
    ),
    "serve": Command(
        "scoring.ServeConfig", _job("inference.serve.server.serve"), _lazily("inference.problems.check_serve")
    ),
    "tune": Command(
        "like_train.TuneConfig",
        _tune,
        _lazily("training.validation.check_tuning", started_ranks),
        _with_recipe,
    ),
    "plan": Command(
        "like_train.PlanConfig",
        _job("planning.plan_cluster.plan_cluster"),
        _lazily("training.validation.check_plan"),
    ),
    "generate": Command("datasets.GenerateConfig", _job("synthetic.generate")),
    "days": Command("days.DaysConfig", _days, _check_days, reworded=_lazily("config.days.with_words")),
    "report": Command(
        "scoring.ReportConfig",
        report_runs,
        _lazily("reports.comparison.check_runs"),
        reworded=_lazily("config.scoring.with_runs"),
    ),
    "doctor": Command("scoring.DoctorConfig", lambda config: _doctor(config.timeout)),
}


def schema_of(name: str) -> type[Any]:
    """The schema of ``dlrm-<name>``."""
    found: type[Any] = _find(f"config.{COMMANDS[name].schema}")
    return found


def run(name: str) -> None:
    """Runs ``dlrm-<name>`` with the words on the command line."""
    command = COMMANDS[name]
    gc.disable()  # until the job has loaded its modules
    try:
        from dlrm_app.cli.launch import launch

        schema = schema_of(name)
    except ImportError as error:
        if name != "doctor":
            raise
        return _examine_without_hydra(error)
    sys.argv[1:] = command.reworded(sys.argv[1:])
    return launch(name, schema, command.job, command.check, command.complete)


def _examine_without_hydra(reason: ImportError) -> None:
    """Examines an installation that cannot compose a configuration, with the timeout of conf/doctor.yaml."""
    print(f"{reason}: install dlrm-app with all that it requires. Examining the rest:", file=sys.stderr)
    try:
        _doctor(180)
    except DlrmError as error:
        sys.exit(f"error: {error}")


def __getattr__(name: str) -> Callable[[], None]:
    """``commands.train`` and the others, for pyproject's scripts."""
    if name not in COMMANDS:
        raise AttributeError(name)
    return partial(run, name)
