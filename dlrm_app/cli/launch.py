"""What every command shares: check the overrides, let Hydra compose, run the job, end with a clear message."""

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import hydra
from omegaconf import DictConfig

from dlrm_app.config.compose import conf_dir, register_schema, to_schema
from dlrm_app.config.overrides import check_overrides
from dlrm_app.errors import ConfigError, DlrmError, SharedError, refuse_if

Job = Callable[[Any], Any]

SILENT_SECONDS = 10
"""How long the other ranks leave the first to say what all of them know: a launcher ends all once one has ended."""


def launch(command: str, schema: type[Any], job: Job) -> None:
    """Runs ``job`` with the configuration of ``dlrm-<command>``, composed from ``sys.argv`` and checked.

    ``schema`` may have a method ``problems() -> list[str]`` with the checks that types cannot express.
    Exit codes: 0 well, 1 failed, 2 bad configuration, 130 interrupted.
    """
    # OpenMP threads that spin for long while they wait take the cores from the reader, other ranks and other
    # programs; those that sleep at once make an idle machine slow. So: spin a little (see docs/experiments.md).
    # It must be set before torch loads OpenMP.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # torch's C++ warnings cannot be filtered one by one, and one advises against what makes resuming exact
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("dlrm_app").setLevel(logging.INFO if _is_first_rank() else logging.WARNING)
    register_schema(command, schema)

    def run(config: DictConfig) -> Any:
        return _or_explain(lambda: _checked_job(config, schema, job))

    _or_explain(lambda: _check_arguments(command, schema))
    code: Any = 0
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=command)(run)()
    except SystemExit as leaving:
        code = leaving.code
    leave(code)


def _checked_job(config: DictConfig, schema: type[Any], job: Job) -> Any:
    typed = to_schema(config, schema)
    refuse_if(typed.problems())
    return job(typed)


def _check_arguments(command: str, schema: type[Any]) -> None:
    """Replaces the overrides in ``sys.argv`` by checked ones; options (-…) are Hydra's own."""
    if any(argument.startswith("--experimental-rerun") for argument in sys.argv):
        raise DlrmError(
            "--experimental-rerun would unpickle a file, which can run any code: it is not offered"
        )
    places = [
        place
        for place, argument in enumerate(sys.argv)
        if place and "=" in argument and not argument.startswith("-")
    ]
    checked = check_overrides([sys.argv[place] for place in places], schema, conf_dir(), command)
    for place, argument in zip(places, checked, strict=True):
        sys.argv[place] = argument


def _or_explain(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except DlrmError as error:
        if _is_first_rank() or not isinstance(error, ConfigError | SharedError):
            print(f"error: {error}", file=sys.stderr)
        else:
            time.sleep(SILENT_SECONDS)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        if _is_first_rank():
            print("interrupted", file=sys.stderr)
        sys.exit(130)


def leave(code: Any) -> NoReturn:
    """Ends the process; without Python's finalisation if torch is loaded.

    gloo's worker threads outlive destroy_process_group while anything holds the group (DDP does), and free the
    tensors of their last collectives when they get to it. A thread that asks for the interpreter's lock during
    finalisation is unwound by force, inside a destructor: std::terminate, SIGABRT, about one run in fifteen.
    """
    if "torch" in sys.modules and isinstance(code, int | None):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    sys.exit(code)


def _is_first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"
