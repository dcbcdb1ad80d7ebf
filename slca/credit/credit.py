"""Credit: reward channels of a batch of rollouts -> one number a segment, [N, S].

Every estimator of the literature is the same three moves: pick a channel, standardise it inside a comparison set, send it
to a set of segments. `compare` is the second move; slca.credit.estimators builds the first and the third. All of it is host
NumPy in float64 and two-pass: scores are few, and rounding noise in a nearly constant group must not become an advantage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from slca.types import ABSENT, SUMMARY, TOOL, Rollouts

NORMS = ("zscore", "center", "rloo", "batch_std")
PRESENCE = ("exclude", "floor", "none")

# A group's spread below this share of its mean is rounding, whatever the floor.
ROUNDING = 1e-12


def compare(
    x: Float[np.ndarray, "..."],
    key: Int[np.ndarray, "..."],
    present: Bool[np.ndarray, "..."],
    norm: str = "zscore",
    ddof: int = 1,
    eps: float = 1e-6,
    std_floor: float = 1e-4,
) -> Float[np.ndarray, "..."]:
    """Each value against the others that share its key; float64, the shape of `x`.

    Members that are absent or not finite (NaN = unscored) leave the statistics and get 0. Fewer than two members, or a
    standard deviation not above `std_floor`: exactly 0 for all of them.

    norm: zscore (x - mean) / (std + eps), GRPO; center x - mean, Dr. GRPO; rloo x - mean of the others (leave one out);
    batch_std centred in the group, divided by the standard deviation of all compared values (Lite PPO, 2508.08221).

    Raises ValueError for an unknown norm.
    """
    if norm not in NORMS:
        raise ValueError(f"credit.norm: {norm!r} is not one of {', '.join(NORMS)}")
    x = np.asarray(x, np.float64)
    member = np.broadcast_to(np.asarray(present, bool), x.shape).ravel() & np.isfinite(x).ravel()
    out = np.zeros(x.size)
    at = np.flatnonzero(member)
    if at.size:
        value = x.ravel()[at]
        _, group = np.unique(np.broadcast_to(key, x.shape).ravel()[at], return_inverse=True)
        n = np.bincount(group)[group]
        mean = np.bincount(group, value)[group] / n
        centred = value - mean
        std = np.sqrt(np.bincount(group, centred**2)[group] / np.maximum(n - ddof, 1))
        varies = (n > 1) & (std > np.maximum(std_floor, ROUNDING * np.abs(mean)))
        if norm == "zscore":
            scaled = np.divide(centred, std + eps, out=np.zeros_like(centred), where=varies)
        elif norm == "rloo":
            scaled = centred * (n / np.maximum(n - 1, 1))
        elif norm == "batch_std":
            pool = value[n > 1]
            spread = pool.std(ddof=ddof) if pool.size > ddof else 0.0
            scaled = np.divide(centred, spread + eps, out=np.zeros_like(centred), where=varies)
        else:
            scaled = centred
        out[at] = np.where(varies, scaled, 0.0)
    return out.reshape(x.shape)


@dataclass(frozen=True)
class Options:
    """The part of `config.credit` that the arithmetic reads; the field remarks are in configs/default.py."""

    norm: str = "zscore"
    ddof: int = 1
    eps: float = 1e-6
    std_floor: float = 1e-4
    presence: str = "exclude"
    tool_weight: float = 1.0
    summary_weight: float = 1.0

    def __post_init__(self):
        for name, allowed in (("norm", NORMS), ("presence", PRESENCE)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"credit.{name}: {getattr(self, name)!r} is not one of {', '.join(allowed)}")

    @classmethod
    def of(cls, config: Any) -> Options:
        """From `config.credit`; other fields of the section are not read."""
        return cls(**{f.name: config[f.name] for f in fields(cls)})

    def weight(self, kind: int) -> float:
        return {TOOL: self.tool_weight, SUMMARY: self.summary_weight}[kind]

    def compare(
        self,
        x: Float[np.ndarray, "..."],
        key: Int[np.ndarray, "..."],
        present: Bool[np.ndarray, "..."],
        norm: str | None = None,
    ) -> Float[np.ndarray, "..."]:
        """`compare` with these options; a record that pins its norm passes it."""
        return compare(x, key, present, norm or self.norm, self.ddof, self.eps, self.std_floor)


DEFAULTS = Options()


ALL_OPTIONS = tuple(f.name for f in fields(Options))


@dataclass(frozen=True)
class Credit:
    """A function (rollouts, options) -> float64 [N, S], with the names of the channels and labels it reads.

    options: the fields of `Options` it reads, all of them unless said. whole_batch: it compares rollouts of different groups, so that
    the credit of a part of the batch is not a part of its credit.
    """

    function: Callable[[Rollouts, Options], Float[np.ndarray, "N S"]]
    channels: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    options: tuple[str, ...] = ALL_OPTIONS
    whole_batch: bool = False

    def __call__(self, rollouts: Rollouts, options: Options = DEFAULTS) -> Float[np.ndarray, "N S"]:
        return self.function(rollouts, options)


# Reading rollouts


def channel(rollouts: Rollouts, name: str) -> Float[np.ndarray, "..."]:
    """A channel as float64, [N] or [N, S]. Raises KeyError naming the channels there are."""
    if name not in rollouts.rewards:
        raise KeyError(f"reward channel {name!r} is missing; these rollouts have {', '.join(sorted(rollouts.rewards))}")
    return np.asarray(rollouts.rewards[name], np.float64)


def label(rollouts: Rollouts, name: str) -> np.ndarray:
    """A label array. Raises KeyError naming the labels there are."""
    if name not in rollouts.labels:
        raise KeyError(f"label {name!r} is missing; these rollouts have {', '.join(sorted(rollouts.labels)) or 'none'}")
    return np.asarray(rollouts.labels[name])


def scored(rollouts: Rollouts) -> Bool[np.ndarray, "N"]:
    """Rollouts with at least one finite score; the others were ended by the environment and get no credit at all."""
    found = np.zeros(len(rollouts.group), bool)
    for reward in rollouts.rewards.values():
        finite = np.isfinite(np.asarray(reward, np.float64))
        found |= finite if finite.ndim == 1 else finite.any(1)
    return found


def per_rollout(rollouts: Rollouts, name: str) -> Float[np.ndarray, "N"]:
    """A channel as one number a rollout: [N] as it is, [N, S] summed over the segments that exist; NaN if one is, or none exists."""
    x = channel(rollouts, name)
    if x.ndim == 1:
        return x
    absent = rollouts.kind == ABSENT
    return np.where(absent.all(1), np.nan, np.where(absent, 0.0, x).sum(1))
