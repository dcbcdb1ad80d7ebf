"""Rollouts for the credit tests: by hand, and random ones that provide every channel and label of the table."""

import numpy as np

from slca.types import ABSENT, SUMMARY, TOOL, Rollouts


def made(kind, group=None, labels=None, **rewards):
    """`kind` rows of segment kinds; one group unless said otherwise."""
    kind = np.asarray(kind)
    group = np.zeros(len(kind), int) if group is None else np.asarray(group)
    rewards = {name: np.asarray(values, float) for name, values in rewards.items()}
    return Rollouts(group, kind, rewards, {k: np.asarray(v) for k, v in (labels or {}).items()})


def pairs(n):
    """n rollouts of one tool segment and a summary."""
    return [[TOOL, SUMMARY]] * n


def anything(seed=0, groups=4, size=6, width=4):
    """Random rollouts with mixed group order, absent segments, an unscored rollout, and a rollout without a tool segment."""
    random = np.random.default_rng(seed)
    n = groups * size
    group = random.permutation(np.repeat(np.arange(groups), size))
    kind = np.full((n, width), ABSENT)
    for row in range(n):
        tools = random.integers(1, width)
        kind[row, :tools], kind[row, tools] = TOOL, SUMMARY
    kind[0] = [SUMMARY] + [ABSENT] * (width - 1)
    present = kind != ABSENT
    rewards = {
        name: random.uniform(size=n)
        for name in ("tool", "summary", "action", "action_share", "plan", "layered", "overlong", "peer")
    }
    rewards["total"] = rewards["tool"] + rewards["summary"]
    rewards["solved"] = random.integers(0, 2, n).astype(float)
    rewards["success"] = rewards["solved"] * (rewards["summary"] >= 0.5)
    rewards["segment"] = np.where(present, random.uniform(size=kind.shape), np.nan)
    rewards["final"] = np.where(present, 0.0, np.nan)
    rewards["final"][np.arange(n), present.sum(1) - 1] = rewards["total"]
    for values in rewards.values():
        values[1] = np.nan
    labels = {
        "role": np.where(present, random.integers(0, 4, kind.shape), -1),
        "state": np.where(present, random.integers(0, 3, kind.shape), -1),
        "cell": random.integers(0, 2, n),
        "step": np.where(present, random.uniform(0.5, 1.5, kind.shape), 0.0),
    }
    labels["role"][1] = labels["state"][1] = -1
    return Rollouts(group, kind, rewards, labels, np.where(present, random.integers(1, 20, kind.shape), 0))
