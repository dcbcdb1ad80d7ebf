"""Dynamic sampling (DAPO, 2503.14476) on credit: groups in which no channel of the method varies get new rollouts.

A group is kept as soon as one of its members has credit: under SLCA that is, when either channel varies, where a filter on the
total would drop groups whose rewards cancel. The new rollouts answer fresh prompts, as published, or the same ones once more
(`rollout.resample_fresh`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from slca.learn.batch import dead_groups
from slca.types import ABSENT, Episode, Rollouts

Attempt = Callable[[list[int], int], tuple[list[Episode], Rollouts]]  # (groups, round) -> their new episodes, rewarded
CreditOf = Callable[[Rollouts], Float[np.ndarray, "N S"]]


def resample(
    episodes: list[Episode], rollouts: Rollouts, attempt: Attempt, credit_of: CreditOf, rounds: int
) -> tuple[list[Episode], Rollouts, dict[str, float]]:
    """Up to `rounds` new attempts at every group without credit; a group that stays without keeps its first rollouts.

    Returns the episodes in their order with the groups that came alive replaced, their rollouts, and counts: groups tried, groups
    recovered, rounds used, groups still dead.
    """
    dead = dead_groups(episodes, credit_of(rollouts))
    counts = {"tried": float(len(dead)), "recovered": 0.0, "rounds": 0.0}
    for number in range(1, rounds + 1):
        if not dead:
            break
        new, scored = attempt(sorted(dead), number)
        alive = dead - dead_groups(new, credit_of(scored))
        counts["rounds"] += 1
        counts["recovered"] += len(alive)
        episodes, rollouts = _replaced(episodes, rollouts, new, scored, alive)
        dead -= alive
    return episodes, rollouts, counts | {"dead": float(len(dead))}


def _replaced(
    episodes: Sequence[Episode], rollouts: Rollouts, new: Sequence[Episode], scored: Rollouts, groups: frozenset[int]
) -> tuple[list[Episode], Rollouts]:
    """`groups` from the new rows, everything else as it was. Labels only compare inside a group, so they need no renumbering."""
    waiting = {g: [n for n, e in enumerate(new) if e.group == g] for g in groups}
    rows = [len(episodes) + waiting[e.group].pop(0) if e.group in groups else n for n, e in enumerate(episodes)]
    both = [*episodes, *new]
    return [both[n] for n in rows], _taken(rollouts, scored, np.asarray(rows))


def _taken(a: Rollouts, b: Rollouts, rows: np.ndarray) -> Rollouts:
    """Rows of the two one after the other, segments padded to the wider."""
    width = max(a.kind.shape[1], b.kind.shape[1])

    def joined(x: np.ndarray, y: np.ndarray, empty: float) -> np.ndarray:
        if x.ndim == 2:
            x, y = (np.pad(z, ((0, 0), (0, width - z.shape[1])), constant_values=empty) for z in (x, y))
        return np.concatenate([x, y])[rows]

    def emptiness(x: np.ndarray) -> float:
        return -1 if np.issubdtype(x.dtype, np.integer) else 0.0

    def channel(name: str) -> np.ndarray:  # scores are missing where nothing was scored
        x, y = (r.rewards.get(name, np.full(len(r.group), np.nan)) for r in (a, b))
        return joined(x, y, np.nan)

    return replace(
        a,
        group=joined(a.group, b.group, 0),
        kind=joined(a.kind, b.kind, ABSENT),
        rewards={name: channel(name) for name in dict.fromkeys([*a.rewards, *b.rewards])},
        labels={name: joined(x, b.labels[name], emptiness(x)) for name, x in a.labels.items()},
        tokens=None if a.tokens is None or b.tokens is None else joined(a.tokens, b.tokens, 0),
    )
