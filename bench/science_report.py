"""Tables and figures of the science runs: means over seeds with intervals, paired differences, learning curves."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slca.evals.stats import mean_interval, paired_permutation
from slca.report.curves import over_seeds, series

Run = tuple[str, int]  # algorithm, seed
Numbers = Mapping[str, float]
Found = Mapping[str, Mapping[Run, Numbers]]  # condition -> run -> the numbers of NAMES

# name in the table -> (split, temperature, metric) of the last evaluation (sampled: of `EVALUATION` where there is one)
FINAL = {
    "Success@0.9": ("heldout_tasks", 1.0, "success@0.9"),
    "greedy": ("heldout_tasks", 0.0, "success@0.9"),
    "process": ("heldout_tasks", 1.0, "process"),
    "summary": ("heldout_tasks", 1.0, "summary"),
    "tool turns": ("heldout_tasks", 1.0, "tool_turns"),
    "duplicates": ("heldout_tasks", 1.0, "duplicates"),
    # What the simulator answers; scripted, it costs no tokens.
    "calls per solved": ("heldout_tasks", 1.0, "cost/calls_per_solved"),
    "new tools": ("heldout_tools", 1.0, "success@0.9"),
    "new tools: summary": ("heldout_tools", 1.0, "summary"),
}
EVALUATION = "evaluation.json"  # in a run's folder: what its last checkpoint does on more held-out tasks than it met at its end
TASKS = "held-out tasks"  # how many, in a line's numbers
# name in the table -> (metric of the training log, how it becomes one number a run)
TRAINING: dict[str, tuple[str, Callable[[np.ndarray], float]]] = {
    "area under Success@0.9": ("rollout/success@0.9", np.nanmean),
    "its last 20 steps": ("rollout/success@0.9", lambda steps: np.nanmean(steps[-20:])),
    "kappa T": ("rollout/credit/kappa/tool", np.nanmean),
    "kappa S": ("rollout/credit/kappa/summary", np.nanmean),
    "sign conflict": ("rollout/credit/sign_conflict/method", np.nanmean),
    "gradient norm, sd": ("train/grad_norm", np.nanstd),
    "cos(tool, summary)": ("train/gradient/cosine", np.nanmean),
}
NAMES = (*FINAL, *TRAINING, TASKS)
CURVES = ("rollout/success@0.9", "rollout/summary")

STYLES = ("-", "--", ":", "-.")
WINDOW = 10  # steps
AGAINST = "slca"
BASE = "base"
LEVELS = (BASE, "noise 0.5", "noise 1", "noise 3")
UNTOUCHED = ("rltr",)  # trains on nothing that noise on the summary reward reaches: its runs with noise are those without
PAIRED = (
    "Success@0.9",
    "greedy",
    "process",
    "summary",
    "tool turns",
    "calls per solved",
    "area under Success@0.9",
    "its last 20 steps",
)


def report(lines: Sequence[Mapping[str, Any]]) -> None:
    """Print the tables (held-out tasks, training, differences and how they grow from base). lines: what `outcome` gave, with
    their `run`."""
    found = {
        condition: {run: {name: line["numbers"].get(name, np.nan) for name in NAMES} for run, line in own.items()}
        for condition, own in by_condition(lines).items()
    }
    print(f"### After training\n\n{means(found, (TASKS, *FINAL))}\n\n### During training\n\n{means(found, tuple(TRAINING))}\n")
    print(f"### {AGAINST} less the others, seed by seed\n\n{differences(found)}\n")
    print(f"### The mean of a seed's over {', '.join(LEVELS)}\n\n{averaged(found)}\n")
    if BASE in found and len(found) > 1:
        print(f"### The same less those of {BASE}\n\n{growth(found)}\n")


def by_condition(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[Run, Mapping[str, Any]]]:
    """The lines of every condition by their (algorithm, seed)."""
    out: dict[str, dict[Run, Mapping[str, Any]]] = {}
    for line in lines:
        condition, algorithm, seed = line["run"]
        out.setdefault(condition, {})[algorithm, seed] = line
    return out


def paired(found: Found, metrics: Sequence[str] = PAIRED) -> dict[str, dict[str, dict[int, np.ndarray]]]:
    """Condition -> what `gaps` finds there. The runs of base of the methods in UNTOUCHED stand for all noise."""
    untouched = {run: numbers for run, numbers in found.get(BASE, {}).items() if run[0] in UNTOUCHED}
    return {name: gaps({**own, **untouched} if name.startswith("noise") else own, metrics) for name, own in found.items()}


def outcome(folder: Path) -> dict[str, Any]:
    """One run: `numbers` by their names in the tables (those that the run has) and its smoothed `curves`."""
    rows = [row for row in json.loads((folder / "results.json").read_text())["rows"] if row["name"] == "after RL"]
    final = {(row["split"], float(row["temperature"])): row["metrics"] for row in rows}
    cells = _evaluation(folder)
    for cell in cells:
        means = {name: metric["mean"] for name, metric in cell["metrics"].items() if metric["n"]}
        final[cell["split"], float(cell["temperature"])] = means
    out = {name: float(final.get((split, t), {}).get(metric, np.nan)) for name, (split, t, metric) in FINAL.items()}
    met = [row["n"] for row in rows if (row["split"], row["temperature"]) == FINAL["Success@0.9"][:2] and "n" in row]
    out[TASKS] = _fewest(cells) or min(met, default=np.nan)
    found = series(metrics(folder))
    for name, (metric, reduce) in TRAINING.items():
        values = found[metric][1] if metric in found else np.array([np.nan])
        out[name] = float(reduce(values)) if np.isfinite(values).any() else np.nan
    curves = {name: [part.round(4).tolist() for part in smooth(*found[name])] for name in CURVES if name in found}
    return {"numbers": {name: round(value, 6) for name, value in out.items() if np.isfinite(value)}, "curves": curves}


def evaluated(folder: Path) -> int:
    """On how many tasks the run was evaluated once more; 0 = it was not."""
    return _fewest(_evaluation(folder))


def _fewest(cells: Sequence[Mapping[str, Any]]) -> int:
    return min((cell["tasks"] for cell in cells), default=0)


def _evaluation(folder: Path) -> list[dict[str, Any]]:
    """What `slca.evals.indomain --out` wrote there; empty where it wrote nothing, or not to its end."""
    try:
        return json.loads((folder / EVALUATION).read_text())["cells"]
    except (OSError, ValueError):
        return []


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if json.loads(line).get("phase") == "rl"]


def means(found: Found, names: Sequence[str]) -> str:
    """Markdown: a condition's algorithm a row, mean ± half width of the 95 % t-interval over seeds of each of `names` that some run
    has (of TASKS: the least)."""
    names = [name for name in names if any(np.isfinite(n[name]) for own in found.values() for n in own.values())]
    lines = [f"| condition | method | n | {' | '.join(names)} |", "|" + "---|" * (len(names) + 3)]
    for condition, own in found.items():
        for algorithm in dict.fromkeys(name for name, _ in own):
            rows = [numbers for (name, _), numbers in own.items() if name == algorithm]
            columns = [[row[name] for row in rows if np.isfinite(row[name])] for name in names]
            cells = [_cell(mean_interval(values)) if values else "none" for values in columns]
            if TASKS in names and (counts := columns[names.index(TASKS)]):
                cells[names.index(TASKS)] = f"{min(counts):,.0f}"
            lines.append(f"| {condition} | {algorithm} | {len(rows)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def differences(found: Found) -> str:
    """Markdown: slca less each other method, seed by seed: mean, 95 % t-interval (bold: without 0), exact sign-flip p (least possible:
    2 / 2^n)."""
    rows = {(condition, other): by_seed for condition, own in paired(found).items() for other, by_seed in own.items()}
    return _table(rows)


def averaged(found: Found) -> str:
    """Markdown: of each seed the mean of its differences over the conditions in LEVELS that it has, as in `differences`."""
    pairs = paired({name: own for name, own in found.items() if name in LEVELS})
    rows: dict[tuple[str, str], dict[int, np.ndarray]] = {}
    for other in dict.fromkeys(other for own in pairs.values() for other in own):
        by_level = [own[other] for own in pairs.values() if other in own]
        seeds = sorted({seed for by_seed in by_level for seed in by_seed})
        mean = {seed: np.mean([by_seed[seed] for by_seed in by_level if seed in by_seed], 0) for seed in seeds}
        rows[f"{len(by_level)} level{'s' * (len(by_level) > 1)}", other] = mean
    return _table(rows)


def growth(found: Found) -> str:
    """Markdown: by how much each condition's differences exceed those of base, seed by seed, as in `differences`."""
    rows, pairs = {}, paired(found)
    base = pairs.pop(BASE)
    for condition, own in pairs.items():
        for other, by_seed in own.items():
            rows[condition, other] = more = {}
            for seed in (seed for seed in by_seed if seed in base.get(other, ())):
                alike = _same_tasks(found[condition][AGAINST, seed], found[BASE][AGAINST, seed], PAIRED)
                more[seed] = np.where(alike, by_seed[seed] - base[other][seed], np.nan)
    return _table(rows)


def _same_tasks(a: Numbers, b: Numbers, metrics: Sequence[str]) -> np.ndarray:
    """Which of `metrics` two runs can be compared in: those of FINAL where both met as many held-out tasks, the greedy one always."""
    tasks = [run.get(TASKS, np.nan) for run in (a, b)]
    alike = tasks[0] == tasks[1] or np.isnan(tasks).all()
    return np.array([alike or FINAL.get(name, ("", 0.0))[1] == 0 for name in metrics])


def gaps(numbers: Mapping[Run, Numbers], metrics: Sequence[str]) -> dict[str, dict[int, np.ndarray]]:
    """Other method -> seed -> slca less it in each of `metrics`; NaN where one of the two has none or met other tasks."""
    out: dict[str, dict[int, np.ndarray]] = {name: {} for name, _ in numbers if name != AGAINST}
    for (other, seed), theirs in numbers.items():
        if other != AGAINST and (own := numbers.get((AGAINST, seed))):
            gap = np.array([own.get(m, np.nan) - theirs.get(m, np.nan) for m in metrics])
            out[other][seed] = np.where(_same_tasks(own, theirs, metrics), gap, np.nan)
    return out


def _table(rows: Mapping[tuple[str, str], Mapping[int, np.ndarray]]) -> str:
    """(condition, other method) -> seed -> differences in PAIRED; a row without a pair is left out."""
    lines = [f"| condition | {AGAINST} less | pairs | {' | '.join(PAIRED)} |", "|" + "---|" * (len(PAIRED) + 3)]
    for (condition, other), by_seed in rows.items():
        if by_seed:
            cells = " | ".join(_paired(column) for column in np.array(list(by_seed.values())).T)
            lines.append(f"| {condition} | {other} | {len(by_seed)} | {cells} |")
    return "\n".join(lines)


def _paired(differences: np.ndarray) -> str:
    """One cell: their mean with its interval, and p by sign flips."""
    known = differences[np.isfinite(differences)]
    if not known.size:
        return "none"
    found, (_, p) = mean_interval(list(known)), paired_permutation(known, np.zeros_like(known))
    cell = _cell(found, signed=True)
    apart = found.n > 1 and (found.low > 0 or found.high < 0)
    return f"{f'**{cell}**' if apart else cell}, p = {p:.3f}"


def _cell(found: Any, signed: bool = False) -> str:
    mean, half = f"{found.mean:+.3f}" if signed else f"{found.mean:.3f}", found.mean - found.low
    return mean if found.n < 2 or not (signed or half) else f"{mean} ± {half:.3f}"


def draw(plt: Any, figures: Path, condition: str, curves: Mapping[Run, Mapping[str, Any]]) -> None:
    """Learning curves of the training rollouts, mean and interval over seeds: Success@0.9 and the summary score. plt: matplotlib's."""
    figure, axes = plt.subplots(1, len(CURVES), figsize=(5.2 * len(CURVES), 3.6), constrained_layout=True)
    for axis, metric in zip(axes, CURVES):
        for k, name in enumerate(dict.fromkeys(algorithm for algorithm, _ in curves)):
            own = [np.array(found[metric], float) for (n, _), found in curves.items() if n == name and metric in found]
            if not own:  # no run of this method has it
                continue
            line = over_seeds(name, [(x, y) for x, y in own])
            axis.plot(line.x, line.y, label=line.name, color=f"C{k}", linestyle=STYLES[k % len(STYLES)])
            if line.low is not None and line.high is not None:
                axis.fill_between(line.x, line.low, line.high, color=f"C{k}", alpha=0.12, linewidth=0)
        axis.set(title=metric.rpartition("/")[2], xlabel="RL step")
    axes[0].legend(fontsize=7)
    figure.suptitle(f"{condition}: training rollouts, means of {WINDOW} steps, 95 % interval over seeds", fontsize=9)
    figures.mkdir(exist_ok=True)
    figure.savefig(figures / f"science_{file_name(condition)}.svg", metadata={"Date": None})
    plt.close(figure)


def file_name(condition: str) -> str:
    """The condition as part of a path: of its runs' folder and of its figure."""
    return condition.replace(", ", "_").replace(" ", "-").replace("/", "")


def smooth(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means over consecutive windows of WINDOW steps."""
    n = len(x) // WINDOW * WINDOW
    return x[:n].reshape(-1, WINDOW)[:, -1], np.nanmean(y[:n].reshape(-1, WINDOW), 1)
