"""Settings that name folders in a store: a command gets their local places, and what it makes there is kept."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dlrm_app.errors import ConfigError, Problem
from dlrm_app.stores.names import is_in_store

if TYPE_CHECKING:
    from dlrm_app.config.overrides import Settings

OUTPUT = "output"
READ = (
    *("data.path", "checkpoint", "model", "resume", "warm_start.checkpoint", "encoding", "encoding.path"),
    *("encoding.grow_from", "against", "scores", "distillation.scores", "since", "base", "apply", "runs"),
)
"""Keys that name folders and files of other commands, in any command."""
_ON_DISKS = ("generate",)
"""Commands whose output has files beside it, which a store would not get."""
_PARTS = {"predict": ".parts"}
"""Command → the suffix of the folder beside its output that has finished parts until the output is whole."""
_ON_MACHINES = ("train",)
"""Commands whose ranks may be on several machines that share no disk: each sends its own part."""


@contextmanager
def local_places(command: str, settings: "Settings", check: Callable[[], object]) -> Iterator["Settings"]:
    """Yields the ``settings`` of ``command`` with local places in place of URLs, whose content is there; keeps
    ``output`` in its store.

    ``check``: raises the problems of the settings that can be found before anything is fetched.
    Raises DlrmError if a store does not answer, or if another command on this machine works on the same output.
    """
    keys = READ if command in _ON_DISKS else (OUTPUT, *READ)
    in_stores = {key: value for key, value in settings.items() if key in keys and _urls(value)}
    if not in_stores:
        yield settings
        return
    from dlrm_app.stores.fetch import KeptFolder
    from dlrm_app.stores.mirror import kept_folder
    from dlrm_app.stores.room import most_bytes

    check()
    most_bytes()  # refuses another value

    output = in_stores.pop(OUTPUT, None)
    folders = {url: KeptFolder.of(url, key) for key, value in in_stores.items() for url in _urls(value)}
    for each in folders.values():
        each.fetch()
    places = {url: str(each.folder) for url, each in folders.items()}
    found = {**settings, **{key: _replaced(value, places) for key, value in in_stores.items()}}
    if output is None:
        yield found
        return
    kept = KeptFolder.of(str(output), OUTPUT)
    if command not in _ON_MACHINES:
        _refuse_machines(str(kept.stored), settings.get("ranks"), os.environ)
    found[OUTPUT] = str(kept.folder)
    if _is_first(os.environ):
        parts = KeptFolder.of(f"{kept.stored.url}{_PARTS[command]}") if command in _PARTS else None
        with kept_folder(kept, parts, leaves_tensors=_are_on_machines(os.environ)):
            yield found
    else:
        kept.fetch()
        yield found


def _urls(value: object) -> list[str]:
    """The URLs in the value of a setting, which may be a list."""
    return [str(each) for each in (value if isinstance(value, list) else [value]) if is_in_store(each)]


def _replaced(value: object, places: Mapping[str, str]) -> object:
    if isinstance(value, list):
        return [_replaced(each, places) for each in value]
    return places.get(value, value) if isinstance(value, str) else value


def _is_first(environment: Mapping[str, str]) -> bool:
    """True for the rank that keeps what all of its machine make."""
    return environment.get("RANK", "0") == "0"


def _are_on_machines(environment: Mapping[str, str]) -> bool:
    """True for ranks on several machines, by the launcher's variables."""
    world_size = environment.get("WORLD_SIZE", "1")
    return int(environment.get("LOCAL_WORLD_SIZE", world_size)) < int(world_size)


def _refuse_machines(url: str, ranks: object, environment: Mapping[str, str]) -> None:
    """Raises ConfigError if ranks on several machines have been started. ``ranks``: pods that share the work."""
    nodes = environment.get("SLURM_STEP_NUM_NODES", "1") if environment.get("WORLD_SIZE", "1") != "1" else "1"
    if (
        _are_on_machines(environment)
        or nodes != "1"
        or ("JOB_COMPLETION_INDEX" in environment and ranks not in (None, 1))
    ):
        rule = "is worked on by the ranks of one machine, and these are on several"
        raise ConfigError(
            Problem(f"output={url}", rule, "start them on one, or give a folder that all share")
        )
