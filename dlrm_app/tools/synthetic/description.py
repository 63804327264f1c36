"""Describes a generated log for dlrm-preprocess: the YAML file that ``dataset=`` takes."""

from collections.abc import Iterator
from pathlib import Path

from dlrm_app.config.generate import GenerateConfig
from dlrm_app.text import json_text
from dlrm_app.tools.synthetic.distribution import NUM_DENSE, NUM_SPARSE
from dlrm_app.tools.synthetic.histories import ITEM

_NAMES = {
    (False, False, False): "criteo_kaggle",
    (False, False, True): "criteo_weighted",
    (False, True, False): "criteo_histories",
    (False, True, True): "criteo_histories_weighted",
    (True, False, False): "criteo_orders",
    (True, False, True): "criteo_orders_weighted",
    (True, True, False): "criteo_orders_histories",
    (True, True, True): "criteo_practice",
}
"""(has orders, has lists, has weights) → the name that manifests keep."""


def description_path(log: Path) -> Path:
    """The description beside ``log``, a file or a folder of days."""
    return log.with_name(f"{log.name}.yaml")


def items_path(log: Path) -> Path:
    """The vectors of the items of ``log``."""
    return log.with_name(f"{log.name}.items.parquet")


def describe(config: GenerateConfig) -> str:
    return "\n".join([*_lines(config), ""])


def _lines(config: GenerateConfig) -> Iterator[str]:
    has_orders = config.orders.rate > 0
    has_lists = config.histories.length > 0
    has_weights, has_items = config.weights > 0, config.catalogue.width > 0
    yield "# Written by dlrm-generate: Criteo's format, and what else its lines hold"
    name = _NAMES[has_orders, has_lists, has_weights] + "_items" * has_items
    yield f"name: {name}  # kept in the manifest"
    yield r'delimiter: "\t"'
    yield "header: false"
    if has_orders:
        yield "labels: [click, {order: {given: click}}]  # the main one first; only clicked rows have orders"
    if config.negatives_kept < 1:
        yield f"negatives_kept: {config.negatives_kept}  # share of the negatives that the log holds"
    yield "columns:  # in the order of the file"
    yield f"  - {{name: {'click' if has_orders else 'label'}, role: label}}"
    for number in range(NUM_DENSE):
        yield f"  - {{name: int_{number}, role: dense, kind: integer}}"
    for number in range(NUM_SPARSE):
        is_item = has_lists and number == ITEM
        name, note = ("item", f"  # elsewhere cat_{ITEM}") if is_item else (f"cat_{number}", "")
        yield f"  - {{name: {name}, role: sparse, kind: hex}}{note}"
    if has_orders:
        yield "  - {name: order, role: label}"
    if has_lists:
        yield "  # values of item, newest last: encoding=vocab encoding.shared=[[item,last_items]]"
        yield '  - {name: last_items, role: sparse, kind: hex, separator: "|"}'
        yield "  # values of item as well, but summed by their counts, in a table of their own"
        yield '  - {name: bought, role: sparse, kind: hex, separator: "|"}'
        yield "  - {name: counts, role: element_weights, weights_of: bought}"
    if has_items:
        yield "  - {name: shown, role: sparse, kind: hex}  # an item of the catalogue"
    if has_weights:
        yield "  - {name: importance, role: weight}"
    if has_items:
        yield "derived:"
        file = items_path(Path(config.output))
        yield f"  - {{name: shown_text, kind: vectors, of: shown, file: {json_text(str(file))}}}"
