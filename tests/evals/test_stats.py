"""Values from tables and closed forms."""

import math

import numpy as np
import pytest

from slca.evals.stats import mean_interval, paired_permutation, pass_at_k, pass_hat_k, wilson


def test_mean_interval_three_seeds():
    # mean 2, sample sd 1, t(0.975, 2) = 4.30265
    mean, low, high, n = mean_interval([1.0, 2.0, 3.0])
    assert (mean, n) == (2.0, 3)
    assert high - 2 == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5) and low == pytest.approx(4 - high)


def test_mean_interval_of_one_run_has_no_bounds():
    mean, low, high, n = mean_interval([0.7])
    assert mean == 0.7 and math.isnan(low) and math.isnan(high) and n == 1
    with pytest.raises(ValueError, match="no values"):
        mean_interval([])


def test_wilson_against_published_values():
    # 8 of 10 at 95 %: [0.4902, 0.9433]; 0 of 10: upper z^2 / (n + z^2) = 3.8415 / 13.8415
    assert wilson(8, 10)[:3] == pytest.approx((0.8, 0.49016, 0.94331), abs=1e-4)
    assert wilson(0, 10)[:3] == pytest.approx((0.0, 0.0, 3.841459 / 13.841459), abs=1e-6)
    assert wilson(0, 0)[1:] == (0.0, 1.0, 0)
    with pytest.raises(ValueError, match="11 successes of 10"):
        wilson(11, 10)


def test_pass_hat_k():
    assert [pass_hat_k(3, 4, k) for k in (1, 2, 3, 4)] == [0.75, 0.5, 0.25, 0.0]
    assert pass_hat_k(4, 4, 4) == 1.0 and pass_hat_k(0, 4, 1) == 0.0
    for bad in ((1, 4, 5), (1, 4, 0), (5, 4, 1)):
        with pytest.raises(ValueError, match="pass_hat_k"):
            pass_hat_k(*bad)


def test_paired_permutation_exact():
    # All of 5 pairs better by 1: only the observed flip and its mirror are as extreme, 2 / 32.
    mean, p = paired_permutation([2, 3, 4, 5, 6], [1, 2, 3, 4, 5])
    assert (mean, p) == (1.0, 2 / 32)
    assert paired_permutation([1, 2], [1, 2]) == (0.0, 1.0)
    assert paired_permutation([1.0, math.nan, 3.0], [0.0, 0.0, 2.0]) == (1.0, 0.5)


def test_paired_permutation_sampled():
    rng = np.random.default_rng(0)
    a = rng.normal(size=200)
    assert paired_permutation(a, a + rng.normal(size=200))[1] > 0.01
    assert paired_permutation(a + 1, a + rng.normal(size=200))[1] == pytest.approx(1 / 10_001)
    with pytest.raises(ValueError, match="shapes"):
        paired_permutation([1.0], [1.0, 2.0])


def test_pass_at_k_is_the_chance_that_one_of_k_succeeds():
    assert pass_at_k(1, 4, 1) == 0.25 and pass_at_k(1, 4, 4) == 1.0 and pass_at_k(0, 4, 4) == 0.0
    assert pass_at_k(2, 4, 2) == pytest.approx(1 - 1 / 6)  # of the six pairs one holds neither success
    with pytest.raises(ValueError):
        pass_at_k(1, 4, 5)
