"""Noise on the summary reward: its size, its correlation with the tool reward, and what it leaves alone."""

import numpy as np
import pytest

from slca.credit.algorithms import algorithm
from slca.rewards.noise import disturb
from slca.types import SUMMARY, TOOL, Rollouts


def batch(prompts=400, group=8, seed=0):
    random = np.random.default_rng(seed)
    n = prompts * group
    tool = random.normal(0.5, 0.2, n) + np.repeat(
        random.normal(0, 3, prompts), group
    )  # groups differ; only the spread inside counts
    summary = np.full(n, 0.5)
    kind = np.tile([TOOL, SUMMARY], (n, 1))
    rewards = {"tool": tool, "summary": summary, "total": tool + summary}
    return Rollouts(np.repeat(np.arange(prompts), group), kind, rewards, {}, np.ones((n, 2), np.int64))


@pytest.mark.parametrize("ratio", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.5])
def test_ratio_and_correlation_inside_groups(ratio, rho):
    before = batch()
    after = disturb(before, ratio, rho, seed=(1, 2))
    shape = (400, 8)
    tool, summary = (after.rewards[name].reshape(shape) for name in ("tool", "summary"))
    tool, summary = tool - tool.mean(1, keepdims=True), summary - summary.mean(1, keepdims=True)
    assert np.sqrt((summary**2).sum() / (tool**2).sum()) == pytest.approx(ratio, rel=0.05)
    assert (tool * summary).sum() / np.sqrt((tool**2).sum() * (summary**2).sum()) == pytest.approx(rho, abs=0.05)
    np.testing.assert_array_equal(after.rewards["tool"], before.rewards["tool"])
    np.testing.assert_allclose(after.rewards["total"], after.rewards["tool"] + after.rewards["summary"])


def test_the_same_seed_and_step_repeat_and_others_do_not():
    rollouts = batch(4)
    one, same, other = (disturb(rollouts, 1.0, seed=seed).rewards["summary"] for seed in ((0, 5), (0, 5), (0, 6)))
    np.testing.assert_array_equal(one, same)
    assert not np.isclose(one, other).any()


def test_unscored_rows_stay_unscored_and_a_flat_tool_reward_gets_no_noise():
    rollouts = batch(2)
    for name in ("tool", "summary", "total"):
        rollouts.rewards[name][3] = np.nan
    assert np.flatnonzero(np.isnan(disturb(rollouts, 1.0, seed=(0, 0)).rewards["summary"])).tolist() == [3]
    flat = batch(2)
    flat.rewards["tool"] = np.repeat([0.25, 0.75], 8)
    np.testing.assert_array_equal(disturb(flat, 3.0, seed=(0, 0)).rewards["summary"], flat.rewards["summary"])


def test_tool_credit_of_slca_does_not_move():
    rollouts = batch(4)
    noisy = disturb(rollouts, 3.0, 0.5, seed=(0, 0))
    slca, grpo = algorithm("slca").credit, algorithm("grpo").credit
    np.testing.assert_array_equal(slca(rollouts)[:, 0], slca(noisy)[:, 0])
    assert np.abs(grpo(rollouts)[:, 0] - grpo(noisy)[:, 0]).max() > 0.1
