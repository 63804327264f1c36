"""The commands: what each reads, checks and runs, and the page that it leaves. All is imported once it is needed."""

import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from dlrm_app.cli.process import loading
from dlrm_app.distributed.ranks import started_ranks
from dlrm_app.errors import DlrmError, refuse_if

Job = Callable[[Any], Any]


def _preprocess(config: Any) -> None:
    with loading():
        from dlrm_app.preprocess.preprocess import preprocess

    preprocess(config)


def _check(config: Any) -> None:
    from dlrm_app.check.check_dataset import check_dataset, conclude
    from dlrm_app.check.tables import log_tables
    from dlrm_app.reports.dataset import write_page

    findings = check_dataset(Path(config.data.path), num_threads=config.threads, memory_gib=config.memory_gib)
    log_tables(findings)
    write_page(findings)
    conclude(findings)


def _generate(config: Any) -> None:
    from dlrm_app.synthetic import generate

    generate(config)


def _check_generate(config: Any) -> None:
    from dlrm_app.config.datasets import generate_problems

    refuse_if(generate_problems(config))


def _train(config: Any) -> float | None:
    """The best AUC on val; None without a labelled val split."""
    with loading():
        from dlrm_app.reports.run_page import write_report
        from dlrm_app.training.train import train

    return train(config, write_report).best_val_auc


def _check_train(config: Any) -> None:
    # all ranks check it once more together, after they have joined
    from dlrm_app.training.validation import check_training

    check_training(config, started_ranks(), starts_run=True)


def _with_recipe(overrides: list[str]) -> list[str]:
    from dlrm_app.cli.auto_recipe import with_recipe

    return with_recipe(overrides)


def _evaluate(config: Any) -> None:
    with loading():
        from dlrm_app.evaluation.evaluate_checkpoints import evaluate_checkpoints
        from dlrm_app.reports.evaluation import write_evaluation

    result = evaluate_checkpoints(config)
    if config.report and started_ranks().is_first:
        write_evaluation(result, Path(config.report), config.ema)


def _check_evaluate(config: Any) -> None:
    from dlrm_app.evaluation.problems import check_paths

    check_paths(config, started_ranks().is_first)


def _export(config: Any) -> None:
    with loading():
        from dlrm_app.inference.export import export_model

    export_model(config)


def _check_export(config: Any) -> None:
    from dlrm_app.inference.problems import check_export

    check_export(config)


def _predict(config: Any) -> None:
    with loading():
        from dlrm_app.inference.predict.predict import predict

    predict(config)


def _check_predict(config: Any) -> None:
    from dlrm_app.inference.problems import check_predict

    check_predict(config)


def _serve(config: Any) -> None:
    with loading():
        from dlrm_app.inference.serve.server import serve

    serve(config)


def _check_serve(config: Any) -> None:
    from dlrm_app.inference.problems import check_serve

    check_serve(config)


def _tune(config: Any) -> None:
    from dlrm_app.reports.study import write_study
    from dlrm_app.text import typed_settings
    from dlrm_app.tuning.study import tune

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # trials save themselves then too
    typed = typed_settings("output")
    try:
        tune(config, [word for word in typed if not word.lstrip("'+").startswith("tune.")])
    finally:
        if page := write_study(Path(str(config.output))):
            print(f"page: {page}")


def _check_tune(config: Any) -> None:
    from dlrm_app.training.validation import check_tuning

    check_tuning(config, started_ranks())


def _bench(config: Any) -> None:
    with loading():
        from dlrm_app.bench.bench import bench

    bench(config)


def _check_bench(config: Any) -> None:
    from dlrm_app.training.validation import check_bench

    check_bench(config, started_ranks())


def _plan(config: Any) -> None:
    from dlrm_app.planning.plan_cluster import plan_cluster
    from dlrm_app.reports.plan import write_plan_page

    plan_cluster(config, write_plan_page)


def _check_plan(config: Any) -> None:
    from dlrm_app.training.validation import check_plan

    check_plan(config)


def report_runs(config: Any) -> None:
    """Writes the page of a run, or one that compares several, and prints where it is. Raises DlrmError."""
    from dlrm_app.reports.comparison import read_runs, shared_split, write_comparison
    from dlrm_app.reports.run_page import write_report

    runs = read_runs(config.runs)
    if len(runs) == 1:
        print(write_report(runs[0].record.path, Path(config.output) if config.output else None))
        return
    split = config.split or shared_split(runs)
    paths = {run.name: run.record.path for run in runs}
    tests = _paired_tests(config, split, paths) if config.paired else {}
    print(write_comparison(runs, split, tests, config.confidence, config.output))


def _paired_tests(config: Any, split: str, runs: Mapping[str, Path]) -> Mapping[str, Any]:
    from dlrm_app.config.compose import compose_config
    from dlrm_app.config.scoring import EvaluateConfig
    from dlrm_app.evaluation.evaluate_checkpoints import paired_tests

    values = [f"split={split}", f"which={config.which}", f"batch_size={config.batch_size}", "checkpoint=each"]
    evaluation = compose_config("evaluate", EvaluateConfig, values)
    evaluation.threads, evaluation.confidence = config.threads, config.confidence
    return paired_tests(evaluation, runs)


def _check_report(config: Any) -> None:
    from dlrm_app.reports.comparison import check_runs

    check_runs(config)


def _doctor(config: Any) -> None:
    from dlrm_app.doctor.examine import examine
    from dlrm_app.doctor.report import report

    report(examine(config.timeout))


def _check_schema(config: Any) -> None:
    refuse_if(config.problems())


@dataclass(frozen=True)
class Command:
    """The place of a schema below config/, and what works on a configuration of that schema.

    ``check`` raises one error with all that is wrong before any work, and loads no torch. ``complete`` gives the checked
    overrides with what they leave open.
    """

    schema: str
    job: Job
    check: Job = _check_schema
    complete: Callable[[list[str]], list[str]] = list


COMMANDS = {
    "preprocess": Command("datasets.PreprocessConfig", _preprocess),
    "check": Command("datasets.CheckConfig", _check),
    "train": Command("train.TrainConfig", _train, _check_train, _with_recipe),
    "evaluate": Command("scoring.EvaluateConfig", _evaluate, _check_evaluate),
    "export": Command("scoring.ExportConfig", _export, _check_export),
    "predict": Command("scoring.PredictConfig", _predict, _check_predict),
    "serve": Command("scoring.ServeConfig", _serve, _check_serve),
    "tune": Command("like_train.TuneConfig", _tune, _check_tune, _with_recipe),
    "bench": Command("like_train.BenchConfig", _bench, _check_bench, _with_recipe),
    "plan": Command("like_train.PlanConfig", _plan, _check_plan),
    "generate": Command("datasets.GenerateConfig", _generate, _check_generate),
    "report": Command("scoring.ReportConfig", report_runs, _check_report),
    "doctor": Command("doctor.DoctorConfig", _doctor),
}


def schema_of(name: str) -> type[Any]:
    """The schema of ``dlrm-<name>``."""
    module, _, schema = COMMANDS[name].schema.partition(".")
    found: type[Any] = getattr(import_module(f"dlrm_app.config.{module}"), schema)
    return found


def run(name: str) -> None:
    """Runs ``dlrm-<name>`` with the words behind it."""
    try:
        from dlrm_app.cli.launch import launch

        schema = schema_of(name)
    except ImportError as error:
        if name != "doctor":
            raise
        return _examine_without_hydra(error)
    if name == "report":
        from dlrm_app.config.scoring import with_runs

        sys.argv[1:] = with_runs(sys.argv[1:])
    command = COMMANDS[name]
    return launch(name, schema, command.job, command.check, command.complete)


def _examine_without_hydra(reason: ImportError) -> None:
    """Examines an installation that cannot even compose a configuration, with the values of conf/doctor.yaml."""
    from dlrm_app.doctor.examine import examine
    from dlrm_app.doctor.report import report

    print(f"{reason}: examining without configuration", file=sys.stderr)
    try:
        report(examine(timeout=180))
    except DlrmError as error:
        sys.exit(f"error: {error}")


# what pyproject's scripts name
preprocess, check, train, evaluate, export, predict, serve, tune, bench, plan, generate, report, doctor = (
    partial(run, name) for name in COMMANDS
)
