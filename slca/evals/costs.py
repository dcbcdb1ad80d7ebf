"""What the simulated world was asked for, by what came of it: calls, tokens and declared prices for each solved rollout."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slca.types import Episode


def costs(episodes: Sequence[Episode], solved: float) -> dict[str, tuple[float, float]]:
    """Pairs over the rollouts of a step, the unsolved ones' costs included: (spent by all, rollouts that solved their task).

    cost/calls_per_solved: tool calls answered; cost/tokens_per_solved: tokens read and written by the simulator's model, calls
    served from a cache being free; cost/declared_per_solved: prices that the tools' specs declare (key `cost`, any unit).
    Without a solved rollout the weight is 0: not measured, rather than free.
    """
    answers = [answer for episode in episodes for turn in episode.observations for answer in turn]

    def spent(*names: str) -> tuple[float, float]:
        return math.fsum(answer.cost.get(name, 0.0) for answer in answers for name in names), solved

    return {
        "cost/calls_per_solved": (float(len(answers)), solved),
        "cost/tokens_per_solved": spent("tokens", "prompt_tokens"),
        "cost/declared_per_solved": spent("declared"),
    }
