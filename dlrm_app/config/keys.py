"""Which keys a schema has, and what their values may be."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dlrm_app.text import listed

RENAMED = {"model.members": "model.ensemble_size"}
RENAMED_IN_SPECS = {"hotness": "pooling_factors"}
"""Keys of earlier versions: refused where they are typed, read where a checkpoint holds them."""
GONE: dict[str, str] = {
    "check": "type dlrm-check data.path=DATASET",
    "calibrate": "dlrm-bench output=machine.yaml measures this machine for dlrm-plan topology=machine.yaml",
    "dry_run": "preprocess a part of the input (head -c 1G) to see what all of it would take",
    "recommend": "leave experiment out for a recipe by the dataset's rows (docs/how-to/recipes.md)",
    "trainer.probe_memory": "dlrm-plan estimates what a rank needs beside its tables (docs/how-to/planning.md)",
    "trainer.learn_val": "preprocess with split.val=0 to train on all rows once the settings are chosen",
    "watch_seconds": "restart dlrm-serve to serve another export",
    "limits.requests_per_second": "limit requests in the proxy before dlrm-serve",
}
"""Key of earlier versions → what to do instead: refused where it is typed, left out where a checkpoint holds it."""
_trees: dict[type[Any], DictConfig] = {}


def schema_tree(schema: type[Any]) -> DictConfig:
    """The keys of ``schema`` with their types, not to be changed: made once, for that takes five times as long as a copy."""
    if schema not in _trees:
        _trees[schema] = OmegaConf.structured(schema)
    return _trees[schema]


def is_known(key: str, tree: DictConfig) -> bool:
    """Whether the schema ``tree`` has the dotted ``key``, or leaves open what it has there."""
    node: Any = tree
    for part in key.split("."):
        if not isinstance(node, DictConfig):
            return node is None  # a field typed Any or a list: anything below it is its own business
        if OmegaConf.is_missing(node, part):
            return True
        if part not in node:
            return is_free_form(node)
        node = node[part]
    return True


def is_free_form(node: Any) -> bool:
    """Whether any keys may stand in ``node``."""
    return isinstance(node, DictConfig) and OmegaConf.get_type(node) is dict


def unknown_key(key: str, tree: DictConfig, groups: Sequence[str] = ()) -> str:
    """The refusal of ``key``, with its new name or the nearest one of ``tree`` or ``groups``."""
    if key in GONE:
        return f"{key} is gone: {GONE[key]}"
    if key in RENAMED:
        return f"{key} is now called {RENAMED[key]}"
    known = [*known_keys(tree), *groups]
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if not near:  # the last word may be right and its section wrong or left out
        near = [name for name in known if name.split(".")[-1] == key.split(".")[-1]][:1]
    hint = f"did you mean {near[0]}?" if near else "see --help for the keys"
    return f"{key} is not a known key: {hint}"


def wrong_value(key: str, value: Any, tree: DictConfig) -> str | None:
    """Why ``key``, which ``tree`` has, cannot be ``value``."""
    return None if _takes(key, value, tree) else f"must be {_kind(key, tree)}"


def _takes(key: str, value: Any, tree: DictConfig) -> bool:
    section, _, name = key.rpartition(".")
    around = OmegaConf.select(tree, section) if section else tree
    if not isinstance(around, DictConfig):  # below a field of any kind
        around, name = tree, key
    changed = around.copy()
    try:
        OmegaConf.update(changed, name, value)
    except OmegaConfBaseException:
        return False
    node = OmegaConf.select(changed, name)
    is_flat = isinstance(node, ListConfig) and node._metadata.element_type in (int, float, str)
    return not (is_flat and any(map(_is_nested, value)))  # which omegaconf lets pass


def _kind(key: str, tree: DictConfig) -> str:
    """What ``key`` takes, found by trying."""
    kinds = {"text": "x", "number": 1.5, "whole number": 2}
    if _takes(key, "on", tree) and not _takes(key, "x", tree):
        return "true or false"
    for kind, example in kinds.items():
        if _takes(key, example, tree):
            return f"a {kind}"
    if _takes(key, [{}], tree):
        return "a list, as [a,b]"
    if _takes(key, [], tree):
        return next(f"a list of {kind}s" for kind, example in kinds.items() if _takes(key, [example], tree))
    node = OmegaConf.select(tree, key)
    if is_free_form(node):
        return "a mapping, as {name: value}"
    return f"given key by key, as {key}.NAME=VALUE: {listed([str(name) for name in node], most=8)}"


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping | Sequence) and not isinstance(value, str)


def known_keys(tree: DictConfig, prefix: str = "") -> list[str]:
    """Every dotted key of ``tree``, sections included, for suggestions."""
    keys: list[str] = []
    for name in map(str, tree):
        keys.append(f"{prefix}{name}")
        if OmegaConf.is_missing(tree, name):
            continue
        node = tree[name]
        if isinstance(node, DictConfig):
            keys += known_keys(node, f"{prefix}{name}.")
    return keys
