"""Presets: one name for settings of several commands, as ``merlin=tiny``. A command takes the keys it has.

A preset's file holds values by key, and ``override /group: choice`` in its defaults list. The values of a
group without such an entry become a choice of this group, so that a typed choice replaces all of them.
"""

from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from dlrm_app.config.schema import Section, types_of

PRESETS = ("merlin",)
"""The groups of conf/ whose choices are presets."""


def register_preset(file: Path, schema: type[Section], command: str) -> str:
    """Registers what ``file`` has for ``command`` as a choice of its group; returns the choice's name for Hydra."""
    conf, group, keys = file.parents[1], file.parent.name, types_of(schema)
    content: Any = OmegaConf.to_container(OmegaConf.load(file))
    defaults = [
        entry for entry in content.pop("defaults") for key in entry if key.removeprefix("override /") in keys
    ]
    overridden = {key.removeprefix("override /") for entry in defaults for key in entry}
    values = {key: value for key, value in content.items() if key in keys}
    store = ConfigStore.instance().store
    for section in [key for key in values if (conf / key).is_dir() and key not in overridden]:
        name = f"{group}_{file.stem}"
        store(group=section, name=name, node=values.pop(section))
        defaults.append({f"override /{section}": name})
    node = {"defaults": defaults, **values}
    store(group=f"{group}/{command}", name=file.stem, node=node, package="_global_")
    return f"{command}/{file.stem}"


def has_preset(group: str, schema: type[Section]) -> bool:
    """True if ``group`` is one of presets, which are for commands with tables."""
    return group in PRESETS and "tables" in types_of(schema)
