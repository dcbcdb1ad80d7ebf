"""Failures that users of other projects met, by the numbers of the project's list (M13 to M25), on numbers worked out by hand."""

import math

import numpy as np
import pytest

from slca.credit.algorithms import algorithm
from slca.credit.credit import compare
from slca.rewards.annotate import annotate, metrics
from slca.validate import ConfigError, validate
from tests.rewards.episodes import ANSWER, GOLD, calls, episode, good, task

WRONG = type(GOLD)("weather", {"city": "Rome"})


def of(x, group=None, **options):
    x = np.asarray(x, float)
    return compare(x, np.zeros(len(x), int) if group is None else np.asarray(group), np.ones(len(x), bool), **options)


@pytest.mark.parametrize("norm", ["zscore", "center", "rloo"])
def test_nearly_equal_rewards_are_not_blown_up(norm):  # M13
    advantage = of([0.35] * 7 + [0.95], norm=norm)
    assert np.abs(advantage).max() < 3.0
    np.testing.assert_allclose(advantage[:7], advantage[0])
    assert (of([0.35] * 7 + [0.35 + 1e-6], norm="zscore") == 0).all()  # a spread below the floor is none


def test_equal_rewards_have_exactly_no_advantage():  # M14
    for value in (0.1, 1e-3, 1 / 3, 1e6 + 0.1):
        assert (of([value] * 8) == 0).all() and (of([value] * 8, norm="center") == 0).all()


def test_a_group_of_one_is_refused_and_one_shrunk_to_one_gets_nothing(config):  # M15
    config.rollout.group = 1
    with pytest.raises(ConfigError, match=r"rollout\.group=1"):
        validate(config)
    alone = compare(np.array([0.7, math.nan, math.nan]), np.zeros(3, int), np.array([True, False, False]))
    assert alone.tolist() == [0.0, 0.0, 0.0]


def test_spread_of_the_group_and_spread_of_the_batch():  # M17
    x, group = [0.0, 2.0, 0.0, 4.0], [0, 0, 1, 1]
    root = math.sqrt(2)
    np.testing.assert_allclose(of(x, group, eps=0.0), [-1 / root, 1 / root, -1 / root, 1 / root])
    whole = math.sqrt(((0 - 1.5) ** 2 * 2 + (2 - 1.5) ** 2 + (4 - 1.5) ** 2) / 3)  # of all four
    np.testing.assert_allclose(of(x, group, norm="batch_std", eps=0.0), np.array([-1.0, 1.0, -2.0, 2.0]) / whole)


@pytest.mark.parametrize("norm", ["zscore", "center", "rloo", "batch_std"])
def test_advantages_of_a_group_sum_to_nothing(norm):  # M21
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(6), 5)
    advantage = compare(rng.normal(size=30), group, np.ones(30, bool), norm=norm)
    np.testing.assert_allclose([advantage[group == g].sum() for g in range(6)], 0.0, atol=1e-12)


def test_the_logged_total_is_the_total_that_trains(config):  # M24, M19
    config.reward.process_weight, config.reward.summary_weight = 0.25, 2.0
    rows = [good(), episode(task(), [calls(WRONG), ANSWER], sample=1)]
    rollouts = annotate(rows, config)
    total = 0.25 * rollouts.rewards["tool"] + 2.0 * rollouts.rewards["summary"]
    np.testing.assert_allclose(rollouts.rewards["total"], total)
    logged, count = metrics(rollouts)["reward/total"]
    assert logged / count == pytest.approx(total.mean())
    np.testing.assert_allclose(algorithm("grpo").credit(rollouts)[:, 0], of(total))
