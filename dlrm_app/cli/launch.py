"""Launches a command: checks the overrides, composes, runs the job, ends with a clear message."""

import argparse
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

from omegaconf import DictConfig, OmegaConf

from dlrm_app import __version__
from dlrm_app.api.command import Command
from dlrm_app.api.commands import COMMANDS, checked_types
from dlrm_app.api.places import local_places
from dlrm_app.cli.process import quiet_libraries, set_up_streams
from dlrm_app.config.compose import compose_config, compose_tree, register_schema
from dlrm_app.config.conf_files import conf_dir
from dlrm_app.config.overrides import Settings, overrides_of
from dlrm_app.config.schema import Section
from dlrm_app.config.words import WordReader, read_sweep
from dlrm_app.distributed.launcher import handle_signals, stop_with_launcher
from dlrm_app.distributed.ranks import started_ranks, task_variables
from dlrm_app.errors import DlrmError, ExitCode, Problem, refuse_if
from dlrm_app.files import is_disk_error
from dlrm_app.stores.names import named
from dlrm_app.text import without_credentials
from dlrm_app.typed import words_of

Job = Callable[[Any, Settings, list[str]], object]
"""(configuration, the settings that it was composed of, the words that they were typed as) → result."""

_PLAIN = re.compile(r"[\w./=:@,+%-]+")
"""Words that a shell does not change."""
logger = logging.getLogger(__name__)
COMPLETIONS = [
    f"{verb}={shell}" for verb in ("install", "uninstall", "query") for shell in ("bash", "fish", "zsh")
]
SILENT_SECONDS = 10
"""Seconds that the other ranks wait while the first reports a shared error.

A launcher ends all ranks once one has ended."""


def launch(name: str, command: Command[Any], job: Job) -> None:
    """Runs ``job`` with the configuration of ``dlrm-<name>``, which is composed from ``sys.argv`` and checked.

    It ends the process with an ``ExitCode``.
    """
    schema = command.schema
    if command.takes_tasks:
        os.environ.update(task_variables(os.environ))
    _set_up_process()
    options = _read_options(name)

    def work() -> None:
        _refuse_lost_folder()
        if query := options.shell_completion:
            return print_completion(
                query, lambda: run_hydra(name, schema, ["--shell-completion", query], lambda tree: None)
            )
        if options.multirun and not options.help:
            return run_sweep(name, command, options.words, job)
        asked = [word for word in options.words if options.help and "=" not in word]
        words = [word for word in options.words if word not in asked]
        typed, problems = WordReader(schema, name, command.positional).read(words).finish()
        settings = command.regroup(typed)
        if not (options.help or options.cfg):
            with local_places(
                name, settings, partial(checked_types, name, typed, problems), is_typed=True
            ) as local:
                config = compose_config(name, schema, local, command.check, command.complete, problems)
                job(config, local, words)
            return None
        overrides, wrong = overrides_of(settings, schema, name)
        refuse_if([*problems, *wrong])
        if options.help:
            from dlrm_app.config.reference import help_text

            return print(help_text(name, schema, overrides, asked))
        if options.cfg == "schema":
            from dlrm_app.config.reference import json_schema

            return print(json_schema(name, schema, overrides))
        overrides, _ = overrides_of({**command.complete(settings), **settings}, schema, name)
        tree, _ = compose_tree(name, schema, overrides)
        return print(without_credentials(OmegaConf.to_yaml(tree)))

    code: str | int | None = 0
    try:
        run_or_explain(work)
    except SystemExit as leaving:
        code = leaving.code
    end_process(code)


def _read_options(name: str) -> argparse.Namespace:
    # Hydra has options that unpickle files or read configurations unchecked, so only the safe ones are offered
    parser = argparse.ArgumentParser(f"dlrm-{name}", add_help=False, allow_abbrev=False)
    parser.add_argument("words", nargs="*", metavar="key=value")
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--version", action="version", version=f"dlrm-{name} {__version__}")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--cfg", "-c", nargs="?", const="job", choices=["job", "schema"])
    either.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--shell-completion", "-sc", choices=COMPLETIONS)
    return parser.parse_intermixed_args()


def _set_up_process() -> None:
    stop_with_launcher()
    # OpenMP threads that spin long while they wait take cores from the reader, other ranks and other
    # programs; threads that sleep at once make an idle machine slow. So they spin a little (see docs/experiments/training.md).
    # It must be set before torch loads OpenMP.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    os.environ.pop("NUMBA_DISABLE_JIT", None)  # compiled functions do not run as Python
    # torch's C++ warnings cannot be filtered one by one, and one advises against a setting that makes resuming exact
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    set_up_streams()
    quiet_libraries()
    handle_signals()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_WithoutCredentials("%(message)s"))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("dlrm_app").setLevel(logging.INFO if is_first_rank() else logging.WARNING)


class _WithoutCredentials(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return named(without_credentials(super().format(record)))


def _refuse_lost_folder() -> None:
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise DlrmError(Problem("the current folder", "has been deleted", "cd to another")) from error


def run_hydra(
    command: str, schema: type[Section], arguments: Sequence[str], run: Callable[[DictConfig], object]
) -> None:
    """Runs Hydra with these ``arguments``, its options and overrides."""
    import hydra

    sys.argv[1:] = arguments
    # otherwise it prints errors in its own way and ends the process
    os.environ["HYDRA_FULL_ERROR"] = "1"
    register_schema(command, schema)
    # Python 3.14 checks help texts, which Hydra 1.3 makes only when they are shown
    if hasattr(argparse.ArgumentParser, "_check_help"):
        argparse.ArgumentParser._check_help = lambda parser, action: None
    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=command)(run)()


def run_or_explain(work: Callable[[], object]) -> object:
    """The result of ``work``. For an error that a user can fix, ends the process with a message instead of a traceback.

    The process also ends if this rank failed alone: other ranks may wait for it in a collective.
    """
    try:
        return _or_end_rank(work)
    except DlrmError as error:
        if not is_first_rank():
            time.sleep(SILENT_SECONDS)
        if is_first_rank() or not error.is_shared:  # else rank 0 has reported it
            rank = "" if is_first_rank() else f" (rank {os.environ['RANK']})"
            print(named(without_credentials(f"error{rank}: {error}")), file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if not is_disk_error(error):
            raise
        print(f"error: {error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
        sys.exit(ExitCode.FAILED)
    except KeyboardInterrupt:
        if is_first_rank():
            print("interrupted", file=sys.stderr)
        sys.exit(ExitCode.INTERRUPTED)


def _or_end_rank(work: Callable[[], object]) -> object:
    try:
        return work()
    except BaseException:
        runtime = sys.modules.get("dlrm_app.distributed.runtime")
        failure = runtime.failure_of_ranks() if runtime else None
        if failure is None:
            raise
        from dlrm_app.cli.failure import print_failure

        code = print_failure(failure, started_ranks())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # without destructors, so that the launcher ends the other ranks


def end_process(code: str | int | None) -> NoReturn:
    """Ends the process, without Python's finalisation if torch is loaded.

    gloo's worker threads outlive destroy_process_group while anything holds the group (DDP does), and free the
    tensors of their last collectives some time later. A thread that asks for the interpreter's lock during
    finalisation is unwound by force, inside a destructor: std::terminate and SIGABRT in about one run of fifteen.
    """
    if "torch" in sys.modules and isinstance(code, int | None):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    sys.exit(code)


def is_first_rank() -> bool:
    """True if this process is the first rank, by its launcher's environment."""
    return os.environ.get("RANK", "0") == "0"


def run_sweep(name: str, command: Command[Any], words: Sequence[str], job: Job) -> None:
    """Runs ``job`` with each combination of the values in ``words``, until one fails."""
    sweep, problems = read_sweep(words, command.schema, name, command.positional)
    refuse_if(problems)
    more = command.complete(dict(sweep.keys))

    def run_one(tree: DictConfig) -> object:
        from hydra.core.hydra_config import HydraConfig

        command = COMMANDS[name]()
        reader = WordReader(command.schema, name)
        values: Any = OmegaConf.to_container(tree.sweep, resolve=False)
        for key, value in sweep.combination(values):
            reader.add({key: value})
        typed = words_of(reader.settings)
        logger.info("combination %d: %s", HydraConfig.get().job.num + 1, " ".join(typed))

        def work() -> object:
            settings = command.regroup({**more, **reader.settings})
            with local_places(
                name, settings, partial(checked_types, name, reader.settings), is_typed=True
            ) as local:
                config = compose_config(name, command.schema, local, command.check)
                return job(config, local, typed)

        return run_or_explain(work)

    run_hydra(name, command.schema, ["--multirun", *sweep.texts], run_one)


def print_completion(asked: str, answer: Callable[[], object]) -> None:
    """Prints the output of ``answer`` for ``asked``, such as ``query=bash`` or ``install=zsh``.

    bash expands offered words (``compgen -W``): the name of a file ``$(rm -r x).yaml`` would be executed. So words
    with characters that mean something to a shell are left out.
    """
    captured = StringIO()
    try:
        with redirect_stdout(captured):
            answer()
    finally:
        text = captured.getvalue()
        if asked.startswith("query="):
            text = re.sub(r"\S+", lambda word: word[0] if _PLAIN.fullmatch(word[0]) else "", text)
        sys.stdout.write(text)
