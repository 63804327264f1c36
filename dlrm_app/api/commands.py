"""The table of commands: the schema, the checks and the job of each, imported only when the command is used."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor as Pool
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dlrm_app.api.command import Call, Command, Job
from dlrm_app.api.places import local_places
from dlrm_app.distributed.ranks import sharing_ranks, started_ranks
from dlrm_app.errors import ConfigError, Problem, refuse_if
from dlrm_app.forks import refuse_fork
from dlrm_app.result import Result
from dlrm_app.typed import words_of

if TYPE_CHECKING:
    from dlrm_app.config.check import CheckConfig
    from dlrm_app.config.datasets import PreprocessConfig
    from dlrm_app.config.days import DaysConfig
    from dlrm_app.config.doctor import DoctorConfig
    from dlrm_app.config.evaluate import EvaluateConfig
    from dlrm_app.config.export import ExportConfig
    from dlrm_app.config.generate import GenerateConfig
    from dlrm_app.config.like_train import PlanConfig, TuneConfig
    from dlrm_app.config.overrides import Settings
    from dlrm_app.config.predict import PredictConfig
    from dlrm_app.config.report import ReportConfig
    from dlrm_app.config.schema import Section
    from dlrm_app.config.serve import ServeConfig
    from dlrm_app.config.train import TrainConfig


class _HasPlugins(Protocol):
    plugins: list[str]


Extensible = TypeVar("Extensible", bound=_HasPlugins)


def _with_plugins(config: Extensible) -> Extensible:
    """``config`` with the checksums of the files of ``plugins``, which are executed unless they already were."""
    if not config.plugins:
        return config
    from dlrm_app.model.plugins import load_plugins

    return replace(config, plugins=load_plugins(config.plugins))  # type: ignore[type-var]  # a dataclass


def _preprocess() -> "Command[PreprocessConfig]":
    from dlrm_app.config.datasets import PreprocessConfig

    def load() -> "Job[PreprocessConfig]":
        from dlrm_app.preprocessing.preprocess import ALONE, preprocess

        def work(config: PreprocessConfig, call: Call) -> Result:
            # from Python, under any launcher, one process works by itself unless ranks are asked for
            is_shared = call.is_typed or config.ranks is not None
            ranks = sharing_ranks(config.ranks, os.environ) if is_shared else ALONE
            return preprocess(config, ranks, call.pool)

        return work

    return Command(PreprocessConfig, load, takes_tasks=True)


def _check() -> "Command[CheckConfig]":
    from dlrm_app.config.check import CheckConfig

    def load() -> "Job[CheckConfig]":
        from dlrm_app.tools.checking.check_dataset import check_dataset, conclude
        from dlrm_app.tools.checking.raw_logs import check_raw

        def check(config: CheckConfig, call: Call) -> Result:
            if config.input is not None:
                return check_raw(config.input, config.output)
            folder = Path(str(config.data.path))
            return conclude(check_dataset(folder, num_threads=config.threads, memory_gib=config.memory_gib))

        return check

    return Command(CheckConfig, load)


def _complete(typed: "Settings") -> "Settings":
    from dlrm_app.api.auto_recipe import auto_settings

    return auto_settings(typed)


def _train() -> "Command[TrainConfig]":
    from dlrm_app.config.train import TrainConfig

    def check(config: TrainConfig) -> None:
        from dlrm_app.training.validation import check_training

        # all ranks check it again together, after they have joined
        check_training(_with_plugins(config), started_ranks(), starts_run=True)

    def load() -> "Job[TrainConfig]":
        from dlrm_app.reports.run_page import write_report
        from dlrm_app.training.train import train

        return lambda config, call: train(_with_plugins(config), write_report, ["dlrm-train", *call.words])

    return Command(TrainConfig, load, check, _complete)


def _evaluate() -> "Command[EvaluateConfig]":
    from dlrm_app.config.evaluate import EvaluateConfig

    def check(config: EvaluateConfig) -> None:
        from dlrm_app.evaluation.problems import check_paths

        check_paths(_with_plugins(config), started_ranks().is_first)

    def load() -> "Job[EvaluateConfig]":
        from dlrm_app.evaluation.evaluate_checkpoints import evaluate_checkpoints

        return lambda config, call: evaluate_checkpoints(_with_plugins(config))

    return Command(EvaluateConfig, load, check)


def _export() -> "Command[ExportConfig]":
    from dlrm_app.config.export import ExportConfig

    def check(config: ExportConfig) -> None:
        from dlrm_app.inference.problems import check_export

        check_export(_with_plugins(config))

    def load() -> "Job[ExportConfig]":
        from dlrm_app.inference.export import export_model

        return lambda config, call: export_model(_with_plugins(config))

    return Command(ExportConfig, load, check)


def _predict() -> "Command[PredictConfig]":
    from dlrm_app.config.predict import PredictConfig

    def check(config: PredictConfig) -> None:
        from dlrm_app.inference.problems import check_predict

        check_predict(_with_plugins(config))

    def load() -> "Job[PredictConfig]":
        from dlrm_app.inference.predict.predict import predict

        return lambda config, call: predict(_with_plugins(config))

    return Command(PredictConfig, load, check)


def _serve() -> "Command[ServeConfig]":
    from dlrm_app.config.serve import ServeConfig

    def check(config: ServeConfig) -> None:
        from dlrm_app.inference.problems import check_serve

        check_serve(config)

    def load() -> "Job[ServeConfig]":
        from dlrm_app.inference.serve.server import serve

        return lambda config, call: serve(config, call.say)

    return Command(ServeConfig, load, check)


def _tune() -> "Command[TuneConfig]":
    from dlrm_app.config.like_train import TuneConfig

    def check(config: TuneConfig) -> None:
        from dlrm_app.training.validation import check_tuning

        check_tuning(_with_plugins(config), started_ranks())

    def load() -> "Job[TuneConfig]":
        from dlrm_app.reports.study import write_study
        from dlrm_app.tools.tuning.study import tune

        def work(config: TuneConfig, call: Call) -> Result:
            try:
                study = tune(_with_plugins(config), call.settings)
            except BaseException:
                write_study(Path(str(config.output)))
                raise
            return replace(study, page=write_study(study.path))

        return work

    return Command(TuneConfig, load, check, _complete)


def _plan() -> "Command[PlanConfig]":
    from dlrm_app.config.like_train import PlanConfig

    def check(config: PlanConfig) -> None:
        from dlrm_app.training.validation import check_plan

        check_plan(_with_plugins(config))

    def load() -> "Job[PlanConfig]":
        from dlrm_app.tools.planning.plan_cluster import plan_cluster

        return lambda config, call: plan_cluster(_with_plugins(config))

    return Command(PlanConfig, load, check)


def _generate() -> "Command[GenerateConfig]":
    from dlrm_app.config.generate import GenerateConfig

    def load() -> "Job[GenerateConfig]":
        from dlrm_app.tools.synthetic import generate

        return lambda config, call: generate(config)

    return Command(GenerateConfig, load)


def _days() -> "Command[DaysConfig]":
    from dlrm_app.config.days import DaysConfig, regrouped

    def load() -> "Job[DaysConfig]":
        from dlrm_app.api.days import run_in_log
        from dlrm_app.reports.days import write_days
        from dlrm_app.tools.daily.days import go_through_days

        def work(config: DaysConfig, call: Call) -> Result:
            ranks = started_ranks()
            output = Path(config.output)
            try:
                outcome = go_through_days(config, partial(run_in_log, run))
            except BaseException:
                if ranks.is_first:
                    write_days(output)
                raise
            return replace(outcome, page=write_days(output)) if ranks.is_first else outcome

        return work

    return Command(DaysConfig, load, _check_days, regroup=regrouped)


def _check_days(config: "DaysConfig") -> None:
    """Raises one error with all problems that need no dataset to find, those of other commands included."""
    from dlrm_app.config.compose import compose_config
    from dlrm_app.config.days import SCHEMAS
    from dlrm_app.files import output_problems
    from dlrm_app.tools.daily.settings import sample_settings

    problems = [*config.problems(), *output_problems("output", Path(config.output), is_folder=True)]
    has_files = config.dataset and not config.input.problems()
    for name, settings in sample_settings(config).items() if has_files else ():
        try:
            found = compose_config(name, SCHEMAS[name], settings).problems()
        except ConfigError as error:
            found = error.problems
        problems += [each.within(name, ".") for each in found]
    refuse_if(problems)


def _report() -> "Command[ReportConfig]":
    from dlrm_app.config.report import ReportConfig

    def check(config: ReportConfig) -> None:
        from dlrm_app.reports.comparison import check_runs

        check_runs(config)

    def load() -> "Job[ReportConfig]":
        from dlrm_app.reports.comparison import report_runs

        return lambda config, call: report_runs(config)

    return Command(ReportConfig, load, check, positional="runs")


def _doctor() -> "Command[DoctorConfig]":
    from dlrm_app.config.doctor import DoctorConfig

    def load() -> "Job[DoctorConfig]":
        from dlrm_app.tools.diagnosis.examine import diagnose

        return lambda config, call: diagnose(config.timeout)

    return Command(DoctorConfig, load)


COMMANDS: Mapping[str, Callable[[], Command[Any]]] = {
    "preprocess": _preprocess,
    "check": _check,
    "train": _train,
    "evaluate": _evaluate,
    "export": _export,
    "predict": _predict,
    "serve": _serve,
    "tune": _tune,
    "plan": _plan,
    "generate": _generate,
    "days": _days,
    "report": _report,
    "doctor": _doctor,
}
"""Name → the function that imports and returns the command."""


def schema_of(name: str) -> "type[Section]":
    return COMMANDS[name]().schema


def checked_config(name: str, settings: "Settings", problems: Sequence[Problem] = ()) -> Any:
    """The checked configuration of ``dlrm-<name>`` with ``settings``.

    Raises one error with ``problems``, which are known already, and all others.
    """
    from dlrm_app.config.compose import compose_config

    command = COMMANDS[name]()
    settings = command.regroup(settings)
    return compose_config(name, command.schema, settings, command.check, command.complete, problems)


def checked_types(name: str, settings: "Settings", problems: Sequence[Problem] = ()) -> None:
    """Raises one error with ``problems`` and those of keys and types, which are found without reading a file."""
    from dlrm_app.config.compose import compose_config

    command = COMMANDS[name]()
    compose_config(name, command.schema, command.regroup(settings), problems=problems)


def run(
    name: str,
    settings: "Settings",
    words: Sequence[str] | None = None,
    problems: Sequence[Problem] = (),
    pool: Pool | None = None,
) -> Result | None:
    """Runs ``dlrm-<name>`` with ``settings`` in this process, without output. Raises DlrmError.

    ``words``: the settings as they were typed; ``problems``: those that are known already; ``pool``: see ``Call``.
    """
    refuse_fork()
    typed = tuple(words_of(settings) if words is None else words)
    with local_places(name, settings, partial(checked_types, name, settings, problems)) as local:
        config = checked_config(name, local, problems)
        return COMMANDS[name]().load()(config, Call(config, local, typed, pool=pool))
