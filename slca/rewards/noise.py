"""A worse judge, made on purpose: seeded noise on the training summary reward (to see at which noise routing pays).

What a policy loses by GRPO's shared advantage grows with sigma_S / sigma_T and with the correlation of the two rewards inside
a group (algorithms-core 8.2, 8.10). Evaluation never sees this noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from slca.credit.diagnostics import replace_summary
from slca.types import Rollouts

STREAM = 0x6A756467  # keeps these draws apart from others that start from the same seed


def disturb(
    rollouts: Rollouts, ratio: float, rho: float = 0.0, *, seed: Sequence[int], summary_weight: float = 1.0
) -> Rollouts:
    """The same rollouts graded by a judge that adds ratio * (rho * t + sqrt(1 - rho^2) * sigma_T * e) to each summary reward.

    t: the rollout's tool reward less its group's mean; sigma_T: the tool reward's standard deviation inside groups, pooled over
    the batch; e: a standard normal draw seeded by `seed` (run seed, step) and the row. So the noise has standard deviation
    ratio * sigma_T and correlation rho with the tool reward inside groups. Rows without a summary score keep none; a batch whose
    tool reward has no spread gets no noise.
    """
    tool, summary = rollouts.rewards["tool"], rollouts.rewards["summary"]
    centred, sigma = _within(tool, rollouts.group)
    draws = np.random.default_rng([STREAM, *map(int, seed)]).standard_normal(len(tool))
    noise = ratio * (rho * centred + np.sqrt(1.0 - rho * rho) * sigma * draws)
    return replace_summary(rollouts, summary + noise, summary_weight)


def _within(x: Float[np.ndarray, "N"], group: Int[np.ndarray, "N"]) -> tuple[Float[np.ndarray, "N"], float]:
    """(x less its group's mean, 0 where unscored; the pooled standard deviation inside groups)."""
    centred, freedom = np.zeros(len(x)), 0
    for g in np.unique(group):
        rows = np.flatnonzero((group == g) & np.isfinite(x))
        if len(rows) > 1:
            centred[rows] = x[rows] - x[rows].mean()
            freedom += len(rows) - 1
    return centred, float(np.sqrt((centred**2).sum() / max(freedom, 1)))
