"""Hydra's ``compose``, remembering what it made of a command's files: tests compose hundreds of times."""

import hashlib
import pickle
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose as compose_by_hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from dlrm_app.config import compose as composing
from dlrm_app.files import written_whole

_register = composing.register_schema
_folder = Path()
"""Folder of what was made of files; it lives as long as the tests run."""
_schemas: dict[str, type[Any]] = {}
"""Command → its schema, for when its files are read."""


def remember_files(folder: Path) -> None:
    """From here on configurations are composed of files remembered in ``folder`` and what is typed, which is what Hydra does last."""
    global _folder
    _folder = folder
    composing.compose = _compose
    composing.register_schema = _schemas.__setitem__


def _compose(command: str, overrides: list[str], return_hydra_config: bool) -> DictConfig:
    conf = composing.conf_dir()
    parsed = OverridesParser.create().parse_overrides(overrides)
    choices = [
        each.input_line
        for each in parsed
        if "." not in each.key_or_group and (conf / each.key_or_group).is_dir()
    ]
    if any("=file_" in choice for choice in choices) or any(each.is_hydra_override() for each in parsed):
        _register(command, _schemas[command])
        return compose_by_hydra(command, overrides, return_hydra_config)  # what may change between tests
    whole = pickle.loads(_files(conf, command, tuple(choices), return_hydra_config))
    ConfigLoaderImpl._apply_overrides_to_config(
        [each for each in parsed if each.input_line not in choices], whole
    )
    return whole


@cache
def _files(conf: Path, command: str, choices: tuple[str, ...], return_hydra_config: bool) -> bytes:
    """What Hydra makes of a command's files, pickled; one of the processes that run tests at once makes it for all."""
    key = repr((conf, command, choices, return_hydra_config)).encode()
    file = _folder / hashlib.sha256(key).hexdigest()
    if not file.exists():
        _register(command, _schemas[command])
        with written_whole(file) as temporary:
            temporary.write_bytes(pickle.dumps(compose_by_hydra(command, [*choices], return_hydra_config)))
    return file.read_bytes()
