"""KL in the reward: each segment pays for its own tokens' divergence from the reference, before anything is normalised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from slca.types import ABSENT, SUMMARY, TOOL, Rollouts

# Whose tokens each channel pays for. Verdicts that are read as such (solved, overlong, peer, action counts) pay nothing.
PAYS = {
    "tool": (TOOL,), "plan": (TOOL,), "summary": (SUMMARY,), "total": (TOOL, SUMMARY), "success": (TOOL, SUMMARY),
    "layered": (TOOL, SUMMARY),
}  # fmt: skip


def charge(rollouts: Rollouts, kl: Float[np.ndarray, "N S"], coefficient: float) -> Rollouts:
    """The same rollouts with coefficient * (sum of kl over the tokens a channel speaks of) taken off its rewards.

    kl: per-token estimates summed over each segment, nats. Under SLCA the tool channel pays for tool tokens alone and the
    summary channel for summary tokens alone, so the charge keeps the lock. Per-segment channels pay segment by segment.
    """
    cost = coefficient * np.where(rollouts.kind == ABSENT, 0.0, kl)
    rewards = dict(rollouts.rewards)
    for name, kinds in PAYS.items():
        if name in rewards:
            rewards[name] = rewards[name] - np.where(np.isin(rollouts.kind, kinds), cost, 0.0).sum(1)
    for name in ("segment", "final"):
        if name in rewards:
            rewards[name] = rewards[name] - cost
    return replace(rollouts, rewards=rewards)
