"""Paths, gaps, ticks and escapes of the SVG plots, worked out by hand."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from slca.report.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Line, figure, short, svg, thin, ticks

NAN = float("nan")


def line(y, name="a", **bands):
    y = np.array(y, float)
    return Line(name, np.arange(len(y), dtype=float), y, **{k: np.array(v, float) for k, v in bands.items()})


def test_corners_of_the_data_are_corners_of_the_frame():
    text = svg("t", [line([0.0, 1.0])])
    path = re.search(r'class="line s0" d="([^"]+)"', text)[1]
    assert path == f"M{LEFT:.1f} {HEIGHT - BOTTOM:.1f}L{WIDTH - RIGHT:.1f} {TOP:.1f}"
    ET.fromstring(text)


def test_a_gap_breaks_the_line_and_a_lonely_point_is_a_dot():
    text = svg("t", [line([0.0, 1.0, NAN, 0.5, NAN, 1.0, 1.0])])
    path = re.search(r'class="line s0" d="([^"]+)"', text)[1]
    assert path.count("M") == 3 and path.count("L") == 2  # two lines and the point between the gaps
    assert text.count("<circle") == 1


def test_a_band_has_one_area_for_each_run_of_known_points():
    text = svg("t", [line([1, 1, 1, 1, 1], low=[0, 0, NAN, 0, 0], high=[2, 2, NAN, 2, 2])])
    band = re.search(r'class="band s0" d="([^"]+)"', text)[1]
    assert band.count("M") == band.count("Z") == 2
    assert "2" in re.findall(r">([^<]+)</text>", text)  # the axis reaches the band's edge


@pytest.mark.parametrize(
    ("low", "high", "whole", "expected"),
    [
        (0, 1, False, [0, 0.5, 1.0]),
        (0, 100, True, [0, 20, 40, 60, 80, 100]),
        (3, 5, True, [3, 4, 5]),
        (0.2, 0.4, True, [0.30000000000000004]),
    ],
)
def test_ticks_are_round_numbers(low, high, whole, expected):
    assert ticks(low, high, 6 if whole else 3, whole=whole) == pytest.approx(expected)


def test_numbers_are_short():
    values = [0, 0.25, 1234.0, 15_300, 3_400_000, 1.5e9, 3e13, 1e-6, -0.5]
    assert [short(v) for v in values] == ["0", "0.25", "1234", "15.3k", "3.4M", "1.5G", "3.0e+13", "1e-06", "-0.5"]


def test_nothing_to_draw_says_so_and_a_constant_has_an_axis():
    assert "no data" in svg("t", []) and "no data" in svg("t", [line([NAN, NAN])])
    assert "no data" not in svg("t", [line([3.0, 3.0])]) and "nan" not in svg("t", [line([3.0])])


def test_many_points_are_averaged_down():
    thinned = thin(line(np.repeat([1.0, 3.0], 500)), 10)
    assert len(thinned.x) == 10 and thinned.y.tolist() == [1.0] * 5 + [3.0] * 5
    holes = np.full(1000, NAN)
    holes[3] = 7.0
    assert thin(line(holes), 10).y[0] == 7.0


def test_text_is_escaped_and_lines_that_stay_zero_are_only_named():
    html = figure("<b>&", [line([1, 2], "<script>"), line([0, 0], "dead")], note="a<b")
    assert "<script>" not in html and "<b>&" not in html and "&lt;script&gt;" in html
    assert "always 0: dead" in html and html.count("<li>") == 1
    ET.fromstring(html)
    idle = figure("errors", [line([0, 0], "a"), line([0, 0], "b")])
    assert "always 0: a, b" in idle and "<svg" not in idle and "no data" not in idle
