"""Tables and figures of the science runs: means over seeds with intervals, paired differences, learning curves."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slca.evals.stats import mean_interval, paired_permutation
from slca.report.curves import over_seeds, series

if TYPE_CHECKING:
    from bench.science import Run

# name in the table -> (split, temperature, metric) of the last evaluation
FINAL = {
    "Success@0.9": ("heldout_tasks", 1.0, "success@0.9"),
    "greedy": ("heldout_tasks", 0.0, "success@0.9"),
    "process": ("heldout_tasks", 1.0, "process"),
    "summary": ("heldout_tasks", 1.0, "summary"),
    "tool turns": ("heldout_tasks", 1.0, "tool_turns"),
    "duplicates": ("heldout_tasks", 1.0, "duplicates"),
    "new tools": ("heldout_tools", 1.0, "success@0.9"),
    "new tools: summary": ("heldout_tools", 1.0, "summary"),
}
# name in the table -> (metric of the training log, how it becomes one number a run)
TRAINING: dict[str, tuple[str, Callable[[np.ndarray], float]]] = {
    "area under Success@0.9": ("rollout/success@0.9", np.nanmean),
    "kappa T": ("rollout/credit/kappa/tool", np.nanmean),
    "kappa S": ("rollout/credit/kappa/summary", np.nanmean),
    "sign conflict": ("rollout/credit/sign_conflict/method", np.nanmean),
    "gradient norm, sd": ("train/grad_norm", np.nanstd),
    "cos(tool, summary)": ("train/gradient/cosine", np.nanmean),
}
CURVES = ("rollout/success@0.9", "rollout/summary")
STYLES = ("-", "--", ":", "-.")
WINDOW = 10  # steps
AGAINST = "slca"
PAIRED = ("Success@0.9", "greedy", "process", "summary", "area under Success@0.9")


def report(root: Path, runs: Sequence[Run]) -> None:
    """Print one section a condition; write the figures under `root`/figures."""
    for condition in dict.fromkeys(run.condition for run in runs):
        own = [run for run in runs if run.condition == condition]
        numbers = {run: outcome(run.folder(root)) for run in own}
        print(f"### {condition}\n\n{means(numbers)}\n\n{differences(numbers)}\n")
        draw(root, condition, own)


def outcome(folder: Path) -> dict[str, float]:
    """Every number of one run by its name in the tables; NaN where the run does not have it."""
    rows = [row for row in json.loads((folder / "results.json").read_text())["rows"] if row["name"] == "after RL"]
    final = {(row["split"], float(row["temperature"])): row["metrics"] for row in rows}
    out = {name: final.get((split, t), {}).get(metric, np.nan) for name, (split, t, metric) in FINAL.items()}
    found = series(metrics(folder))
    for name, (metric, reduce) in TRAINING.items():
        values = found[metric][1] if metric in found else np.array([np.nan])
        out[name] = float(reduce(values)) if np.isfinite(values).any() else np.nan
    solved, tokens = (found[m][1] if m in found else np.array([np.nan]) for m in ("rollout/solved", "sgls/tokens"))
    out["simulator tokens per solved"] = float(np.nansum(tokens) / np.nansum(solved)) if np.nansum(solved) else np.nan
    return out


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if json.loads(line).get("phase") == "rl"]


def means(numbers: Mapping[Run, Mapping[str, float]]) -> str:
    """Markdown: an algorithm a row, mean ± half width of the 95 % t-interval over seeds."""
    names = [name for name in next(iter(numbers.values())) if any(np.isfinite(n[name]) for n in numbers.values())]
    lines = [f"| method | n | {' | '.join(names)} |", "|" + "---|" * (len(names) + 2)]
    for algorithm in dict.fromkeys(run.algorithm for run in numbers):
        rows = [found for run, found in numbers.items() if run.algorithm == algorithm]
        cells = []
        for name in names:
            values = [row[name] for row in rows if np.isfinite(row[name])]
            cells.append("none" if not values else _cell(mean_interval(values)))
        lines.append(f"| {algorithm} | {len(rows)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def differences(numbers: Mapping[Run, Mapping[str, float]]) -> str:
    """Markdown: slca less each other method, seed by seed: mean, 95 % t-interval, exact sign-flip p (least possible: 2 / 2^n)."""
    lines = [f"| {AGAINST} less | pairs | {' | '.join(PAIRED)} |", "|" + "---|" * (len(PAIRED) + 2)]
    by_name = {(run.algorithm, run.seed): found for run, found in numbers.items()}
    for other in dict.fromkeys(name for name, _ in by_name if name != AGAINST):
        seeds = [seed for name, seed in by_name if name == other and (AGAINST, seed) in by_name]
        cells = []
        for metric in PAIRED:
            a, b = ([by_name[name, seed][metric] for seed in seeds] for name in (AGAINST, other))
            if not np.isfinite(np.subtract(a, b)).any():
                cells.append("none")
                continue
            _, p = paired_permutation(a, b)
            cells.append(f"{_cell(mean_interval(list(np.subtract(a, b))), signed=True)}, p = {p:.3f}")
        lines.append(f"| {other} | {len(seeds)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(found: Any, signed: bool = False) -> str:
    mean = f"{found.mean:+.3f}" if signed else f"{found.mean:.3f}"
    return mean if found.n < 2 else f"{mean} ± {found.mean - found.low:.3f}"


def draw(root: Path, condition: str, runs: Sequence[Run]) -> None:
    """Learning curves, mean and interval over seeds: Success@0.9 and the summary score of the training rollouts (matplotlib)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    curves = {run: series(metrics(run.folder(root))) for run in runs}
    figure, axes = plt.subplots(1, len(CURVES), figsize=(5.2 * len(CURVES), 3.6), constrained_layout=True)
    for axis, metric in zip(axes, CURVES):
        for k, name in enumerate(dict.fromkeys(run.algorithm for run in runs)):
            own = [curves[run][metric] for run in runs if run.algorithm == name and metric in curves[run]]
            line = over_seeds(name, [smooth(*curve) for curve in own])
            axis.plot(line.x, line.y, label=line.name, color=f"C{k}", linestyle=STYLES[k % len(STYLES)])
            if line.low is not None and line.high is not None:
                axis.fill_between(line.x, line.low, line.high, color=f"C{k}", alpha=0.12, linewidth=0)
        axis.set(title=metric.rpartition("/")[2], xlabel="RL step")
    axes[0].legend(fontsize=7)
    figure.suptitle(f"{condition}: training rollouts, means of {WINDOW} steps, 95 % interval over seeds", fontsize=9)
    (root / "figures").mkdir(exist_ok=True)
    figure.savefig(root / "figures" / f"{runs[0].folder(root).parent.name}.svg", metadata={"Date": None})
    plt.close(figure)


def smooth(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means over consecutive windows of WINDOW steps."""
    n = len(x) // WINDOW * WINDOW
    return x[:n].reshape(-1, WINDOW)[:, -1], np.nanmean(y[:n].reshape(-1, WINDOW), 1)
