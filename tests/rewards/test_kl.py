"""The reference KL as a charge on each segment's own reward."""

import numpy as np

from slca.credit.algorithms import algorithm
from slca.rewards.kl import charge
from slca.types import ABSENT, SUMMARY, TOOL
from tests.credit.rollouts import anything, made

KL = np.array([[0.2, 0.4, 0.1], [0.3, 0.5, 9.0]])


def two():
    kind = [[TOOL, TOOL, SUMMARY], [TOOL, SUMMARY, ABSENT]]
    return made(kind, tool=[1, 0.5], summary=[1, 0], total=[2, 0.5], plan=[1, 1], solved=[1, 0], action=[2, 1],
                segment=[[1, 1, 1], [0.5, 0, np.nan]], final=[[0, 0, 2], [0, 0.5, np.nan]])  # fmt: skip


def test_each_channel_pays_for_its_own_tokens():
    found = charge(two(), KL, 0.5).rewards
    np.testing.assert_allclose(found["tool"], [1 - 0.3, 0.5 - 0.15])
    np.testing.assert_allclose(found["plan"], [1 - 0.3, 1 - 0.15])
    np.testing.assert_allclose(found["summary"], [1 - 0.05, -0.25])
    np.testing.assert_allclose(found["total"], [2 - 0.35, 0.5 - 0.4])
    np.testing.assert_allclose(found["segment"], [[0.9, 0.8, 0.95], [0.35, -0.25, np.nan]])
    np.testing.assert_allclose(found["final"], [[-0.1, -0.2, 1.95], [-0.15, 0.25, np.nan]])
    np.testing.assert_array_equal(found["solved"], [1, 0])
    np.testing.assert_array_equal(found["action"], [2, 1])
    np.testing.assert_array_equal(two().rewards["tool"], [1, 0.5])  # the input is not touched


def test_the_charge_keeps_the_lock_and_unscored_rollouts_unscored():
    rollouts = anything(0)
    kl = np.abs(np.random.default_rng(0).normal(size=rollouts.kind.shape))
    other = np.where(rollouts.kind == SUMMARY, kl * 7 + 1, kl)
    credit = algorithm("slca").credit
    before, after = credit(charge(rollouts, kl, 0.1)), credit(charge(rollouts, other, 0.1))
    np.testing.assert_array_equal(before[rollouts.kind == TOOL], after[rollouts.kind == TOOL])
    assert np.any(before[rollouts.kind == SUMMARY] != after[rollouts.kind == SUMMARY])
    assert np.isnan(charge(rollouts, kl, 0.1).rewards["tool"][1])
    grpo = algorithm("grpo").credit
    assert np.any(
        grpo(charge(rollouts, kl, 0.1))[rollouts.kind == TOOL] != grpo(charge(rollouts, other, 0.1))[rollouts.kind == TOOL]
    )
