"""Charts: what is drawn where, that text stays text, and that a chart is never large."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ckpt.report.charts import Bar, Chart, Point, Series, draw_chart
from dagster_ckpt.report.figures import count_text, seconds_text
from dagster_ckpt.shown_text import in_one_line

_SVG = "{http://www.w3.org/2000/svg}"


def _drawn(chart: Chart, *, tooltips: bool = True) -> ET.Element:
    return ET.fromstring(draw_chart(chart, tooltips=tooltips))


def _line(*values: float, name: str = "one", line: str = "a") -> Series:
    return Series(name, [Point(60.0 * at, value, line, f"at {at}") for at, value in enumerate(values)])


def _paths(root: ET.Element) -> list[list[tuple[float, float]]]:
    return [
        [(float(x), float(y)) for x, y in (pair.split(",") for pair in path.attrib["points"].split())]
        for path in root.iter(f"{_SVG}polyline")
    ]


def test_a_greater_value_is_higher_and_a_later_one_further_right() -> None:
    (path,) = _paths(_drawn(Chart("c", str, [_line(0, 10, 5)])))
    (x0, y0), (x1, y1), (x2, y2) = path
    assert x0 < x1 < x2
    assert y1 < y2 < y0
    assert y2 == pytest.approx((y0 + y1) / 2)  # 5 lies half way between 0 and 10
    assert x1 == pytest.approx((x0 + x2) / 2)


def test_a_line_joins_its_own_points_alone() -> None:
    points = [Point(float(at), 1.0, line, "") for at, line in enumerate("aabba")]
    paths = _paths(_drawn(Chart("c", str, [Series("one", points)])))
    assert sorted(map(len, paths)) == [2, 3]


def test_each_point_and_bar_tells_its_value() -> None:
    root = _drawn(Chart("c", seconds_text, [_line(1.5, 2)]))
    assert [title.text for title in root.iter(f"{_SVG}title")] == ["c", "one: 1.5 s, at 0", "one: 2 s, at 1"]
    root = _drawn(Chart("c", seconds_text, bars=[Bar("7", 12.0, True, "no batch")]))
    assert [title.text for title in root.iter(f"{_SVG}title")] == ["c", "7: 12 s, no batch"]
    (bar,) = root.iter(f"{_SVG}rect")
    assert bar.attrib["fill"] == "none"


def test_a_start_is_marked_within_the_time_that_is_shown_alone() -> None:
    chart = Chart("c", str, [_line(1, 2, 3)], marks=[-100.0, 60.0, 1e9])
    dashed = [path for path in _drawn(chart).iter(f"{_SVG}path") if "stroke-dasharray" in path.attrib]
    (mark,) = dashed
    ((_, _), (middle, _), (_, _)) = _paths(_drawn(chart))[0]
    assert abs(float(re.findall(r"[0-9.]+", mark.attrib["d"])[0]) - middle) <= 1


def test_the_scale_ends_at_a_round_number_of_its_unit() -> None:
    def scale(values: Series, kilo: float) -> list[str]:
        root = _drawn(Chart("c", str, [values], kilo=kilo))
        return [text.text or "" for text in root.iter(f"{_SVG}text") if text.attrib.get("text-anchor") == "end"][:3]

    assert scale(_line(0, 7), 1000) == ["0.0", "5.0", "10.0"]
    assert scale(_line(0, 0.03), 1000) == ["0.0", "0.025", "0.05"]
    assert scale(_line(0, 3 << 20), 1024) == ["0.0", str(2.5 * (1 << 20)), str(5.0 * (1 << 20))]
    assert scale(_line(0, 0), 1000) == ["0.0", "0.5", "1.0"]


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.text(max_size=40).map(in_one_line),
            st.lists(st.tuples(st.floats(-1e12, 1e12), st.floats(-1e18, 1e18)), max_size=4),
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_whatever_is_drawn_is_svg_whose_text_is_text(
    given_: list[tuple[str, list[tuple[float, float]]]], tooltips: bool
) -> None:
    hostile = "</text><script>alert(1)</script>\"'&"
    series = [
        Series(f"{name}{hostile}", [Point(at, value, hostile, hostile) for at, value in sorted(points)])
        for name, points in given_
    ]
    root = _drawn(Chart(hostile, count_text, series, marks=[0.0, 1e300]), tooltips=tooltips)
    assert {element.tag.removeprefix(_SVG) for element in root.iter()} <= {
        "svg",
        "title",
        "text",
        "path",
        "polyline",
        "circle",
        "rect",
    }
    assert root.findtext(f"{_SVG}title") == hostile
    for path in _paths(root):
        assert all(0 <= x <= 480 and 0 <= y <= 400 for x, y in path)


def test_a_chart_of_many_points_is_small_and_keeps_its_peak() -> None:
    values = [1.0] * 10_000
    values[7_777] = 99.0
    chart = Chart("c", str, [_line(*values, name=str(n)) for n in range(20)], bars=())
    text = draw_chart(chart, tooltips=False)
    assert len(text) < 40_000
    path = _paths(ET.fromstring(text))[0]
    assert len(path) <= 200
    assert min(y for _, y in path) < min(y for x, y in path if x < 300)
    many = Chart("c", str, bars=[Bar(str(n), 1.0, False, "") for n in range(1_000)])
    assert len(draw_chart(many, tooltips=True)) < 40_000


@pytest.mark.parametrize(
    ("value", "seconds", "count"),
    [(0, "0 s", "0"), (1.5, "1.5 s", "1.5"), (999, "17 min", "999"), (150, "150 s", "150"), (1e6, "16,667 min", "1 M")],
)
def test_values_are_told_in_units_that_people_read(value: float, seconds: str, count: str) -> None:
    assert (seconds_text(value), count_text(value)) == (seconds, count)
