"""The programs: each composes its configuration, calls its job, prints the result and the next command."""

import gc
import logging
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from dlrm_app.api.command import Call
from dlrm_app.api.commands import COMMANDS
from dlrm_app.cli.process import loading
from dlrm_app.errors import DlrmError
from dlrm_app.stores.names import named

if TYPE_CHECKING:
    from dlrm_app.config.overrides import Settings
    from dlrm_app.config.schema import Section

logger = logging.getLogger(__name__)


def run(name: str) -> None:
    """Runs ``dlrm-<name>`` with the words on the command line."""
    gc.disable()  # until the job has loaded its modules
    try:
        from dlrm_app.cli.launch import launch

        command = COMMANDS[name]()
    except ImportError as error:
        if name != "doctor":
            raise
        return _examine_without_hydra(error)
    return launch(name, command, partial(run_job, name))


def run_job(name: str, config: "Section", settings: "Settings", words: list[str]) -> float | None:
    """Runs the job of ``dlrm-<name>``, prints its result and the next command.
    Ends the process if the result has an exit code.

    Returns the best AUC on val of a training, which a sweeper may maximize.
    """
    from dlrm_app.cli.launch import is_first_rank
    from dlrm_app.cli.next_lines import next_lines

    with loading():
        job = COMMANDS[name]().load()
    call = Call(config, settings, (*words,), partial(print, flush=True), is_typed=True)
    if name == "tune":
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that trials save on SIGTERM too
    result = job(config, call)
    if is_first_rank() and result is not None:
        print(named(str(result)), flush=True)
        for line in next_lines(name, result, call):
            logger.info(line)
    if is_first_rank() and (code := getattr(result, "exit_code", 0)):
        sys.exit(code)
    return getattr(getattr(result, "result", None), "best_val_auc", None)


def _examine_without_hydra(reason: ImportError) -> None:
    """Examines an installation that cannot compose a configuration, with the timeout of conf/doctor.yaml."""
    from dlrm_app.tools.diagnosis.examine import diagnose

    print(f"{reason}: install dlrm-app with all that it requires. Examining the rest:", file=sys.stderr)
    try:
        examination = diagnose(180)
    except DlrmError as error:
        sys.exit(f"error: {error}")
    print(examination)
    sys.exit(examination.exit_code)


def __getattr__(name: str) -> Callable[[], None]:
    """``commands.train`` and the others, for pyproject's scripts."""
    if name not in COMMANDS:
        raise AttributeError(name)
    return partial(run, name)
