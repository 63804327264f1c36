"""Settings that name folders in a store: a command gets their local places, and what it makes there is kept."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dlrm_app.distributed.ranks import sharing_ranks
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
_ON_MACHINES = ("train", "evaluate", "predict")
"""Commands whose ranks may be on several machines that share no disk, as each sends its own part or only the first one
writes. Ranks that share a preprocessing may too.
"""


@contextmanager
def local_places(
    command: str, settings: "Settings", check: Callable[[], object], *, is_typed: bool = False
) -> Iterator["Settings"]:
    """Yields the ``settings`` of ``command`` with local places in place of URLs, whose content is there; keeps
    ``output`` in its store.

    ``check``: raises the problems of the settings that can be found before anything is fetched. ``is_typed``: the
    command was typed; from Python, ranks share a preprocessing only if ``ranks`` is given.
    Raises DlrmError if a store does not answer, or if another command on this machine works on the same output.
    """
    keys = READ if command in _ON_DISKS else (OUTPUT, *READ)
    in_stores = {key: value for key, value in settings.items() if key in keys and _urls(value)}
    if not in_stores:
        yield settings
        return
    from dlrm_app.stores.fetch import KeptFolder
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
    with _kept_output(command, str(output), settings.get("ranks"), is_typed) as folder:
        yield {**found, OUTPUT: folder}


@contextmanager
def _kept_output(command: str, url: str, num_ranks: object, is_typed: bool) -> Iterator[str]:
    """Yields the local place of ``output=url``, which is kept in its store as far as this rank makes it."""
    from dlrm_app.stores.fetch import KeptFolder, leave_nothing
    from dlrm_app.stores.mirror import kept_folder
    from dlrm_app.stores.parts import tensors_in

    kept = KeptFolder.of(url, OUTPUT)
    is_shared = command == "preprocess" and (is_typed or num_ranks is not None)
    if is_shared and _share_no_disk(num_ranks, os.environ):
        from dlrm_app.preprocessing.work.stored_folder import stored_output

        ranks = sharing_ranks(None if num_ranks is None else int(str(num_ranks)), os.environ)
        with stored_output(kept, ranks.rank) as folder:
            yield str(folder)
        return
    if command not in _ON_MACHINES and _share_no_disk(num_ranks, os.environ):
        raise _on_machines(str(kept.stored))
    if _is_first(os.environ):
        parts = KeptFolder.of(f"{kept.stored.url}{_PARTS[command]}") if command in _PARTS else None
        with kept_folder(kept, parts, tensors_in if _are_on_machines(os.environ) else leave_nothing):
            yield str(kept.folder)
    else:
        kept.fetch()
        yield str(kept.folder)


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


def _share_no_disk(num_ranks: object, environment: Mapping[str, str]) -> bool:
    """True for ranks on several machines, of any launcher. ``num_ranks``: pods that share the work."""
    nodes = environment.get("SLURM_STEP_NUM_NODES", "1") if environment.get("WORLD_SIZE", "1") != "1" else "1"
    are_pods = "JOB_COMPLETION_INDEX" in environment and num_ranks not in (None, 1)
    return _are_on_machines(environment) or nodes != "1" or are_pods


def _on_machines(url: str) -> ConfigError:
    rule = "is worked on by the ranks of one machine, and these are on several"
    cure = "start it on one machine, or give a folder that all share"
    return ConfigError(Problem(f"output={url}", rule, cure))
