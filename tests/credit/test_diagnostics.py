"""Diagnostics: kappa, sign conflict and the interventional leak test, against closed forms."""

import numpy as np
import pytest

from slca.credit.algorithms import ALGORITHMS, algorithm
from slca.credit.credit import compare
from slca.credit.diagnostics import diagnose, leak, replace_summary
from slca.types import ABSENT, SUMMARY, TOOL
from tests.credit.rollouts import anything, made, pairs

CONFLICT = dict(tool=[0.9, 0.7, 0.5, 0.3], summary=[0, 0.25, 0.75, 1], total=[0.9, 0.95, 1.25, 1.3])


def mean(pair):
    return pair[0] / pair[1]


def test_full_conflict():
    rollouts = made(pairs(4), **CONFLICT)
    found = diagnose(rollouts, ALGORITHMS["slca"].credit(rollouts))
    np.testing.assert_allclose(mean(found["credit/kappa/tool"]), 1.26491, rtol=1e-5)
    np.testing.assert_allclose(mean(found["credit/kappa/summary"]), 2.23607, rtol=1e-5)
    assert mean(found["credit/correlation"]) < -0.95
    assert mean(found["credit/sign_conflict/grpo"]) == 1.0
    assert mean(found["credit/sign_conflict/method"]) == 0.0
    assert found["credit/presence/tool"] == (4.0, 4.0)


def test_the_contamination_algebra_is_exact():
    random = np.random.default_rng(0)
    t, s = random.normal(size=16), random.normal(size=16)
    found = diagnose(made(pairs(16), tool=t, summary=s, total=t + s))
    key, here = np.zeros(16, int), np.ones(16, bool)
    z = [compare(x, key, here, eps=0.0) for x in (t, s, t + s)]
    kappa_t, kappa_s = mean(found["credit/kappa/tool"]), mean(found["credit/kappa/summary"])
    np.testing.assert_allclose(z[2], kappa_t * z[0] + kappa_s * z[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("weights", [(1.0, 0.25), (0.5, 2.0), (1.0, 0.0), (0.0, 1.0)])
def test_kappa_is_the_weight_that_grpo_puts_on_each_score(weights):
    """z(w_T t + w_S s) = kappa_T z(t) + kappa_S z(s) for any weights of the reward; a channel of weight 0 has none."""
    t, s = np.array([0.9, 0.7, 0.5, 0.3]), np.array([0, 0.25, 0.75, 1.0])
    total = weights[0] * t + weights[1] * s
    found = diagnose(made(pairs(4), tool=t, summary=s, total=total), process_weight=weights[0], summary_weight=weights[1])
    sizes = [mean(found["credit/kappa/tool"]), mean(found["credit/kappa/summary"])]
    # by hand: sigma_T = sqrt(.2 / 3), sigma_S = sqrt(.625 / 3), sum of products of the deviations = -.35
    variance = (weights[0] ** 2 * 0.2 + weights[1] ** 2 * 0.625 - 2 * weights[0] * weights[1] * 0.35) / 3
    expected = np.array(weights) * np.sqrt([0.2 / 3, 0.625 / 3]) / np.sqrt(variance)
    np.testing.assert_allclose(sizes, expected, rtol=1e-12)
    z = [(x - x.mean()) / x.std(ddof=1) for x in (t, s, total)]
    np.testing.assert_allclose(z[2], sizes[0] * z[0] + sizes[1] * z[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("ratio, rho, expected", [(1, 0, 0.25), (3, 0, 0.398), (1, 0.5, 0.167)])
def test_sign_conflict_rate_of_gaussian_scores(ratio, rho, expected):
    """arccos(kappa_T + rho kappa_S) / pi; one large group stands for the population."""
    random = np.random.default_rng(1)
    t, noise = random.normal(size=(2, 100_000))
    s = ratio * (rho * t + np.sqrt(1 - rho**2) * noise)
    found = diagnose(made(pairs(100_000), tool=t, summary=s, total=t + s))
    assert mean(found["credit/sign_conflict/grpo"]) == pytest.approx(expected, abs=0.006)


def test_tokens_weigh_the_conflict():
    rollouts = made([[TOOL, SUMMARY]] * 3, tool=[1, 0, 0.6], summary=[0, 0, 9], total=[1, 0, 9.6])
    rollouts.tokens = np.array([[8, 1], [1, 1], [1, 1]])
    assert diagnose(rollouts)["credit/sign_conflict/grpo"] == (8.0, 10.0)


def test_groups_without_spread_are_counted_per_channel():
    rollouts = made(pairs(4), [0, 0, 1, 1], tool=[1, 0, 1, 1], summary=[0, 1, 0.5, 0.5], total=[1, 1, 1.5, 1.5])
    found = diagnose(rollouts)
    assert found["credit/zero_variance/tool"] == found["credit/zero_variance/summary"] == (1.0, 2.0)
    assert found["credit/zero_variance/total"] == (2.0, 2.0)  # a filter on the sum would drop a group SLCA learns from


def test_unscored_and_empty_batches_do_not_break_it():
    nothing = np.array([np.nan, np.nan])
    found = diagnose(made([[SUMMARY, ABSENT]] * 2, tool=nothing, summary=nothing, total=nothing))
    assert found["credit/kappa/tool"] == (0.0, 0.0) and found["credit/presence/tool"] == (0.0, 2.0)


@pytest.mark.parametrize("name", ["slca", "slca_floor", "slca_state", "rltr", "slca+llds", "slca+self_conditioned", "mix@0"])
def test_the_lock_holds_to_the_bit(name):
    for seed in range(5):
        assert leak(algorithm(name).credit, anything(seed), seed) == 0.0


@pytest.mark.parametrize(
    "name", ["grpo", "toolpo", "toolpo_slca_repo", "gdpo", "mix@0.1", "support_control", "tool_only_global", "gigpo"]
)
def test_the_others_leak(name):
    assert leak(algorithm(name).credit, anything(0), 0) > 0.01


def test_replace_summary_moves_every_channel_that_contains_it():
    rollouts = made(
        [[TOOL, SUMMARY]] * 2, tool=[1, 0], summary=[0.2, 0.8], total=[1.2, 0.8], solved=[1, 0], success=[0, 0],
        segment=[[1, 0.2], [0, 0.8]], final=[[0, 1.2], [0, 0.8]],
    )  # fmt: skip
    new = replace_summary(rollouts, np.array([0.9, np.nan]))
    np.testing.assert_allclose(new.rewards["total"], [1.9, np.nan])
    np.testing.assert_allclose(new.rewards["success"], [1, 0])
    np.testing.assert_allclose(new.rewards["segment"][0], [1, 0.9])
    np.testing.assert_allclose(new.rewards["final"][0], [0, 1.9])
    np.testing.assert_array_equal(new.rewards["tool"], rollouts.rewards["tool"])
    np.testing.assert_allclose(rollouts.rewards["total"], [1.2, 0.8])  # the input is not touched
