"""Charts as inline SVG: axes with round ticks, marks drawn in data coordinates inside a frame, under a heading.

Colours come from the page's style sheet by class, so that one chart serves the light and the dark scheme.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise

MAX_STEPS = 5
Point = tuple[float, float]
SPLIT_STYLES = {"train": "first", "val": "second", "test": "third"}
"""The colour of each split, the same on all pages."""
MAX_DOTS = 40
"""A line through so many points or more has no dots on them."""


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
    label: Callable[[float, int], str] | None = None,
    from_zero: bool = False,
    ends_on_ticks: bool = True,
) -> Axis:
    """An axis around all finite ``values``.

    ``label(value, decimals)`` writes a tick. With ``ends_on_ticks`` the range is widened to round numbers.
    """
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if from_zero:
        low = min(0.0, low)
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-300):
        pad = abs(high) / 10 or 1.0
        low, high = (low if from_zero else low - pad), high + pad
    step = round_step((high - low) / MAX_STEPS)
    down, up = (math.floor, math.ceil) if ends_on_ticks else (math.ceil, math.floor)
    slack = 1e-9 if ends_on_ticks else -1e-9
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    write = label or (lambda value, digits: f"{value:,.{digits}f}")
    ticks = [
        (k * step, write(k * step, decimals))
        for k in range(down(low / step + slack), up(high / step - slack) + 1)
    ]
    if ends_on_ticks:
        low, high = ticks[0][0], ticks[-1][0]
    return Axis(low, high, ticks, title)


def round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is no less than ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor >= least * (1 - 1e-9))


@dataclass(frozen=True)
class Frame:
    """The size of a picture and of the margins around its axes, in pixels."""

    width: float = 400.0
    height: float = 250.0
    left: float = 52.0
    right: float = 12.0
    top: float = 10.0
    bottom: float = 40.0


WIDE = Frame(1150.0, 220.0, bottom=24.0)


class Chart:
    """Collects marks; ``html`` gives the picture under its ``title``, with the keys of its marks and a ``note``."""

    def __init__(self, title: str, x: Axis, y: Axis, *, note: str = "", frame: Frame | None = None) -> None:
        self._title, self._x, self._y, self._note, self._frame = title, x, y, note, frame or Frame()
        self._keys: dict[str, str] = {}
        self._marks: list[str] = []
        self._hits: list[str] = []

    def line(
        self, points: Sequence[Point], style: str, tips: Iterable[str] | None = None, key: str = ""
    ) -> None:
        """A line through ``points``, broken where one is not finite; with ``tips`` a few points have dots."""
        self._keys |= {key: style} if key else {}
        for is_finite, part in groupby(points, _is_finite):
            places = list(map(self._at, part))
            if is_finite and len(places) > 1:
                self._path("line", style, "M" + "L".join(places))
        if tips is not None:
            if len(points) < MAX_DOTS:
                self._marks += [self._circle("dot", point, style, 3) for point in points if _is_finite(point)]
            self.tips(points, tips, style)

    def tips(self, points: Iterable[Point], texts: Iterable[str], style: str) -> None:
        """Adds texts that the page's script shows when a pointer comes near a point."""
        self._hits += [
            self._circle("hit", point, style, 4, f' data-tip="{escape(text)}"')
            for point, text in zip(points, texts, strict=True)
            if _is_finite(point)
        ]

    def error_bar(self, x: float, low: float, high: float, style: str) -> None:
        """A vertical bar at ``x``."""
        self._path("error", style, f"M{self._at((x, low))}L{self._at((x, high))}")

    def steps(
        self,
        edges: Sequence[float],
        heights: Sequence[float],
        style: str,
        tips: Sequence[str] = (),
        key: str = "",
    ) -> None:
        """A filled outline: ``heights[i]`` between ``edges[i]`` and ``edges[i + 1]``; a text at the top of each bin."""
        self._keys |= {key: style} if key else {}
        tops = [(x, y) for ends, y in zip(pairwise(edges), heights, strict=True) for x in ends]
        outline = [(edges[0], 0.0), *tops, (edges[-1], 0.0)]
        self._path("area", style, "M" + "L".join(map(self._at, outline)) + "Z")
        if tips:
            middles = ((low + high) / 2 for low, high in pairwise(edges))
            self.tips(zip(middles, heights, strict=True), tips, "guide")

    def guide(self, start: Point, end: Point) -> None:
        """A dashed line between two points."""
        self._path("guide", "", f"M{self._at(start)}L{self._at(end)}")

    def html(self, name: str) -> str:
        """A figure element; ``name`` must be unique on the page."""
        title, note, frame = escape(self._title), escape(self._note), self._frame
        keys = "".join(
            f'<span><i class="swatch {style}"></i>{escape(key)}</span>' for key, style in self._keys.items()
        )
        inside = (
            f'x="{frame.left - 5}" y="{frame.top - 5}" width="{frame.width - frame.left - frame.right + 10}" '
            f'height="{frame.height - frame.top - frame.bottom + 10}"'
        )
        return (
            f'<figure><figcaption><h3 title="{title}">{title}</h3><p class="keys">{keys}</p></figcaption>'
            f'<svg viewBox="0 0 {frame.width:.0f} {frame.height:.0f}" role="img" aria-label="{title} {note}">'
            f'<clipPath id="{name}"><rect {inside}/></clipPath>{self._grid()}'
            f'<g clip-path="url(#{name})">{"".join(self._marks)}</g>{"".join(self._hits)}</svg>'
            f'<p class="note">{note}</p></figure>'
        )

    def _grid(self) -> str:
        frame, parts = self._frame, []
        right, bottom = frame.width - frame.right, frame.height - frame.bottom
        for value, label in self._y.ticks:
            at = self._at_y(value)
            parts.append(f'<path class="grid" d="M{frame.left} {at:.1f}H{right}"/>')
            parts.append(_text(frame.left - 6, at + 4, "end", label))
        for value, label in self._x.ticks:
            at = self._at_x(value)
            anchor = (
                "start" if at < 10 else "end" if at > frame.width - 10 else "middle"
            )  # inside the picture
            parts.append(f'<path class="tick" d="M{at:.1f} {bottom}v4"/>')
            parts.append(_text(at, bottom + 17, anchor, label))
        parts.append(f'<path class="base" d="M{frame.left} {bottom}H{right}"/>')
        parts.append(_text((frame.left + right) / 2, frame.height - 5, "middle", self._x.title))
        return "".join(parts)

    def _path(self, kind: str, style: str, path: str) -> None:
        self._marks.append(f'<path class="{kind} {style}" d="{path}"/>')

    def _circle(self, kind: str, point: Point, style: str, radius: int, more: str = "") -> str:
        x, y = self._at_x(point[0]), self._at_y(point[1])
        return f'<circle class="{kind} {style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"{more}/>'

    def _at(self, point: Point) -> str:
        return f"{self._at_x(point[0]):.1f} {self._at_y(point[1]):.1f}"

    def _at_x(self, value: float) -> float:
        frame = self._frame
        return frame.left + self._x.share(value) * (frame.width - frame.left - frame.right)

    def _at_y(self, value: float) -> float:
        frame = self._frame
        return frame.height - frame.bottom - self._y.share(value) * (frame.height - frame.top - frame.bottom)


def charts_html(charts: Sequence[Chart], name: str, size: str = "") -> str:
    """A grid of charts of ``size`` ``wide`` or less; as many in a row as fit, two or four in pairs.

    ``name`` must be unique on the page.
    """
    size = size or ("pairs" if len(charts) in (2, 4) else "")
    cells = "".join(chart.html(f"{name}-{index}") for index, chart in enumerate(charts))
    return f'<div class="figures {size}">{cells}</div>'


def _text(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>' if text else ""


def _is_finite(point: Point) -> bool:
    return all(map(math.isfinite, point))
