"""What is refused of exports and predictions before any work and without torch."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from dlrm_app.config.export import ExportConfig
from dlrm_app.config.extras import install_command
from dlrm_app.config.predict import STANDARD_INPUT, PredictConfig
from dlrm_app.config.serve import ServeConfig
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.distributed.ranks import num_started
from dlrm_app.errors import ConfigError, DataError, DlrmError, joined, refuse_if
from dlrm_app.files import is_program, write_problems
from dlrm_app.inference.record import is_export
from dlrm_app.preprocess.units.source import find_files
from dlrm_app.runs.checkpoint.names import list_checkpoints, refuse_no_checkpoint
from dlrm_app.text import setting


def check_export(config: ExportConfig) -> None:
    """Raises one error with all that is wrong with dlrm-export's values and paths."""
    problems = config.problems()
    if "safetensors" in config.formats and find_spec("safetensors") is None:
        problems.append(
            f"format=safetensors needs the package safetensors, which is not installed: {install_command('inference')}"
        )
    if config.cpp_program and not is_program(Path(config.cpp_program)):
        problems.append(
            f"no program at cpp_program={config.cpp_program}: build it (dlrm_app/inference/cpp/README.md), or leave it out"
        )
    if config.output:
        problems += new_path_problems("output", Path(config.output))
    if num_started() > 1:
        problems.append(
            "dlrm-export is one process, whatever number of ranks trained: start it without torchrun"
        )

    def look_at_checkpoint() -> None:
        if config.checkpoint:
            refuse_no_checkpoint(Path(config.checkpoint))

    _refuse_with_errors_of(problems, look_at_checkpoint, lambda: _look_at_dataset(config.data.path))


def check_predict(config: PredictConfig) -> None:
    """Raises one error with all that is wrong with dlrm-predict's values and paths."""
    problems = config.problems()
    if config.output:
        problems += _new_file_problems("output", Path(config.output))
    if config.input == STANDARD_INPUT and num_started() > 1:
        problems.append("input=- is read by one process: start it without torchrun, or give files")

    def look_at_rows() -> None:
        _look_at_dataset(config.data.path)
        if config.input not in (None, STANDARD_INPUT) and not problems:
            find_files("input", config.input)

    _refuse_with_errors_of(problems, lambda: _look_at_model(config.model), look_at_rows)


def _look_at_model(path: str) -> None:
    if not path or is_export(Path(path)):
        return
    if not Path(path).is_dir():
        raise ConfigError([f"no model at {path}: give an export, a run folder or a checkpoint"])
    try:
        refuse_no_checkpoint(Path(path))
    except DataError as error:
        raise DataError(f"model={path} is no folder that dlrm-export wrote, and {error}") from error


def _look_at_dataset(path: str | None) -> None:
    if path:
        read_manifest(Path(path))


def _refuse_with_errors_of(problems: list[str], *looks: Callable[[], None]) -> None:
    """Raises one error with ``problems`` and what each of ``looks`` raises, if there are any."""
    errors: list[DlrmError] = [ConfigError(problems)] if problems else []
    for look in looks:
        try:
            look()
        except DlrmError as error:
            errors.append(error)
    if errors:
        raise joined(errors)


def check_serve(config: ServeConfig) -> None:
    """Raises one error with all that is wrong with dlrm-serve's values and paths."""
    problems = config.problems()
    lacking = [name for name in ("starlette", "uvicorn", "prometheus_client") if find_spec(name) is None]
    if lacking:
        problems.append(
            f"dlrm-serve needs {', '.join(lacking)}, which this Python lacks: {install_command('serve')}"
        )
    if config.model and not is_export(Path(config.model)):
        problems.append(_no_export(Path(config.model)))
    refuse_if(problems)


def _no_export(path: Path) -> str:
    if list_checkpoints(path / "checkpoints"):
        export = f"{path}-export"
        command = f"dlrm-export {setting('checkpoint', path)} {setting('output', export)}"
        return f"model={path} is a run, no export: {command}, then {setting('model', export)}"
    output = f"{path}-export" if path.exists() else path
    return f"no export at model={path}: make one with dlrm-export checkpoint=RUN {setting('output', output)}"


def _new_file_problems(key: str, path: Path) -> list[str]:
    problems = new_path_problems(key, path)
    if not problems and not path.absolute().parent.is_dir():
        problems.append(f"{key}={path} needs the folder {path.parent}, which does not exist: make it")
    return problems


def new_path_problems(key: str, path: Path) -> list[str]:
    """Why nothing new can be made at ``path``."""
    if problems := write_problems(key, path):
        return problems
    return [f"{key}={path} exists: give another name, or delete it"] if path.exists() else []
