"""Charts as inline SVG: axes with round ticks, and marks drawn in data coordinates inside a frame, under a heading.

Colours come from the page's style sheet by class, so that one chart works in the light and the dark scheme.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from dlrm_app.text import fixed

MAX_STEPS = 5
Point = tuple[float, float]
STYLES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
"""Classes of colours; at most this many lines are drawn."""
MAX_DOTS = 40
"""A line with this many points or more is drawn without dots."""


@dataclass(frozen=True)
class Axis:
    """A range of values and the ticks within it, as (value, label)."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    title: str = ""

    def share(self, value: float) -> float:
        """Position of ``value`` between ``low`` (0) and ``high`` (1)."""
        return (value - self.low) / (self.high - self.low)


def linear_axis(
    values: Sequence[float],
    title: str = "",
    *,
    write: Callable[[float], str] | None = None,
    from_zero: bool = False,
) -> Axis:
    """An axis around all finite ``values``, widened to round numbers. ``write`` formats its ticks."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min([0.0, *finite] if from_zero else finite), max(finite)
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-300):
        pad = abs(high) / 10 or 1.0
        low, high = (low if from_zero else low - pad), high + pad
    step = round_step((high - low) / MAX_STEPS)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    write = write or (lambda value: f"{value:,.{decimals}f}")
    numbers = range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)
    ticks = [(k * step, write(k * step)) for k in numbers]
    return Axis(ticks[0][0], ticks[-1][0], ticks, title)


def round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor >= least * (1 - 1e-9))


WIDTH, HEIGHT = 400.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 388.0, 10.0, 210.0
"""The size of the picture, and the frame of its axes within it, in pixels."""


class Chart:
    """Collects marks. ``html`` returns the picture with its ``title``, the keys of its marks and a ``note``."""

    def __init__(self, title: str, x: Axis, y: Axis, *, note: str = "") -> None:
        self._title, self._x, self._y, self.note = title, x, y, note
        self._keys: dict[str, str] = {}
        self._marks: list[str] = []
        self._hits: list[str] = []

    def line(self, points: Sequence[Point], style: str, tips: Iterable[str], key: str = "") -> None:
        """Draws a line through ``points``, broken where they are not finite. The page shows a tip near a point."""
        self._keys |= {key: style} if key else {}
        for is_finite, part in groupby(points, _is_finite):
            places = list(map(self._at, part))
            if is_finite and len(places) > 1:
                self._path("line", style, "M" + "L".join(places))
        if len(points) < MAX_DOTS:
            self._marks += [self._circle("dot", point, style, 3) for point in points if _is_finite(point)]
        self._hits += [
            self._circle("hit", point, style, 4, f' data-tip="{escape(tip)}"')
            for point, tip in zip(points, tips, strict=True)
            if _is_finite(point)
        ]

    def error_bar(self, x: float, low: float, high: float, style: str) -> None:
        self._path("error", style, f"M{self._at((x, low))}L{self._at((x, high))}")

    def guide(self, start: Point, end: Point) -> None:
        """Draws a dashed line between two points."""
        self._path("guide", "", f"M{self._at(start)}L{self._at(end)}")

    def html(self, name: str) -> str:
        """The figure element. ``name`` must be unique on the page."""
        title, note = escape(self._title), escape(self.note)
        keys = "".join(
            f'<span><i class="swatch {style}"></i>{escape(key)}</span>' for key, style in self._keys.items()
        )
        inside = f'x="{LEFT - 5}" y="{TOP - 5}" width="{RIGHT - LEFT + 10}" height="{BOTTOM - TOP + 10}"'
        return (
            f'<figure><figcaption><h3 title="{title}">{title}</h3><p class="keys">{keys}</p></figcaption>'
            f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" aria-label="{title} {note}">'
            f'<clipPath id="{name}"><rect {inside}/></clipPath>{self._grid()}'
            f'<g clip-path="url(#{name})">{"".join(self._marks)}</g>{"".join(self._hits)}</svg>'
            f'<p class="note">{note}</p></figure>'
        )

    def _grid(self) -> str:
        parts = []
        for value, label in self._y.ticks:
            at = _at_y(self._y, value)
            parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{RIGHT}"/>')
            parts.append(_text(LEFT - 6, at + 4, "end", label))
        for value, label in self._x.ticks:
            at = _at_x(self._x, value)
            parts.append(f'<path class="tick" d="M{at:.1f} {BOTTOM}v4"/>')
            parts.append(_text(at, BOTTOM + 17, "middle", label))
        parts.append(f'<path class="base" d="M{LEFT} {BOTTOM}H{RIGHT}"/>')
        parts.append(_text((LEFT + RIGHT) / 2, HEIGHT - 5, "middle", self._x.title))
        return "".join(parts)

    def _path(self, kind: str, style: str, path: str) -> None:
        self._marks.append(f'<path class="{kind} {style}" d="{path}"/>')

    def _circle(self, kind: str, point: Point, style: str, radius: int, more: str = "") -> str:
        x, y = _at_x(self._x, point[0]), _at_y(self._y, point[1])
        return f'<circle class="{kind} {style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"{more}/>'

    def _at(self, point: Point) -> str:
        return f"{_at_x(self._x, point[0]):.1f} {_at_y(self._y, point[1]):.1f}"


def _at_x(axis: Axis, value: float) -> float:
    return LEFT + axis.share(value) * (RIGHT - LEFT)


def _at_y(axis: Axis, value: float) -> float:
    return BOTTOM - axis.share(value) * (BOTTOM - TOP)


def line_chart(
    title: str,
    x: Axis,
    lines: Mapping[str, Sequence[Point]],
    at: Callable[[float], str],
    *,
    styles: Sequence[str] = STYLES,
    write: Callable[[float], str] | None = None,
    heights: Sequence[float] | None = None,
) -> Chart | None:
    """Makes a chart with a line for each of ``lines``, by name; None if there are no values.

    ``at`` formats an x; ``write`` formats a y, and makes the y axis begin at 0. ``heights``: values for the y axis;
    default: all.
    """
    values = [y for points in lines.values() for _, y in points]
    if not any(map(math.isfinite, values)):
        return None
    y_axis = linear_axis(values if heights is None else heights, write=write, from_zero=write is not None)
    chart = Chart(title, x, y_axis)
    for (name, points), style in zip(lines.items(), styles, strict=False):
        tips = [
            f"{', '.join(filter(None, (at(x), name)))}: {write(y) if write else fixed(y, 5)}"
            for x, y in points
        ]
        chart.line(points, style, tips, name)
    return chart


def without_peaks(lines: Mapping[str, Sequence[Point]]) -> list[float]:
    """The values of ``lines``, without a line's highest 2% if they would flatten the rest, such as first losses."""
    values = []
    for points in lines.values():
        finite = sorted(y for _, y in points if math.isfinite(y))
        kept = finite[: max(1, math.ceil(0.98 * len(finite)))]
        is_flat = len(finite) >= 20 and finite[-1] - finite[0] >= 2 * (kept[-1] - kept[0])
        values += kept if is_flat else finite
    return values


def charts_html(charts: Sequence[Chart], name: str) -> str:
    """A grid of charts: as many in a row as fit, two or four in pairs. ``name`` must be unique on the page."""
    size = "pairs" if len(charts) in (2, 4) else ""
    cells = "".join(chart.html(f"{name}-{index}") for index, chart in enumerate(charts))
    return f'<div class="figures {size}">{cells}</div>'


def _text(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>' if text else ""


def _is_finite(point: Point) -> bool:
    return all(map(math.isfinite, point))
