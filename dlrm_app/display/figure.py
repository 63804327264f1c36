"""A chart with its heading, its key and its note, as HTML."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from dlrm_app.display.chart import Chart


@dataclass(frozen=True)
class Key:
    """What a colour stands for."""

    label: str
    style: str


@dataclass(frozen=True)
class Figure:
    """A chart under ``title``."""

    title: str
    chart: Chart
    keys: Sequence[Key] = field(default_factory=list)
    note: str = ""

    def html(self, name: str) -> str:
        """A figure element; ``name`` must be unique on the page."""
        keys = "".join(
            f'<span><i class="swatch {key.style}"></i>{escape(key.label)}</span>' for key in self.keys
        )
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        key_line = f'<p class="keys">{keys}</p>' if keys else ""
        return (
            f"<figure><figcaption><h3>{escape(self.title)}</h3>{key_line}</figcaption>"
            f"{self.chart.svg(name)}{note}</figure>"
        )


def figures_html(figures: Sequence[Figure], prefix: str) -> str:
    """A grid of figures: two by two, or as many in a row as fit."""
    cells = "".join(figure.html(f"{prefix}-{place}") for place, figure in enumerate(figures))
    four = " four" * (len(figures) == 4)
    return f'<div class="figures{four}">{cells}</div>'
