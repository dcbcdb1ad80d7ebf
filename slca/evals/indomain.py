"""In-domain evaluation: roll out held-out tasks and report the paper's metrics (Name F1, ArgMatch, process, Success@0.9).

Rows the environment failed (`sim_failed`, `tool_timeout`, `dead`) are left out of every score and counted in `unscored`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from slca.evals.costs import costs
from slca.rewards.scores import scores
from slca.rollout.engine import rollout
from slca.types import END_REASONS, Episode, Task


def evaluate(
    params: Any, tasks: Sequence[Task], sampler: Any, template: Any, simulator: Any, config: Any, *, temperature: float, seed: int,
    trials: int = 1, progress: Callable[[int, int], None] | None = None,
) -> dict[str, tuple[float, int]]:  # fmt: skip
    """Metrics of `trials` episodes a task, each (mean, n); temperature 0 is greedy.

    The draws depend on (seed, task id, trial) alone, so two policies meet the same tasks with the same random numbers.
    """
    episodes = rollout(
        params,
        tasks,
        sampler,
        template,
        simulator,
        config,
        seed=seed,
        step=0,
        temperature=temperature,
        group=trials,
        progress=progress,
    )
    return summarize(episodes, config)


def summarize(episodes: Sequence[Episode], config: Any) -> dict[str, tuple[float, int]]:
    """Metrics of finished episodes, name -> (mean, n). A NaN score (no verdict) lowers n, not the mean (contract 7)."""
    rows = [scores(episode, config) for episode in episodes if episode.scored]
    table = {name: _mean([row[name] for row in rows]) for name in (rows[0] if rows else ())}
    spent = costs(episodes, math.fsum(row["solved"] for row in rows))
    table |= {name: (total / n if n else math.nan, int(n)) for name, (total, n) in spent.items()}
    table["unscored"] = _mean([float(not episode.scored) for episode in episodes])
    table |= {f"end/{reason}": _mean([float(episode.end == reason) for episode in episodes]) for reason in END_REASONS}
    return table


def _mean(values: Sequence[float]) -> tuple[float, int]:
    kept = [value for value in values if not math.isnan(value)]
    return (math.fsum(kept) / len(kept) if kept else math.nan), len(kept)
