"""Intervals and tests for scores: means over seeds, success rates, pass^k, paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Interval(NamedTuple):
    """An estimate with its confidence bounds, in the units of the score."""

    mean: float
    low: float
    high: float
    n: int


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean and Student-t interval over independent runs (seeds). One run has no interval: its bounds are NaN."""
    from scipy import stats

    x = np.asarray(values, np.float64)
    if not x.size:
        raise ValueError("mean_interval: no values")
    mean = float(x.mean())
    if x.size == 1:
        return Interval(mean, math.nan, math.nan, 1)
    half = float(stats.t.ppf(0.5 + confidence / 2, x.size - 1) * x.std(ddof=1) / math.sqrt(x.size))
    return Interval(mean, mean - half, mean + half, x.size)


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Wilson score interval of a success rate (Wilson, 1927): right near 0 and 1 and for small n. n = 0 knows nothing: [0, 1]."""
    from scipy import stats

    if not 0 <= successes <= n:
        raise ValueError(f"wilson: {successes} successes of {n} trials")
    if n == 0:
        return Interval(math.nan, 0.0, 1.0, 0)
    z = float(stats.norm.ppf(0.5 + confidence / 2))
    p = successes / n
    center = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(p, max(0.0, center - half), min(1.0, center + half), n)


def pass_hat_k(successes: int, trials: int, k: int) -> float:
    """pass^k: the chance that k fresh trials of a task all succeed, estimated without bias by C(c, k) / C(n, k) (tau-bench).

    Raises ValueError unless 1 <= k <= trials and 0 <= successes <= trials.
    """
    if not (1 <= k <= trials and 0 <= successes <= trials):
        raise ValueError(f"pass_hat_k: k={k} with {successes} successes of {trials} trials")
    return math.comb(successes, k) / math.comb(trials, k)


def pass_at_k(successes: int, trials: int, k: int) -> float:
    """pass@k: the chance that one of k fresh trials of a task succeeds, without bias: 1 - C(n - c, k) / C(n, k) (Codex paper).

    Raises ValueError unless 1 <= k <= trials and 0 <= successes <= trials.
    """
    return 1.0 - pass_hat_k(trials - successes, trials, k)


def paired_permutation(a: Sequence[float], b: Sequence[float], *, draws: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """Mean of a - b over pairs (same tasks or seeds) and its two-sided p-value under random sign flips.

    Exact (all 2^n flips) up to 12 pairs; beyond, `draws` random flips with the observed one counted in, so p is never 0.
    Pairs with a NaN on either side are left out: unscored is not zero.
    """
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"paired_permutation: shapes {x.shape} and {y.shape} are not two equal lists")
    difference = (x - y)[~np.isnan(x - y)]
    n = difference.size
    if n == 0:
        raise ValueError("paired_permutation: no pair with two scores")
    exact = n <= 12
    if exact:
        signs = 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    else:
        signs = np.random.default_rng(seed).choice((-1.0, 1.0), size=(draws, n))
    observed = abs(difference.sum())
    extreme = int((np.abs(signs @ difference) >= observed - 1e-12 * max(1.0, observed)).sum())
    p = extreme / 2**n if exact else (extreme + 1) / (draws + 1)
    return float(difference.mean()), p
