"""Composes a command's configuration: Hydra merges the files of conf/, then the values are set."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from dlrm_app.config.conf_files import BUILDS_ON, conf_dir
from dlrm_app.config.overrides import Overrides, Settings, overrides_of
from dlrm_app.config.schema import Schema, Section, build, defaults_of
from dlrm_app.errors import ConfigError, DlrmError, Problem, first_line, refuse_all, refuse_if
from dlrm_app.typed import install_command, words_of

Completion = Callable[[Settings], Settings]
"""Returns settings for what the typed ones leave open."""


def register_schema(command: str, schema: type[Section]) -> None:
    """Registers the schema for the defaults list of conf/<command>.yaml and of the file that it builds on."""
    for name in (command, BUILDS_ON.get(command)):
        if name is not None:
            ConfigStore.instance().store(name=f"{name}_schema", node=defaults_of(schema))


def compose_config(
    command: str,
    schema: type[Schema],
    settings: Settings,
    validate: Callable[[Schema], object] = lambda _: None,
    complete: Completion = lambda typed: {},
    problems: Sequence[Problem] = (),
) -> Schema:
    """Composes the configuration of ``dlrm-<command>`` with ``settings``.

    Raises one error with ``problems``, all unknown keys, wrong types and missing values, and the problems that
    ``validate`` finds.
    """
    with _separate_hydra(), _interruptible():
        overrides, wrong = overrides_of(settings, schema, command)
        problems = [*problems, *wrong]
        if not problems and (more := complete(settings)):
            overrides, _ = overrides_of({**more, **settings}, schema, command)
        tree, _ = compose_tree(command, schema, overrides)
        return _checked(tree, schema, settings, problems, validate)


_composing = RLock()


@contextmanager
def _separate_hydra() -> Iterator[None]:
    """Restores Hydra's global state: the process may be a Hydra application, or compose in several threads."""
    with _composing:
        hydra, config = GlobalHydra.instance().hydra, HydraConfig.instance().cfg
        try:
            yield
        finally:
            GlobalHydra.instance().hydra, HydraConfig.instance().cfg = hydra, config


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raises a KeyboardInterrupt again that the libraries have turned into an error of another type."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            cause = cause.__cause__ or cause.__context__
        raise


def compose_tree(
    command: str, schema: type[Section], overrides: Overrides
) -> tuple[DictConfig, dict[str, str | None]]:
    """Composes the configuration, in which required values may be missing, and group → choice.

    Raises ConfigError if Hydra cannot compose it.
    """
    try:
        whole = merged_files(command, schema, {**overrides.choices, **overrides.hydra})
        for key, value in overrides.values.items():
            OmegaConf.update(whole, key, value, merge=True, force_add=True)
    # ValueError: from a user's defaults list
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        text = first_line(error)
        is_launcher = "hydra/launcher" in text
        cure = f"{install_command('sweep')} brings submitit's launchers" if is_launcher else ""
        raise ConfigError(Problem("hydra/launcher" if is_launcher else "", text, cure)) from error
    choices = {
        str(group): choice
        for group, choice in whole.hydra.runtime.choices.items()
        if not group.startswith("hydra/")
    }
    with open_dict(whole), read_write(whole):
        if (outer := HydraConfig.instance().cfg) is not None:
            whole.hydra.job = outer.hydra.job  # with the number of the combination, in a sweep
        HydraConfig.instance().set_config(whole)  # for values such as ${hydra:job.num}
        del whole["hydra"]
    return whole, choices


def merged_files(command: str, schema: type[Section], choices: Settings) -> DictConfig:
    """Hydra's merge of the files of conf/ for a command with ``choices``, with Hydra's own values under ``hydra``."""
    register_schema(command, schema)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose(command, words_of(choices), return_hydra_config=True)


def _checked(
    tree: DictConfig,
    schema: type[Schema],
    typed: Settings,
    problems: Sequence[Problem],
    validate: Callable[[Schema], object],
) -> Schema:
    """Builds the configuration.

    Raises one error with ``problems``, ``typed`` settings that are not read, and what ``validate`` finds.
    """
    found: list[Problem] = []
    others: list[Problem] = []
    config = build(schema, resolved(tree), found)
    for key, value in typed.items():
        if config is not None and value is not None and (rule := config.unread(key)):
            found.append(Problem(key, rule, "leave it out", value))
    try:
        refuse_all(found, *([] if config is None else [lambda: validate(config)]))
    except DlrmError as error:
        if not problems:
            raise
        # leaves out problems that only follow from these
        reported = {re.split("[= ]", problem.key)[0] for problem in problems}
        reported.update(re.findall(r"did you mean ([\w.]+)", " ".join(problem.cure for problem in problems)))
        others = [each for each in error.problems if not reported & {*re.findall(r"[\w.]+", str(each))}]
    refuse_if([*problems, *others])
    assert config is not None  # otherwise a problem was found
    return config


def resolved(tree: DictConfig) -> dict[str, object]:
    """The values with every ``${...}`` resolved. Raises ConfigError if one cannot be resolved."""
    try:
        plain = OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(Problem(str(error.full_key), f"cannot be resolved: {first_line(error)}")) from error
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}
