"""Charts as inline SVG: axes with round ticks, marks drawn in data coordinates inside a frame, under a heading.

Colours come from the page's style sheet by class, so that one chart serves the light and the dark scheme.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

ROUND_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
MAX_STEPS = 5


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
    bounds: tuple[float, float] = (-math.inf, math.inf),
    smallest_step: float = 0.0,
) -> Axis:
    """An axis around all finite ``values``.

    ``label(value, decimals)`` writes a tick. With ``ends_on_ticks`` the range is widened to round numbers.
    One value alone gets some room, but never beyond ``bounds``.
    """
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if from_zero:
        low = min(0.0, low)
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-300):
        pad = abs(high) / 10 or 1.0
        low, high = (low if from_zero else low - pad), high + pad
    low, high = max(low, bounds[0]), min(high, bounds[1])
    step = max(smallest_step, round_step(high - low, MAX_STEPS))
    first = math.floor(low / step + 1e-9) if ends_on_ticks else math.ceil(low / step - 1e-9)
    last = math.ceil(high / step - 1e-9) if ends_on_ticks else math.floor(high / step + 1e-9)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9) + (step_digits(step) > 1))
    write = label or (lambda value, digits: f"{value:,.{digits}f}")
    ticks = [(k * step, write(k * step, decimals)) for k in range(first, last + 1)]
    if ends_on_ticks:
        low, high = ticks[0][0], ticks[-1][0]
    return Axis(low, high, ticks, title)


def round_step(span: float, num_steps: int) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that covers ``span`` in at most ``num_steps`` steps."""
    rough = span / num_steps
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in ROUND_STEPS if power * factor >= rough * (1 - 1e-9))


def step_digits(step: float) -> int:
    """Significant digits of a round step: 2 for 2.5, else 1."""
    return 2 if f"{step:e}".startswith("2.5") else 1


def logit_axis(low: float, high: float, title: str) -> Axis:
    """An axis of logits with ticks at equal distances, labelled with their probabilities."""
    if high <= low:
        low, high = low - 1, high + 1
    logits = [low + quarter * (high - low) / 4 for quarter in range(5)]
    return Axis(low, high, [(logit, f"{100 / (1 + math.exp(-logit)):.3g}%") for logit in logits], title)


Point = tuple[float, float]
SPLIT_STYLES = {"train": "first", "val": "second", "test": "third"}
"""The colour of each split, the same on all pages."""
MAX_DOTS = 40
"""A line through so many points or more has no dots on them."""


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
SMALL = Frame(165.0, 96.0, left=2.0, right=2.0, top=4.0, bottom=20.0)


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
        self._add_key(key, style)
        for part in _finite_parts(points):
            self._path("line", style, "M" + "L".join(map(self._at, part)))
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

    def bin_tips(self, edges: Sequence[float], heights: Sequence[float], texts: Iterable[str]) -> None:
        """A text at the top of each bin: ``heights[i]`` between ``edges[i]`` and ``edges[i + 1]``."""
        middles = ((low + high) / 2 for low, high in pairwise(edges))
        self.tips(zip(middles, heights, strict=True), texts, "guide")

    def error_bar(self, x: float, low: float, high: float, style: str) -> None:
        """A vertical bar at ``x``."""
        self._path("error", style, f"M{self._at((x, low))}V{self._at_y(high):.1f}")

    def steps(self, edges: Sequence[float], heights: Sequence[float], style: str, key: str = "") -> None:
        """A filled outline: ``heights[i]`` between ``edges[i]`` and ``edges[i + 1]``."""
        self._add_key(key, style)
        path = f"M{self._at((edges[0], 0))}"
        for right, height in zip(edges[1:], heights, strict=True):
            path += f"V{self._at_y(height):.1f}H{self._at_x(right):.1f}"
        self._path("area", style, f"{path}V{self._at_y(0):.1f}Z")

    def bars(self, edges: Sequence[float], heights: Sequence[float], style: str) -> None:
        """A bar of ``heights[i]`` between ``edges[i]`` and ``edges[i + 1]``; none is too low to be seen but 0."""
        bottom = self._at_y(0)
        for (low, high), height in zip(pairwise(edges), heights, strict=True):
            if height > 0:
                top = min(self._at_y(height), bottom - 0.7)
                left, right = self._at_x(low), self._at_x(0.08 * low + 0.92 * high)
                self._path("bars", style, f"M{left:.1f} {bottom:.1f}V{top:.1f}H{right:.1f}V{bottom:.1f}Z")

    def band(self, points: Sequence[tuple[float, float, float]], style: str) -> None:
        """Fills the area between ``low`` and ``high`` at every x."""
        outline = [(x, high) for x, _, high in points] + [(x, low) for x, low, _ in reversed(points)]
        self._path("band", style, "M" + "L".join(map(self._at, outline)) + "Z")

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
            parts.append(
                f'<text x="{frame.left - 6}" y="{at + 4:.1f}" text-anchor="end">{escape(label)}</text>'
            )
        for value, label in self._x.ticks:
            at = self._at_x(value)
            parts.append(f'<path class="tick" d="M{at:.1f} {bottom}v4"/>')
            parts.append(
                f'<text x="{at:.1f}" y="{bottom + 17}" text-anchor="{_anchor(at, label, frame)}">{escape(label)}</text>'
            )
        parts.append(f'<path class="base" d="M{frame.left} {bottom}H{right}"/>')
        if self._x.title:
            parts.append(
                f'<text class="title" x="{(frame.left + right) / 2}" y="{frame.height - 5}" '
                f'text-anchor="middle">{escape(self._x.title)}</text>'
            )
        return "".join(parts)

    def _add_key(self, key: str, style: str) -> None:
        if key:
            self._keys[key] = style

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
    """A grid of charts of ``size`` ``small``, ``wide`` or between; as many in a row as fit, two or four in pairs.

    ``name`` must be unique on the page.
    """
    size = size or ("pairs" if len(charts) in (2, 4) else "")
    cells = "".join(chart.html(f"{name}-{index}") for index, chart in enumerate(charts))
    return f'<div class="figures {size}">{cells}</div>'


def _is_finite(point: Point) -> bool:
    return all(map(math.isfinite, point))


def _finite_parts(points: Iterable[Point]) -> list[list[Point]]:
    parts: list[list[Point]] = [[]]
    for point in points:
        if _is_finite(point):
            parts[-1].append(point)
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if len(part) > 1]


def _anchor(at: float, label: str, frame: Frame) -> str:
    """The text-anchor of a tick's label at ``at`` that keeps it inside the picture."""
    half = 3.2 * len(label)  # half the width of so many digits
    if at - half < 0:
        return "start"
    return "end" if at + half > frame.width + 8 else "middle"
