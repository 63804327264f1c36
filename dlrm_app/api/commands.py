"""The commands: the schema, the checks and the job of each. Modules are imported only when they are needed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from dlrm_app.distributed.ranks import started_ranks
from dlrm_app.errors import ConfigError, refuse_if
from dlrm_app.result import Result


def _say_nothing(_: str) -> None:
    pass


@dataclass(frozen=True)
class Call:
    """A call of a command. ``words``: its settings as they were typed; ``config``: the configuration composed of them.

    ``say``: shows a line to the user while the job runs.
    """

    words: tuple[str, ...]
    config: Any
    say: Callable[[str], None] = field(default=_say_nothing)

    def typed(self, *without: str) -> list[str]:
        """The settings, without those of the keys or groups ``without``."""
        return [
            word for word in self.words if "=" in word and word.partition("=")[0].lstrip("+") not in without
        ]


Job = Callable[[Any, Call], Result | None]
"""Does the work that a configuration describes. Raises DlrmError for problems that a user can fix."""


@dataclass(frozen=True)
class Command:
    """A command.

    ``schema``: the place of its schema below config/.
    ``load``: imports what its job needs, and returns the job.
    ``check``: raises one error with all problems before any work, and does not import torch.
    ``complete``: returns settings for what the typed ones leave open.
    ``reworded``: turns words that are not settings into settings.
    """

    schema: str
    load: Callable[[], Job]
    check: Callable[[Any], object] = lambda config: refuse_if(config.problems())
    complete: Callable[[Mapping[str, object]], Mapping[str, object]] = lambda typed: {}
    reworded: Callable[[Sequence[str]], list[str]] = list


def _find(place: str) -> Any:
    """Imports and returns the object ``folder.module.name``."""
    module, _, name = place.rpartition(".")
    return getattr(import_module(f"dlrm_app.{module}"), name)


def _job(place: str) -> Callable[[], Job]:
    """Loads the function at ``place``, whose one parameter is the configuration."""

    def load() -> Job:
        work = _find(place)
        return lambda config, call: work(config)

    return load


def _with_plugins(check: Callable[[Any], object]) -> Callable[[Any], None]:
    """``check``, after the files of ``plugins`` were executed; their checksums come into the configuration."""

    def load_and_check(config: Any) -> None:
        if config.plugins:
            config.plugins = _find("model.plugins.load_plugins")(config.plugins)
        check(config)

    return load_and_check


def _lazily(place: str, *more: Callable[[], Any]) -> Callable[[Any], Any]:
    """A function that imports ``place`` and calls it with its argument and the results of ``more``."""
    return lambda given: _find(place)(given, *(each() for each in more))


def _check() -> Job:
    from dlrm_app.tools.checking.check_dataset import check_dataset, conclude
    from dlrm_app.tools.checking.raw_logs import check_raw

    def check(config: Any, call: Call) -> Result:
        if config.input is not None:
            return check_raw(config.input, config.output)
        folder = Path(config.data.path)
        return conclude(check_dataset(folder, num_threads=config.threads, memory_gib=config.memory_gib))

    return check


def _train() -> Job:
    from dlrm_app.reports.run_page import write_report
    from dlrm_app.training.train import train

    return lambda config, call: train(config, write_report, ["dlrm-train", *call.words])


def _tune() -> Job:
    from dlrm_app.reports.study import write_study
    from dlrm_app.tools.tuning.study import tune

    def work(config: Any, call: Call) -> Result:
        typed = [word for word in call.typed("output") if not word.lstrip("+").startswith("tune.")]
        try:
            study = tune(config, typed)
        except BaseException:
            write_study(Path(str(config.output)))
            raise
        return replace(study, page=write_study(study.path))

    return work


def _days() -> Job:
    from dlrm_app.api.days import run_in_log
    from dlrm_app.reports.days import write_days
    from dlrm_app.tools.daily.days import go_through_days

    def work(config: Any, call: Call) -> Result:
        ranks = started_ranks()
        output = Path(config.output)
        try:
            outcome = go_through_days(config, run_in_log)
        except BaseException:
            if ranks.is_first:
                write_days(output)
            raise
        return replace(outcome, page=write_days(output)) if ranks.is_first else outcome

    return work


def _serve() -> Job:
    from dlrm_app.inference.serve.server import serve

    return lambda config, call: serve(config, call.say)


def _doctor() -> Job:
    from dlrm_app.tools.diagnosis.examine import diagnose

    return lambda config, call: diagnose(config.timeout)


def _check_days(config: Any) -> None:
    """Raises one error with all problems, those of other commands' settings included, that need no dataset to find."""
    from dlrm_app.config.compose import compose_config
    from dlrm_app.files import output_problems
    from dlrm_app.tools.daily.words import sample_words

    problems = [*config.problems(), *output_problems("output", Path(config.output), is_folder=True)]
    has_files = config.dataset and not config.input.problems()
    for name, words in sample_words(config).items() if has_files else ():
        try:
            schema = schema_of(name)
            problems += [each.within(name, ".") for each in compose_config(name, schema, words).problems()]
        except ConfigError as error:
            problems += [each.within(name, ".") for each in error.problems]
    refuse_if(problems)


_auto_settings = _lazily("api.auto_recipe.auto_settings")
COMMANDS = {
    "preprocess": Command("datasets.PreprocessConfig", _job("preprocessing.preprocess.preprocess")),
    "check": Command("datasets.CheckConfig", _check),
    "train": Command(
        "train.TrainConfig",
        _train,
        # all ranks check it again together, after they have joined
        _with_plugins(
            lambda config: _find("training.validation.check_training")(
                config, started_ranks(), starts_run=True
            )
        ),
        _auto_settings,
    ),
    "evaluate": Command(
        "evaluate.EvaluateConfig",
        _job("evaluation.evaluate_checkpoints.evaluate_checkpoints"),
        _with_plugins(_lazily("evaluation.problems.check_paths", lambda: started_ranks().is_first)),
    ),
    "export": Command(
        "export.ExportConfig",
        _job("inference.export.export_model"),
        _with_plugins(_lazily("inference.problems.check_export")),
    ),
    "predict": Command(
        "predict.PredictConfig",
        _job("inference.predict.predict.predict"),
        _with_plugins(_lazily("inference.problems.check_predict")),
    ),
    "serve": Command("serve.ServeConfig", _serve, _lazily("inference.problems.check_serve")),
    "tune": Command(
        "like_train.TuneConfig",
        _tune,
        _with_plugins(_lazily("training.validation.check_tuning", started_ranks)),
        _auto_settings,
    ),
    "plan": Command(
        "like_train.PlanConfig",
        _job("tools.planning.plan_cluster.plan_cluster"),
        _with_plugins(_lazily("training.validation.check_plan")),
    ),
    "generate": Command("datasets.GenerateConfig", _job("tools.synthetic.generate")),
    "days": Command("days.DaysConfig", _days, _check_days, reworded=_lazily("config.days.with_words")),
    "report": Command(
        "report.ReportConfig",
        _job("reports.comparison.report_runs"),
        _lazily("reports.comparison.check_runs"),
        reworded=_lazily("config.report.with_runs"),
    ),
    "doctor": Command("doctor.DoctorConfig", _doctor),
}


def schema_of(name: str) -> type[Any]:
    """The schema of ``dlrm-<name>``."""
    found: type[Any] = _find(f"config.{COMMANDS[name].schema}")
    return found


def composed(name: str, words: Sequence[str]) -> Any:
    """The checked configuration of ``dlrm-<name> *words``. Raises one error with all problems."""
    from dlrm_app.config.compose import compose_config

    command = COMMANDS[name]
    return compose_config(name, schema_of(name), command.reworded(words), command.check, command.complete)


def run(name: str, words: Sequence[str]) -> Result | None:
    """Runs ``dlrm-<name> *words`` in this process, without output. Raises DlrmError."""
    config = composed(name, words)
    return COMMANDS[name].load()(config, Call((*words,), config))
