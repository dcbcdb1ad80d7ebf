"""One figure a claim, SVG, drawn from the results that bench/run.py, bench/bandit.py and bench/science.py left.

    python -m bench.figures                      # all whose results are there: bench/figures/NAME.json, bench/science*.jsonl
    python -m bench.figures rollout scaling      # only these
    python -m bench.figures bandit               # makes its own results where they are missing (minutes of one core)

The same results give the same files: no dates, no random ids, text as text.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.arguments import read_json, read_results, unknown_names

HERE = Path(__file__).parent
FOLDER = HERE / "figures"
RUNS = {name: HERE / f"{name}.jsonl" for name in ("science", "science_again")}  # figures of runs, and their results
COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)  # told apart by most eyes (Okabe and Ito)
STYLES = ("-", "--", ":", "-.")
MARKS = "osD^vPX"
GOALS = {  # least ratio to ours, by comparison, size and contender
    ("rollout", "small", "transformers"): 2.5, ("rollout", "mid", "transformers"): 3.0,
    ("rollout", "small", "tunix"): 2.5, ("rollout", "mid", "tunix"): 2.5,
    ("step", "small", "trl"): 2.5, ("step", "small", "tunix"): 2.0, ("step", "mid", "trl"): 3.0, ("step", "mid", "tunix"): 1.6,
    ("agentic", "small", "tunix"): 4.0,
}  # fmt: skip
NOISE = (0.0, 0.5, 1.0, 3.0)
TABLES, SCALED = {"title", "rows"}, {"axis", "sizes", "runs", "fits"}  # what a table has; further, those of scaling
COUPLING = (0.0, 0.3, 0.8)
CONDITIONS = (
    "base",
    "noise 0.5",
    "noise 1",
    "noise 3",
    "noise 1, rho -0.5",
    "noise 1, rho 0.5",
    "sparse execution reward",
    "w/o HierR",
)


DIFFERENCES = {  # metric of the science runs -> its words in the figure
    "Success@0.9": "Success@0.9 of held-out tasks",
    "area under Success@0.9": "mean Success@0.9 over training",
}


def plotting() -> Any:
    """matplotlib, set so that the same data give the same bytes."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {"svg.hashsalt": "slca", "svg.fonttype": "none", "font.size": 11, "axes.titlesize": 11, "legend.fontsize": 9,
         "axes.spines.top": False, "axes.spines.right": False, "figure.constrained_layout.use": True}
    )  # fmt: skip
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, name: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plotting().close(figure)
    return path


def load(name: str, folder: Path) -> dict[str, Any] | None:
    """Results of a figure, None where there are none. Raises ValueError, with the file's name, where it cannot be drawn from them."""
    path = folder / f"{name}.json"
    if not path.is_file():
        return None
    if name == "bandit":
        found = read_json(path)
        fine = (
            isinstance(found, dict) and "seeds" in found and all(isinstance(found.get(k), dict) for k in ("noise", "coupling"))
        )
        again = f"remove it and `python -m bench.figures {name}` makes it again"
    else:
        found = read_results(path, name)
        needed, of_row = TABLES | (SCALED if name == "scaling" else set()), {"name", "median"}
        tables = [table for table in found["tables"] if needed <= set(table) and isinstance(table["rows"], list)]
        fine = "rounds" in found and bool(tables) and len(tables) == len(found["tables"])
        fine = fine and all(isinstance(row, dict) and of_row <= set(row) for table in tables for row in table["rows"])
        again = f"`python -m bench.run {name}` measures them again"
    if not fine:
        raise ValueError(f"{path}: results without what the figure shows; {again}")
    return found


def ratios(name: str, claim: str, folder: Path) -> Path | None:
    """How many times as fast ours is as each contender: a panel a table, bars from 0, least and most of the rounds, the goals."""
    results = load(name, folder)
    if results is None:
        return None
    plt, tables = plotting(), results["tables"]
    figure, axes = plt.subplots(1, len(tables), figsize=(1.6 + 3.1 * len(tables), 4.2), squeeze=False, sharey=True)
    for axis, found in zip(axes[0], tables):
        rows = [row for row in found["rows"] if "ratio" in row and row["name"] != "ours"]
        size = found["title"].partition(",")[0].partition(":")[0]
        for k, row in enumerate(rows):
            r = row["ratio"]
            axis.bar(k, r["median"], color=COLORS[k % len(COLORS)], width=0.7)
            axis.errorbar(k, r["median"], [[r["median"] - r["least"]], [r["most"] - r["median"]]], color="black", capsize=4)
            axis.text(k, r["most"], f" {r['median']:.1f}x", ha="center", va="bottom")
            if goal := GOALS.get((name, size, row["name"].partition(",")[0])):
                axis.plot([k - 0.4, k + 0.4], [goal, goal], color="black", linestyle=":")
        axis.axhline(1, color="grey", linewidth=0.8)
        axis.set_xticks(
            range(len(rows)), [row["name"].replace(", ", ",\n").replace(" (", "\n(") for row in rows], rotation=40, ha="right"
        )
        axis.set_title(found["title"].replace(": ", ":\n", 1), fontsize=10)
    axes[0][0].set_ylabel("seconds of the contender / ours")
    figure.suptitle(f"{claim}\nmedian of {results['rounds']} rounds, whiskers least to most; dotted: goal", fontsize=11)
    return save(figure, name, folder)


def rollout(folder: Path) -> Path | None:
    return ratios("rollout", "Sampling a batch: ours against the contenders", folder)


def update(folder: Path) -> Path | None:
    return ratios("update", "The optimiser step on given rollouts", folder)


def step(folder: Path) -> Path | None:
    return ratios("step", "A whole single-turn GRPO step", folder)


def agentic(folder: Path) -> Path | None:
    return ratios("agentic", "A whole multi-turn step with tools", folder)


def startup(folder: Path) -> Path | None:
    """Seconds to the end of the first step by phase, cold and warm, medians on top of each other."""
    results = load("startup", folder)
    if results is None:
        return None
    plt = plotting()
    figure, axis = plt.subplots(figsize=(7.5, 3.2))
    for y, found in enumerate(results["tables"]):
        left = 0.0
        for k, row in enumerate(row for row in found["rows"] if row["name"] not in ("total", "second step")):
            axis.barh(y, row["median"], left=left, color=COLORS[k], label=row["name"] if y == 0 else None)
            left += row["median"]
        axis.text(left, y, f" {left:.1f} s", va="center")
    axis.axvline(10, color="black", linestyle=":", label="goal, warm")
    axis.set_yticks(range(len(results["tables"])), [found["title"].partition(",")[0] for found in results["tables"]])
    axis.set_xlabel("seconds from the start of the process to the end of the first RL step")
    axis.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.4, 1.0))
    return save(figure, "startup", folder)


def scaling(folder: Path) -> Path | None:
    """Seconds by phase against each size on logarithmic axes, with the fitted exponents."""
    results = load("scaling", folder)
    if results is None:
        return None
    plt, tables = plotting(), results["tables"]
    figure, axes = plt.subplots(1, len(tables), figsize=(3.6 * len(tables), 4.2), squeeze=False)
    for axis, found in zip(axes[0], tables):
        x = np.array(found["sizes"], float)
        for k, (phase, fitted) in enumerate(found["fits"].items()):
            runs = [[run[phase] for run in found["runs"][str(size)]] for size in found["sizes"]]
            middle = np.median(runs, 1)
            bars = [middle - np.min(runs, 1), np.max(runs, 1) - middle]
            name = "step" if phase == "seconds" else phase
            label = f"{name}: {fitted['exponent']:.2f} ({fitted['low']:.2f} to {fitted['high']:.2f})"
            axis.errorbar(x, middle, bars, color=COLORS[k], marker=MARKS[k], linestyle="none", capsize=3, label=label)
            axis.plot(x, fitted["scale"] * x ** fitted["exponent"], color=COLORS[k], linestyle=STYLES[k])
        axis.set(xscale="log", yscale="log", xlabel={"model": "parameters", "group": "G"}.get(found["axis"], found["axis"]))
        axis.set_xticks(x, [f"{n / 1e6:.1f} M" if n > 1e5 else f"{n:.0f}" for n in x])
        axis.minorticks_off()
        axis.legend(
            fontsize=8, title="exponent (95 % interval)", title_fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0)
        )
    axes[0][0].set_ylabel("seconds")
    return save(figure, "scaling", folder)


def bandit_results() -> dict[str, Any]:
    """Means and 95 % half widths over seeds of the bandit's accuracies, for the settings that the figure shows."""
    from bench.bandit import NAMES, SEEDS, train
    from slca.evals.stats import mean_interval

    noise, coupling = [{"ratio": r} for r in NOISE], [{"ratio": 1.0, "coupling": c} for c in COUPLING]
    out: dict[str, Any] = {"seeds": SEEDS, "noise": {}, "coupling": {}}
    for name in NAMES:
        for key, settings, column in (("noise", noise, 0), ("coupling", coupling, 1)):
            found = [mean_interval([train(name, seed, **setting)[column] for seed in range(SEEDS)]) for setting in settings]
            out[key][name] = [[round(f.mean, 3), round(f.mean - f.low, 3)] for f in found]
    return out


def bandit(folder: Path) -> Path | None:
    """Tool accuracy against noise on the summary reward; summary accuracy against coupling. No language model."""
    results = load("bandit", folder)
    if results is None:
        results = bandit_results()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "bandit.json").write_text(json.dumps(results, indent=1) + "\n")
    plt = plotting()
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2))
    for axis, key, x in ((axes[0], "noise", NOISE), (axes[1], "coupling", COUPLING)):
        for k, (name, found) in enumerate(results[key].items()):
            middle, half = np.array(found, float).T
            at = np.array(x) + 0.012 * max(x) * (k - len(results[key]) / 2)  # side by side, so that intervals can be seen
            style = {"color": COLORS[k % len(COLORS)], "marker": MARKS[k % len(MARKS)], "linestyle": STYLES[k % len(STYLES)]}
            axis.errorbar(at, middle, half, label=name, capsize=2, markersize=5, **style)
        axis.set_xticks(x)
    axes[0].set(xlabel="noise on the summary reward, sd / sd of the tool reward", ylabel="expected quality of the tool action")
    axes[1].set(xlabel="share of the summary reward that the tool decides", ylabel="expected quality of the summary action")
    axes[0].legend(ncols=2)
    figure.suptitle(f"Two-segment bandit, no language model: means of {results['seeds']} seeds, 95 % intervals", fontsize=11)
    return save(figure, "bandit", folder)


def differences(lines: Sequence[Mapping[str, Any]], metric: str) -> dict[str, dict[str, Any]]:
    """other method -> condition -> interval of slca less it, seed by seed; only where two seeds have both."""
    from bench.science_report import by_condition, paired
    from slca.evals.stats import mean_interval

    out: dict[str, dict[str, Any]] = {}
    numbers = {name: {run: line["numbers"] for run, line in own.items()} for name, own in by_condition(lines).items()}
    for condition, own in paired(numbers, [metric]).items():
        for other, by_seed in own.items():
            values = [float(gap[0]) for gap in by_seed.values() if np.isfinite(gap[0])]
            if len(values) > 1:
                out.setdefault(other, {})[condition] = mean_interval(values)
    return out


def science(folder: Path, results: Path = RUNS["science"]) -> Path | None:
    """slca less each other method by condition; the learning curves of every condition."""
    from bench import science_report
    from bench.science import collected

    lines = collected(results)
    if not lines:
        return None
    plt = plotting()  # its settings hold for the learning curves as well
    for condition, own in science_report.by_condition(lines).items():
        science_report.draw(plt, folder, condition, {run: line["curves"] for run, line in own.items()})
    return compared(plt, lines, "science", folder)


def science_again(folder: Path, results: Path = RUNS["science_again"]) -> Path | None:
    """The same differences in the runs that repeated some from new cold starts."""
    from bench.science import collected

    lines = collected(results)
    return compared(plotting(), lines, "science_again", folder) if lines else None


def compared(plt: Any, lines: list[dict[str, Any]], name: str, folder: Path) -> Path:
    """slca less each other method, mean and 95 % interval over seeds, by condition."""
    by_metric = {title: differences(lines, metric) for metric, title in DIFFERENCES.items()}
    found = next(iter(by_metric.values()))
    rows = [(c, other) for c in CONDITIONS for other, by in found.items() if c in by]
    places = [-k - 0.6 * CONDITIONS.index(condition) for k, (condition, _) in enumerate(rows)]
    figure, axes = plt.subplots(1, len(by_metric), figsize=(12, 1.5 + 0.28 * len(rows)), sharey=True)
    for axis, (title, by_other) in zip(axes, by_metric.items()):
        for y, (condition, other) in zip(places, rows):
            if f := by_other.get(other, {}).get(condition):
                k, error = list(found).index(other), [[f.mean - f.low], [f.high - f.mean]]
                axis.errorbar(f.mean, y, xerr=error, color=COLORS[k % len(COLORS)], marker=MARKS[k % len(MARKS)], capsize=3)
        axis.axvline(0, color="grey", linewidth=0.8)
        axis.set_xlabel(f"slca less the other: {title}", fontsize=9)
    names = [f"{condition}: {other} (n = {found[other][condition].n})" for condition, other in rows]
    axes[0].set_yticks(places, names, fontsize=9)
    return save(figure, name, folder)


FIGURES: dict[str, Callable[[Path], Path | None]] = {
    function.__name__: function
    for function in (rollout, update, step, agentic, startup, scaling, bandit, science, science_again)
}


def main(argv: list[str] | None = None) -> int:
    from bench.science import collected

    parser = argparse.ArgumentParser(
        prog="bench.figures", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(FIGURES)}")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="results and figures")
    args = parser.parse_args(argv)
    if unknown := sorted(set(args.names) - set(FIGURES)):
        parser.error(unknown_names(unknown, FIGURES))
    if not args.folder.is_dir():
        parser.error(f"--folder={args.folder}: there is no such folder")
    try:  # all of them, before one is drawn
        there = {
            name: bool(collected(RUNS[name]) if name in RUNS else load(name, args.folder)) for name in args.names or FIGURES
        }
    except ValueError as wrong:
        parser.error(str(wrong))
    if missing := [name for name in args.names if not there[name] and name != "bandit"]:
        parser.error(f"no results in {args.folder}: {', '.join(missing)}; `python -m bench.run NAME` measures them")
    for name in there:
        if name == "bandit" and not args.names and not there[name]:
            print("bandit: no results yet; `python -m bench.figures bandit` makes them (minutes)")
            continue
        print(f"{name}: {FIGURES[name](args.folder) or 'no results yet'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
