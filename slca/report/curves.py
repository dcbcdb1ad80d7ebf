"""Which metric goes into which plot, and several seeds as one line with an interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from slca.report.plots import STYLES, Line

Rows = Sequence[Mapping[str, Any]]
LEVEL = 0.95  # of the intervals over seeds

PROCESS = ("process", "format", "name", "key", "value", "parallel", "argmatch")
SUMMARY = ("summary", "faithful", "complete", "concise")
EVALUATED = ("success@0.9", "summary")
CALLS = ("turns", "tool_turns", "calls", "gold", "matched", "surplus", "missing", "omitted")


@dataclass(frozen=True)
class Plot:
    """Metrics whose names match a pattern share one plot (`each`: one plot for each parent of their names)."""

    title: str
    patterns: tuple[str, ...]
    each: bool = False
    note: str = ""


MAIN_CHANNELS = ("tool", "summary", "total", "solved", "success")

# The first plot whose pattern fits takes a metric. Between them they show what users of such trainers look for on day one: rewards
# and their spread, advantages and tokens by segment, policy and sampler drift, how episodes went, the simulated world, speed.
PLOTS = (
    *(Plot(f"Evaluation: {metric}", (f"eval/*/{metric}",), note="held-out tasks; step 0 is before RL") for metric in EVALUATED),
    Plot(
        "Unscored rollouts", ("rollout/reward/*unscored", "rollout/unscored"), note="share; they have no score, which is not 0"
    ),
    Plot("Reward by channel", tuple(f"rollout/reward/{name}" for name in MAIN_CHANNELS)),
    Plot("Other reward channels", ("rollout/reward/*",)),
    Plot("Spread of rewards inside groups", ("rollout/reward_std/*",), note="standard deviation, mean over groups"),
    Plot("Groups without spread by channel", ("*zero_variance*",), note="share of groups: they teach nothing"),
    Plot("Success", ("rollout/success*", "rollout/solved"), note="share of rollouts whose score reaches the threshold"),
    Plot("Process components", tuple(f"rollout/{name}" for name in PROCESS)),
    Plot("Summary score", tuple(f"rollout/{name}" for name in SUMMARY)),
    Plot("Advantage by segment", ("rollout/advantage/*", "train/advantage/*"), note="lowest, mean and highest of a step"),
    Plot("Size of the advantage", ("train/advantage_abs/*",), note="mean over trained tokens"),
    Plot(
        "Tokens by segment", ("rollout/token_share/*", "rollout/credit/presence/*"), note="share of sampled tokens; of rollouts"
    ),
    Plot("Sign conflict and contamination", ("*sign_conflict*", "*kappa*", "*leak*", "*correlation*")),
    Plot("Loss", ("train/*loss*",)),
    Plot("Entropy", ("*/entropy*",), note="nats a token"),
    Plot("KL", ("*/kl*",), note="nats a token"),
    Plot("Clip fraction", ("*/*clip*",), note="share of trained tokens"),
    Plot("Gradient norm", ("*/grad_norm*",)),
    Plot("Gradient by segment", ("train/gradient/*",), note="norms of the tool and the summary gradient, and their cosine"),
    Plot("Gap between sampler and trainer", ("*/*gap*",), note="|log-prob difference|, nats"),
    Plot("Ratio", ("train/ratio*", "train/*correction*")),
    Plot("Effective sample size", ("*/ess*",), note="share of tokens left after weighting by trainer over sampler"),
    Plot("Lengths", ("rollout/length/*",), note="tokens a rollout, by who wrote them"),
    Plot("Tokens by writer and segment", ("rollout/tokens*",), note="a rollout"),
    Plot("Turns and calls", tuple(f"rollout/{name}" for name in CALLS), note="per rollout"),
    Plot("End reasons", ("rollout/end/*", "rollout/answered"), note="share of rollouts"),
    Plot(
        "Cut, forged, repeated", ("rollout/truncated", "rollout/forged", "rollout/duplicates"), note="share of rollouts; calls"
    ),
    Plot("Call errors", ("rollout/error*",), note="per rollout"),
    Plot("Tool results", ("rollout/status/*",), note="per rollout"),
    Plot("Cold start", ("sft/*loss*",)),
    Plot("Other evaluation scores", ("eval/*",), each=True),
    Plot("Latency of the simulator", ("time/simulate*",), note="seconds a call"),
    Plot("Simulator", ("sgls/*",), each=True),
    Plot("Judge", ("judge/*",), note="requests a step by outcome"),
    Plot("Cost of a solved rollout", ("rollout/cost/*",), note="calls, tokens of the simulator, declared prices"),
    Plot("Time per phase", ("time/*",), note="seconds a step"),
    Plot("Time per phase of the cold start", ("sft/time/*",), note="seconds a step"),
    Plot("Throughput", ("sys/tokens*",), note="tokens a second"),
    Plot(
        "Use of the hardware", ("sys/mfu", "engine/occupancy", "*/padding*"), note="share: arithmetic, slots at work, padding"
    ),
    Plot("Memory", ("*/*rss*", "sys/hbm*"), note="bytes"),
    Plot("Compilations", ("sys/compiles*",), note="programs since the start; flat after the first step"),
    Plot("Other", ("*",), each=True),
)


def series(rows: Rows) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """name -> (steps, values), both float64; null is not-a-number. Names of the sft phase start with `sft/`."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows:
        prefix = "sft/" if row.get("phase") == "sft" else ""
        for name, value in row.items():
            if name in ("step", "phase") or not isinstance(value, int | float | None):
                continue
            name = name if name.startswith(prefix) else prefix + name
            x, y = found.setdefault(name, ([], []))
            x.append(float(row.get("step", len(x))))
            y.append(np.nan if value is None else float(value))
    return {name: (np.array(x), np.array(y)) for name, (x, y) in found.items()}


def assign(names: Iterable[str]) -> list[tuple[str, str, list[str]]]:
    """(title, note, names) of each plot that has any; every name is in exactly one."""
    groups: dict[tuple[int, str], list[str]] = {}
    for name in sorted(names):
        k = next(k for k, plot in enumerate(PLOTS) if any(fnmatchcase(name, pattern) for pattern in plot.patterns))
        parent = name.rpartition("/")[0] if PLOTS[k].each else ""
        groups.setdefault((k, parent), []).append(name)
    return [
        (f"{PLOTS[k].title}: {parent}" if parent else PLOTS[k].title, PLOTS[k].note, groups[k, parent])
        for k, parent in sorted(groups)
    ]


def run_plots(rows: Rows) -> list[tuple[str, str, list[Line]]]:
    """(title, note, lines) of one run: related metrics share a plot, `STYLES` at most, as no two lines may look alike."""
    found = series(rows)
    plots = []
    for title, note, names in assign(found):
        idle = [name for name in names if not np.any(np.nan_to_num(found[name][1]))]  # a figure only names them
        moving = [name for name in names if name not in idle]
        parts = [moving[k : k + STYLES] for k in range(0, len(moving), STYLES)] or [[]]
        for k, part in enumerate(parts):
            label = f"{title} ({k + 1} of {len(parts)})" if len(parts) > 1 else title
            lines = [Line(_label(name, names), *found[name]) for name in (part + idle if k == 0 else part)]
            plots.append((label, note, lines))
    return plots


def compare_plots(groups: Mapping[str, Sequence[Rows]]) -> list[tuple[str, str, list[Line]]]:
    """(title, note, lines) over several runs: one plot a metric, one line a group of runs (its seeds)."""
    found = {group: [series(rows) for rows in runs] for group, runs in groups.items()}
    names = {name for runs in found.values() for run in runs for name in run}
    plots = []
    for _, note, members in assign(names):
        for name in members:
            curves = {group: [run[name] for run in runs if name in run] for group, runs in found.items()}
            plots.append((name, note, [over_seeds(group, runs) for group, runs in curves.items() if runs]))
    return plots


def over_seeds(name: str, runs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Line:
    """Mean over runs at each step; with two or more, the interval of the mean (Student's t, `LEVEL`)."""
    steps = np.unique(np.concatenate([x for x, _ in runs]))
    table = np.full((len(runs), len(steps)), np.nan)
    for row, (x, y) in zip(table, runs):
        row[np.searchsorted(steps, x)] = y
    centre, half = interval(table)
    several = len(runs) > 1
    return Line(
        f"{name} (n={len(runs)})" if several else name, steps, centre, *((centre - half, centre + half) if several else ())
    )


def interval(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and half width of its interval over axis 0, not-a-number left out. [R, M] -> [M], [M]; the width is nan below 2."""
    from scipy.special import stdtrit

    known = np.isfinite(table)
    n = known.sum(0)
    mean = np.where(n > 0, np.where(known, table, 0).sum(0) / np.maximum(n, 1), np.nan)
    square = np.where(known, (table - mean) ** 2, 0).sum(0) / np.maximum(n - 1, 1)
    half = stdtrit(np.maximum(n - 1, 1), 0.5 + LEVEL / 2) * np.sqrt(square / np.maximum(n, 1))
    return mean, np.where(n > 1, half, np.nan)


def _label(name: str, names: Sequence[str]) -> str:
    """The name without what all names of the plot share, up to a slash."""
    parts = [other.split("/") for other in names]
    shared = 0
    while all(len(p) > shared + 1 for p in parts) and len({p[shared] for p in parts}) == 1:
        shared += 1
    return "/".join(name.split("/")[shared:])
