"""Small charts as SVG: a line for each series over time, or a bar for each item. Nothing in a chart runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from math import ceil, floor, log, log10
from typing import NamedTuple

__all__ = ["Bar", "Chart", "Point", "Series", "draw_chart", "moment"]

_WIDTH, _HEIGHT = 480, 236
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 468, 40, 190
#: Readable on white and on black.
_GREY = "#808080"
_COLORS = ("#3b82c4", "#e07b39", "#3f9b57", "#c9504f", "#8d6cc0", "#a17a4f", "#d068a9", "#5f9ea0")
#: Points of a series and bars that are drawn, and series of a chart: what a chart takes is bounded.
_MOST_POINTS, _MOST_SERIES = 200, len(_COLORS)
#: Characters of a name in the legend.
_LONGEST = 24
#: Characters of a line of the legend, and how far lines are apart.
_LEGEND, _LINE = 62, 16


@dataclass(frozen=True, slots=True)
class Point:
    """A value at a moment.

    Attributes:
        at: seconds since 1970.
        value: 0 or more; less is drawn as 0.
        line: points of one line are joined.
        told: what the point is of.
    """

    at: float
    value: float
    line: str
    told: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A value of an item: the height of a bar; a ``hollow`` bar stands for a value that was not reached."""

    name: str
    value: float
    hollow: bool
    told: str


@dataclass(frozen=True, slots=True)
class Series:
    """Points in order of time, under one name."""

    name: str
    points: Sequence[Point]


class _Key(NamedTuple):
    """A name in the legend: its colour, the place of its first character, and its line."""

    name: str
    color: str
    place: int
    line: int


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of series, or of bars.

    Attributes:
        title: of the chart.
        value: a value as people read it.
        series: the lines.
        bars: instead of lines.
        marks: moments that are marked, seconds since 1970.
        kilo: what a thousand is in the unit of the values: 1024 for bytes.
    """

    title: str
    value: Callable[[float], str]
    series: Sequence[Series] = ()
    bars: Sequence[Bar] = ()
    marks: Sequence[float] = ()
    kilo: float = 1000

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not self.bars and not any(series.points for series in self.series)


def moment(seconds: float | None) -> str:
    """A moment as people read it, in UTC."""
    try:
        return "?" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return "?"


def draw_chart(chart: Chart, *, tooltips: bool) -> str:
    """A chart as SVG.

    Args:
        chart: to be drawn.
        tooltips: whether points and bars tell what they are of. A picture (``img``) shows no tooltips.
    """
    series = [Series(each.name, _thinned(each.points)) for each in chart.series if each.points][:_MOST_SERIES]
    bars = chart.bars[-_MOST_POINTS:]
    values = [point.value for each in series for point in each.points] + [bar.value for bar in bars]
    top = _round_up(max(values, default=0.0), chart.kilo)
    legend = list(_legend([each.name for each in series]))
    height = _HEIGHT + (legend[-1].line * _LINE if legend else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{_GREY}">',
        f"<title>{escape(chart.title)}</title>",
        f'<text x="8" y="20" font-size="14" font-weight="600">{escape(chart.title)}</text>',
        *_value_axis(chart, top),
        *(_bars(chart, bars, top, tooltips=tooltips) if bars else _lines(chart, series, top, tooltips=tooltips)),
        *map(_drawn, legend),
        "</svg>",
    ]
    return "".join(parts)


def _value_axis(chart: Chart, top: float) -> Iterator[str]:
    for share in (0.0, 0.5, 1.0):
        y = _y(share)
        yield f'<path d="M{_LEFT} {y:.1f}H{_RIGHT}" stroke="{_GREY}" stroke-opacity="0.3"/>'
        told = escape(chart.value(top * share))
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{told}</text>'


def _lines(chart: Chart, series: Sequence[Series], top: float, *, tooltips: bool) -> Iterator[str]:
    moments = [point.at for each in series for point in each.points]
    if not moments:
        return
    first, last = min(moments), max(moments)

    def x(at: float) -> float:
        share = (at - first) / (last - first) if last > first else 0.5
        return _LEFT + share * (_RIGHT - _LEFT)

    for at in sorted({round(x(at)) for at in chart.marks if first <= at <= last}):
        yield f'<path d="M{at} {_TOP}V{_BOTTOM}" stroke="{_GREY}" stroke-dasharray="2 3"/>'
    for each, color in zip(series, _COLORS, strict=False):
        by_line: dict[str, list[Point]] = {}
        for point in each.points:
            by_line.setdefault(point.line, []).append(point)
        for points in by_line.values():
            placed = [(x(point.at), _y(point.value / top), point) for point in points]
            path = " ".join(f"{across:.1f},{up:.1f}" for across, up, _ in placed)
            yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>'
            for across, up, point in placed if tooltips or len(placed) == 1 else ():
                told = f"<title>{escape(f'{each.name}: {chart.value(point.value)}, {point.told}')}</title>"
                told = told if tooltips else ""
                yield f'<circle cx="{across:.1f}" cy="{up:.1f}" r="2.5" fill="{color}">{told}</circle>'
    if last > first:
        yield _below(_LEFT, moment(first)[:16], "start")
        yield _below(_RIGHT, moment(last)[:16], "end")
    else:
        yield _below((_LEFT + _RIGHT) / 2, moment(first)[:16], "middle")


def _bars(chart: Chart, bars: Sequence[Bar], top: float, *, tooltips: bool) -> Iterator[str]:
    room = (_RIGHT - _LEFT) / len(bars)
    width = min(room * 0.7, 40)
    for number, bar in enumerate(bars):
        left, y = _LEFT + room * number + (room - width) / 2, _y(bar.value / top)
        look = f'fill="none" stroke="{_COLORS[3]}"' if bar.hollow else f'fill="{_COLORS[0]}"'
        told = f"<title>{escape(f'{bar.name}: {chart.value(bar.value)}, {bar.told}')}</title>" if tooltips else ""
        size = f'width="{width:.1f}" height="{max(_BOTTOM - y, 1):.1f}"'
        yield f'<rect x="{left:.1f}" y="{min(y, _BOTTOM - 1):.1f}" {size} {look}>{told}</rect>'
    for number in sorted({0, len(bars) - 1}):
        yield _below(_LEFT + room * (number + 0.5), bars[number].name, "middle")


def _below(x: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{_BOTTOM + 16}" text-anchor="{anchor}">{escape(text)}</text>'


def _legend(names: Sequence[str]) -> Iterator[_Key]:
    place = line = 0
    for name, color in zip(names, _COLORS, strict=False):
        short = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
        if place and place + len(short) + 3 > _LEGEND:
            place, line = 0, line + 1
        yield _Key(short, color, place, line)
        place += len(short) + 5


def _drawn(key: _Key) -> str:
    x, y = _LEFT + key.place * 6.4, _BOTTOM + 36 + _LINE * key.line
    return (
        f'<rect x="{x:.1f}" y="{y - 9}" width="10" height="10" fill="{key.color}"/>'
        f'<text x="{x + 15:.1f}" y="{y}">{escape(key.name)}</text>'
    )


def _y(share: float) -> float:
    return _BOTTOM - min(max(share, 0.0), 1.0) * (_BOTTOM - _TOP)


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """At most :data:`_MOST_POINTS`: of neighbours the greatest stays, because peaks are what one looks for."""
    size = ceil(len(points) / _MOST_POINTS)
    if size <= 1:
        return points
    return [max(points[at : at + size], key=lambda point: point.value) for at in range(0, len(points), size)]


def _round_up(value: float, kilo: float) -> float:
    """The next number above that is 1, 2 or 5 times a power of ten, times a power of ``kilo``; 1 for nothing."""
    if value <= 0:
        return 1.0
    unit = kilo ** max(floor(log(value, kilo)), 0)
    power: float = unit * 10.0 ** floor(log10(value / unit))
    return next((factor * power for factor in (1, 2, 5) if value <= factor * power), 10 * power)
