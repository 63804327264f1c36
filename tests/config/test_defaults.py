"""A default stands in one place: in a command's YAML, or, of the keys of a group, in the dataclass."""

from collections.abc import Iterator
from typing import Any

import pytest

from dlrm_app.api.commands import COMMANDS, schema_of
from dlrm_app.config.conf_files import conf_dir, conf_file
from dlrm_app.config.schema import REQUIRED, defaults_of, is_section, types_of

NOTHING_GIVEN: tuple[Any, ...] = (None, [], {})
"""No defaults in this sense: a key without a value."""
GROUPS = {
    name: kind
    for command in COMMANDS
    for name, kind in types_of(schema_of(command)).items()
    if is_section(kind) and (conf_dir() / name).is_dir()
}
CHOICES = [
    pytest.param(group, path.relative_to(conf_dir()), id=f"{group}={path.stem}")
    for group in GROUPS
    for path in sorted((conf_dir() / group).glob("*.yaml"))
]


def values(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything that is given."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from values(value, f"{prefix}{key}.")
        elif value not in (*NOTHING_GIVEN, REQUIRED):
            yield f"{prefix}{key}", value


@pytest.mark.parametrize("command", COMMANDS)
def test_a_commands_own_keys_have_their_defaults_in_its_file(command: str) -> None:
    defaults = {key: part for key, part in defaults_of(schema_of(command)).items() if key not in GROUPS}
    assert dict(values(defaults)) == {}


@pytest.mark.parametrize(("group", "path"), CHOICES)
def test_a_choice_lists_only_differences_from_the_defaults(group: str, path: Any) -> None:
    defaults = dict(values(defaults_of(GROUPS[group])))
    chosen = values({key: value for key, value in conf_file(str(path)).items() if key != "defaults"})
    assert [key for key, value in chosen if (key, value) in defaults.items()] == []


@pytest.mark.parametrize("path", [*(conf_dir() / "merlin").glob("*.yaml")], ids=lambda path: str(path.stem))
def test_neither_do_presets_repeat_them(path: Any) -> None:
    preset = conf_file(f"merlin/{path.name}")
    for group in GROUPS.keys() & preset.keys():
        defaults = dict(values(defaults_of(GROUPS[group])))
        assert [key for key, value in values(preset[group]) if (key, value) in defaults.items()] == []
