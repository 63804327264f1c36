"""What every command shares: check the overrides, compose, run the job, end with a clear message."""

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from omegaconf import DictConfig, OmegaConf

from dlrm_app.config.compose import compose_tree, conf_dir, missing_values, register_schema, to_schema
from dlrm_app.config.keys import wrong_value
from dlrm_app.config.overrides import check_overrides
from dlrm_app.errors import ConfigError, DlrmError, SharedError, joined, refuse_if
from dlrm_app.files import is_disk_error

Job = Callable[[Any], Any]

SILENT_SECONDS = 10
"""How long the other ranks leave the first to report what all of them know: a launcher ends all once one has ended."""


def _schema_problems(config: Any) -> None:
    refuse_if(config.problems())


def launch(command: str, schema: type[Any], job: Job, validate: Job = _schema_problems) -> None:
    """Runs ``job`` with the configuration of ``dlrm-<command>``, composed from ``sys.argv`` and checked.

    ``validate`` raises all that is wrong with the configuration, in one error with what is wrong with the command line;
    by default ``schema.problems() -> list[str]``, the checks that types cannot express. It loads no torch.
    Exit codes: 0 well, 1 failed, 2 bad configuration, 130 interrupted.
    """
    _set_up_process()
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--cfg", "-c")
    parser.add_argument("--multirun", "-m", action="store_true")
    options, rest = parser.parse_known_args()

    def work() -> Any:
        _refuse_options(rest, command)
        overrides, problems = check_overrides(rest, schema, conf_dir(), command, options.multirun)
        if not options.help and (options.multirun or options.cfg not in (None, "job")):
            refuse_if(problems)
            sys.argv[1:] = ["--multirun"] if options.multirun else ["--cfg", options.cfg]
            sys.argv += overrides
            return _run_hydra(command, schema, lambda config: job(_checked(config, schema, [], validate)))
        if options.help:
            refuse_if(problems)
            from dlrm_app.config.reference import help_text

            return _print(help_text(command, schema, overrides))
        tree, _ = compose_tree(command, schema, overrides)
        if options.cfg:
            refuse_if(problems)
            return _print(OmegaConf.to_yaml(tree))
        return job(_checked(tree, schema, problems, validate))

    code: Any = 0
    try:
        _or_explain(work)
    except SystemExit as leaving:
        code = leaving.code
    leave(code)


def _set_up_process() -> None:
    # OpenMP threads that spin for long while they wait take the cores from the reader, other ranks and other
    # programs; those that sleep at once make an idle machine slow. So: spin a little (see docs/experiments.md).
    # It must be set before torch loads OpenMP.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # torch's C++ warnings cannot be filtered one by one, and one advises against what makes resuming exact
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("dlrm_app").setLevel(logging.INFO if _is_first_rank() else logging.WARNING)


def _refuse_options(arguments: list[str], command: str) -> None:
    """Hydra has options that unpickle files and read configurations unchecked: only those that are safe are offered."""
    refuse_if(
        [
            f"dlrm-{command} has no option {argument}: there are --help, --cfg job and --multirun, and settings as key=value"
            for argument in arguments
            if argument.startswith("-")
        ]
    )


def _run_hydra(command: str, schema: type[Any], run: Job) -> None:
    """Hands over to Hydra, whose options and checked overrides stand in ``sys.argv``."""
    import hydra

    register_schema(command, schema)
    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=command)(
        lambda config: _or_explain(lambda: run(config))
    )()


def _checked(tree: DictConfig, schema: type[Any], problems: list[str], validate: Job) -> Any:
    """The configuration; raises one error with ``problems`` and all others if there are any."""
    missing = sorted(OmegaConf.missing_keys(tree))
    problems = [*problems, *missing_values(tree)]
    for key in missing:
        if wrong_value(key, "", tree):  # a number, which no check can do without
            raise ConfigError(problems)
        OmegaConf.update(tree, key, "")
    config = to_schema(tree, schema)
    errors: list[DlrmError] = [ConfigError(problems)] if problems else []
    try:
        validate(config)
    except DlrmError as error:
        errors.append(error)
    if errors:
        raise joined(errors)
    return config


def _print(text: str) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `dlrm-train --help | head` is to end without a traceback
    print(text)


def _or_explain(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except DlrmError as error:
        if not _is_first_rank():
            time.sleep(SILENT_SECONDS)
        if _is_first_rank() or not isinstance(error, ConfigError | SharedError):
            print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if not is_disk_error(error):
            raise
        print(f"error: {error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
        sys.exit(1)
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
