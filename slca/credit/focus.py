"""Focus: which tokens inside a segment carry its credit. Non-negative multipliers, so a focus never flips a sign.

A focus reads per-token arrays of one batch that learn/probe.py measured (`aux`, all [B, T] unless said otherwise) and the
mask of trained tokens, and returns [B, T] with 1 wherever it has no say (here B are rollouts and T response tokens):

    advantage = spread(credit) * focus
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

# What each probe of slca.probes gives: aux arrays, and the channel `peer`
PROVIDES = {
    "peer": ("peer", "teacher_kl", "reference"),
    "gold": ("teacher_kl", "entropy", "gap", "surprisal", "sign"),
    "saliency": ("importance",),
    "ablation": ("importance",),
}


@dataclass(frozen=True)
class Focus:
    """A function (aux, mask [B, T]) -> [B, T], the aux arrays it reads and the probe of slca.probes that measures them.

    whole_batch: it compares tokens of different rollouts, so that the focus of a part of the batch is not a part of its focus.
    """

    function: Callable[[Mapping[str, np.ndarray], np.ndarray], np.ndarray]
    aux: tuple[str, ...]
    probe: str
    whole_batch: bool = False

    def __call__(self, aux: Mapping[str, np.ndarray], mask: Bool[np.ndarray, "B T"]) -> Float[np.ndarray, "B T"]:
        for name in self.aux:
            if name not in aux:
                raise KeyError(f"aux array {name!r} is missing; the probe gave {', '.join(sorted(aux)) or 'none'}")
        mask = np.asarray(mask, bool)
        return np.where(mask, self.function(aux, mask), 1.0)


# SC-GRPO (2606.18810)


def saturation(
    kl: Float[np.ndarray, "B T"], mask: Bool[np.ndarray, "B T"], quantile: float = 0.75, c_min: float = 1e-4
) -> Float[np.ndarray, "B T"]:
    """f = D / (D + c) with c = max(the quantile of D over active tokens, c_min), in [0, 1); 0 off the mask.

    The published c is taken per micro-batch; here over whatever batch is passed, and that choice changes results.
    A KL below 0 is rounding (teacher and student agree, the sum is taken in float32) and counts as 0.
    """
    d = np.where(mask, np.maximum(np.asarray(kl, np.float64), 0.0), 0.0)
    c = max(float(np.quantile(d[mask], quantile)), c_min) if mask.any() else c_min
    return d / (d + c)


def self_conditioned(quantile: float = 0.75, c_min: float = 1e-4) -> Focus:
    """`saturation` of the full-vocabulary KL(teacher || student); 1 on rows without a reference (aux `reference` [B] < 0).

    Rows without a reference do not enter the quantile either.
    """

    def function(aux, mask):
        routed = np.asarray(aux["reference"])[:, None] >= 0
        return np.where(routed, saturation(aux["teacher_kl"], mask & routed, quantile, c_min), 1.0)

    return Focus(function, ("teacher_kl", "reference"), "peer", whole_batch=True)


def references(group: Int[np.ndarray, "N"], correct: Float[np.ndarray, "N"], seed: int) -> Int[np.ndarray, "N"]:
    """Whose rollout conditions the teacher of each rollout; -1 = none (plain GRPO for this rollout).

    2 <= n < G correct: one of the correct ones, never the rollout itself. n = 0: one failed rollout for all the others,
    itself -1 (its own score is undefined in the paper). n = 1 or n = G: none. NaN `correct` = unscored: never a reference.
    """
    group, out = np.asarray(group), np.full(len(group), -1)
    for g in np.unique(group):
        rows = np.flatnonzero((group == g) & np.isfinite(correct))
        right = rows[np.asarray(correct)[rows] > 0]
        random = np.random.default_rng([seed, int(g)])
        if len(right) == 0 and len(rows) > 1:
            chosen = int(random.choice(rows))
            out[rows[rows != chosen]] = chosen
        elif 2 <= len(right) < len(rows):
            for row in rows:
                out[row] = int(random.choice(right[right != row]))
    return out


def peer_scores(focus: Sequence[Float[np.ndarray, "_"]], reference: Int[np.ndarray, "N"]) -> Float[np.ndarray, "N"]:
    """s_i = mean focus over the first min(len_i, len_reference) trained tokens of rollout i; NaN without a reference.

    `focus` holds one 1-D array of trained tokens a rollout. The channel `peer` of `self_conditioned`.
    """
    out = np.full(len(focus), np.nan)
    for i, j in enumerate(reference):
        n = min(len(focus[i]), len(focus[j])) if j >= 0 else 0
        if n:
            out[i] = float(np.mean(focus[i][:n]))
    return out


# GEAR (2605.11853); no formula is public, so the rule below is inferred from the abstract


def anchored(
    divergence: Float[np.ndarray, "B T"],
    entropy: Float[np.ndarray, "B T"],
    mask: Bool[np.ndarray, "B T"],
    delta: float = 0.5,
    high: float = 0.8,
) -> Float[np.ndarray, "B T"]:
    """Divergence, held from a spike (>= delta) until the next token of entropy >= `high` or the end of the run of mask."""
    out = np.array(divergence, np.float64)
    held = np.full(len(out), np.nan)
    for t in range(out.shape[1]):
        held = np.where(mask[:, t] & ~(entropy[:, t] >= high), held, np.nan)
        held = np.where(np.isnan(held) & mask[:, t] & (out[:, t] >= delta), out[:, t], held)
        out[:, t] = np.where(np.isnan(held), out[:, t], held)
    return out


def gear(delta: float = 0.5, high: float = 0.8, c: float = 0.1) -> Focus:
    """w = f(d) / mean f(d) with f(d) = d / (d + c) and d the anchored divergence; mean 1 over a row's trained tokens."""

    def function(aux, mask):
        d = anchored(np.maximum(aux["teacher_kl"], 0.0), aux["entropy"], mask, delta, high)
        f = np.where(mask, d / (d + c), 0.0)
        mean = f.sum(1, keepdims=True) / np.maximum(mask.sum(1, keepdims=True), 1)
        return np.where(mean > 0, f / np.where(mean > 0, mean, 1.0), 1.0)

    return Focus(function, ("teacher_kl", "entropy"), "gold")


# OAR (2601.07408)


def reshape(
    importance: Float[np.ndarray, "n"], quantile: float = 0.25, beta: float = 1.0, floor: float = 0.1, rescale: bool = True
) -> Float[np.ndarray, "n"]:
    """Importances of one rollout's reasoning tokens -> multipliers, as in the official code.

    s = log1p(importance), min-max to [0, 1], q its quantile. Below q: max(s / q, floor); from q on: 1 + beta (s - q) / (1 - q).
    `rescale` makes them sum to the number of tokens. Equal importances give 1 everywhere.
    """
    s = np.log1p(np.asarray(importance, np.float64))
    if not s.size or s.max() - s.min() <= 0:
        return np.ones_like(s)
    s = (s - s.min()) / (s.max() - s.min())
    q = float(np.quantile(s, quantile))
    low = np.maximum(s / q, floor) if q > 0 else np.ones_like(s)
    high = 1 + beta * (s - q) / (1 - q) if q < 1 else np.ones_like(s)
    weight = np.where(s < q, low, high)
    return weight * (len(s) / weight.sum()) if rescale else weight


def oar(probe: str, quantile: float = 0.25, beta: float = 1.0) -> Focus:
    """`reshape` row by row over the tokens whose `importance` is known; NaN marks the answer span, which keeps 1.

    probe: `saliency` (OAR-G) or `ablation` (OAR-P).
    """

    def function(aux, mask):
        out = np.ones(mask.shape)
        for row, importance in enumerate(np.asarray(aux["importance"], np.float64)):
            at = np.flatnonzero(mask[row] & ~np.isnan(importance))
            out[row, at] = reshape(importance[at], quantile, beta)
        return out

    return Focus(function, ("importance",), probe)


# CREST, "Teach the Magnitude, Not the Direction"


def crest(strength: float = 0.3, low: float = 0.72, high: float = 1.28) -> Focus:
    """phi = 1 + clip(strength [sA > 0] m, 0, strength) (w - 1), w = clip(exp(sA), low, high), sA = sign(A) * gap.

    aux: `gap` teacher minus student log-prob over the temperature, `sign` of the credit, `surprisal` z-scored over the row's
    trained tokens into m = 1 + (sigmoid(z) - 1/2).
    """

    def function(aux, mask):
        agree = np.where(mask, np.sign(aux["sign"]) * np.asarray(aux["gap"], np.float64), 0.0)
        surprisal = np.where(mask, np.asarray(aux["surprisal"], np.float64), 0.0)
        n = np.maximum(mask.sum(1, keepdims=True), 1)
        centred = np.where(mask, surprisal - surprisal.sum(1, keepdims=True) / n, 0.0)
        z = centred / (np.sqrt((centred**2).sum(1, keepdims=True) / n) + 1e-8)
        m = 0.5 + 1 / (1 + np.exp(-z))
        gain = np.clip(strength * (agree > 0) * m, 0.0, strength)
        return 1 + gain * (np.clip(np.exp(np.clip(agree, -20, 20)), low, high) - 1)

    return Focus(function, ("gap", "sign", "surprisal"), "gold")
