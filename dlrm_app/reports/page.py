"""A self-contained HTML page: its style and script are part of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template

import yaml


def page(title: str, kind: str, *, summary: str, sections: Iterable[str]) -> str:
    """The HTML of a page of a ``kind``. ``summary`` and ``sections`` are HTML; empty sections are left out."""
    return Template(_text("page.html")).substitute(
        title=escape(title),
        kind=escape(kind),
        summary=summary,
        content="\n".join(f"<section>{section}</section>" for section in sections if section),
        style=_text("style.css"),
        script=_text("hover.js"),
    )


@dataclass(frozen=True)
class Tile:
    """A number in large type, with a remark below it."""

    name: str
    value: str
    remark: str = ""


def tiles(shown: Sequence[Tile]) -> str:
    parts = (
        f'<div class="tile"><h3>{escape(tile.name)}</h3><p class="value">{escape(tile.value)}</p>'
        f"<p>{escape(tile.remark)}</p></div>"
        for tile in shown
    )
    return f'<div class="tiles">{"".join(parts)}</div>'


def details(title: str, values: Mapping[str, object]) -> str:
    """``values`` as YAML, shown once the ``title`` is clicked."""
    text = yaml.safe_dump(
        dict(values), sort_keys=False, default_flow_style=None, width=100, allow_unicode=True
    )
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
