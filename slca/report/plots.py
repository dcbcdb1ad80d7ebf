"""Line plots as SVG text, styled by the page's CSS classes (light and dark) and readable without colour: each line has a dash pattern.

No plotting package: a report is written during training, on machines where the core install is all there is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from jaxtyping import Float

WIDTH, HEIGHT = 440, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 26
POINTS = 240  # more points than pixels tell nothing more
STYLES = 8  # line classes s0 .. s7 of the style sheet


@dataclass(frozen=True)
class Line:
    """One line: y over x, with an optional band from `low` to `high`. Not-a-number breaks the line. All of one length."""

    name: str
    x: Float[np.ndarray, " M"]
    y: Float[np.ndarray, " M"]
    low: Float[np.ndarray, " M"] | None = None
    high: Float[np.ndarray, " M"] | None = None


def figure(title: str, lines: Sequence[Line], *, note: str = "") -> str:
    """HTML <figure>: caption, SVG, and a legend with the last value of each line. Lines that are 0 throughout are only named."""
    quiet = [line.name for line in lines if len(lines) > 1 and not np.any(np.nan_to_num(line.y))]
    shown = [line for line in lines if line.name not in quiet]
    if quiet:
        note = "; ".join(filter(None, [note, f"always 0: {', '.join(quiet)}"]))
    legend = "".join(_legend(k, line) for k, line in enumerate(shown))
    chart = svg(title, shown) if shown or not quiet else ""  # an empty frame would say less than the note
    return (
        f'<figure class="plot"><figcaption>{escape(title)}</figcaption>{chart}'
        f'<ul class="legend">{legend}</ul>{f"<p>{escape(note)}</p>" if note else ""}</figure>'
    )


def _legend(k: int, line: Line) -> str:
    known = line.y[np.isfinite(line.y)]
    value = f" <b>{short(known[-1])}</b>" if known.size else ""
    swatch = f'<svg width="26" height="8" aria-hidden="true"><path class="line s{k % STYLES}" d="M1 4H25"/></svg>'
    return f"<li>{swatch}{escape(line.name)}{value}</li>"


def svg(title: str, lines: Sequence[Line]) -> str:
    """The plot itself; "no data" when nothing is finite."""
    lines = [thin(line) for line in lines]
    x_range, y_range = _range([line.x for line in lines]), _y_range(lines)
    head = f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
    if x_range is None or y_range is None:
        return f'{head}<text x="{WIDTH // 2}" y="{HEIGHT // 2}" text-anchor="middle">no data</text></svg>'
    y_ticks, x_ticks = ticks(*y_range, 5), ticks(*x_range, 6, whole=True)
    y_range = (min(y_range[0], y_ticks[0]), max(y_range[1], y_ticks[-1]))

    def px(x: np.ndarray | float) -> np.ndarray:
        return LEFT + (np.asarray(x) - x_range[0]) / (x_range[1] - x_range[0]) * (WIDTH - LEFT - RIGHT)

    def py(y: np.ndarray | float) -> np.ndarray:
        return HEIGHT - BOTTOM - (np.asarray(y) - y_range[0]) / (y_range[1] - y_range[0]) * (HEIGHT - TOP - BOTTOM)

    parts = [head]
    for y in y_ticks:
        parts.append(f'<path class="grid" d="M{LEFT} {py(y):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{py(y) + 3.5:.1f}" text-anchor="end">{short(y)}</text>')
    for x in x_ticks:
        parts.append(f'<text x="{px(x):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{short(x)}</text>')
    for k, line in enumerate(lines):
        if line.low is not None and line.high is not None:
            low, high = np.clip(line.low, *y_range), np.clip(line.high, *y_range)
            parts.append(f'<path class="band s{k % STYLES}" d="{_band(px(line.x), py(low), py(high))}"/>')
    for k, line in enumerate(lines):
        xs, ys = px(line.x), py(line.y)
        parts.append(f'<path class="line s{k % STYLES}" d="{_path(xs, ys)}"/>')
        parts += [f'<circle class="dot s{k % STYLES}" cx="{xs[i]:.1f}" cy="{ys[i]:.1f}" r="2.5"/>' for i in _alone(ys)]
    return "".join(parts) + "</svg>"


def _path(x: np.ndarray, y: np.ndarray) -> str:
    """Path data: a move after every gap, lines between neighbours."""
    parts, open_ = [], False
    for a, b in zip(x, y):
        if math.isfinite(b):
            parts.append(f"{'L' if open_ else 'M'}{a:.1f} {b:.1f}")
        open_ = math.isfinite(b)
    return "".join(parts)


def _band(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> str:
    """Closed areas between low and high, one for each run of finite points."""
    known = np.isfinite(low) & np.isfinite(high)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], known.astype(int), [0]])))
    areas = []
    for start, stop in zip(edges[::2], edges[1::2]):
        up = [f"{a:.1f} {b:.1f}" for a, b in zip(x[start:stop], high[start:stop])]
        down = [f"{a:.1f} {b:.1f}" for a, b in zip(x[start:stop][::-1], low[start:stop][::-1])]
        areas.append(f"M{'L'.join(up + down)}Z")
    return "".join(areas)


def _alone(y: np.ndarray) -> np.ndarray:
    """Finite points without a finite neighbour: a line would not show them."""
    known = np.concatenate([[False], np.isfinite(y), [False]])
    return np.flatnonzero(known[1:-1] & ~known[:-2] & ~known[2:])


def thin(line: Line, points: int = POINTS) -> Line:
    """At most `points` points: neighbours in x are averaged, not-a-number left out of the means."""
    m = len(line.x)
    if m <= points:
        return line
    bins = np.arange(m) * points // m

    def mean(values: np.ndarray | None) -> np.ndarray | None:
        if values is None:
            return None
        known = np.isfinite(values)
        count = np.bincount(bins[known], minlength=points)
        total = np.bincount(bins[known], values[known], minlength=points)
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)

    x, y = mean(line.x), mean(line.y)
    assert x is not None and y is not None
    return Line(line.name, x, y, mean(line.low), mean(line.high))


def _range(values: Sequence[np.ndarray | None]) -> tuple[float, float] | None:
    known = [v[np.isfinite(v)] for v in values if v is not None]
    known = [v for v in known if v.size]
    if not known:
        return None
    low, high = min(float(v.min()) for v in known), max(float(v.max()) for v in known)
    if low == high:
        pad = abs(low) * 0.1 or 0.5
        return low - pad, high + pad
    return low, high


def _y_range(lines: Sequence[Line]) -> tuple[float, float] | None:
    """Room for lines and bands, but bands may not flatten the lines: of two seeds the interval is 12 standard errors wide."""
    inner = [v[np.isfinite(v)] for v in (line.y for line in lines) if np.isfinite(v).any()]
    outer = _range([v for line in lines for v in (line.y, line.low, line.high)])
    if not inner or outer is None:
        return outer
    low, high = min(float(v.min()) for v in inner), max(float(v.max()) for v in inner)
    return (max(outer[0], 2 * low - high), min(outer[1], 2 * high - low)) if high > low else outer


def ticks(low: float, high: float, count: int, *, whole: bool = False) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) that lie in [low, high]: the coarsest step that gives `count` - 1 of them or more,
    three at least; fewer where whole numbers run out, at least one."""
    power = 10.0 ** math.floor(math.log10((high - low) / max(count - 1, 1)))
    found: list[float] = []
    for step in (m * power for m in (10, 5, 2, 1)):
        step = max(step, 1.0) if whole else step
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        found = [k * step for k in range(first, last + 1)]
        if len(found) >= max(count - 1, 3):
            break
    return found or [(low + high) / 2]


def short(value: float) -> str:
    """A number in at most about six characters: 0.25, 1.2k, 3.4M, 1e-06."""
    size = abs(value)
    if size >= 1e4:
        for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if size >= unit:
                return f"{value / unit:.3g}{name}" if size < 1e12 else f"{value:.1e}"
    return f"{value:.0e}" if 0 < size < 1e-4 else f"{value:.4g}" if size >= 1000 else f"{value:.3g}"
