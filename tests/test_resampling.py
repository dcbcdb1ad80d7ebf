"""Dynamic sampling on credit: which groups are tried again, what replaces them, and what is counted."""

import numpy as np
import pytest

from slca.credit.algorithms import algorithm
from slca.resampling import resample
from slca.rewards.annotate import annotate
from tests.rewards.episodes import ANSWER, GOLD, calls, episode, good, task

WRONG = type(GOLD)("weather", {"city": "Rome"})


def alive(group):
    return [good(group=group), episode(task(), [calls(WRONG), ANSWER], group=group, sample=1)]


def solved(group):
    return [good(group=group), good(group=group, sample=1)]


def run(config, groups, answers, name="slca", rounds=2):
    """answers[round][group] -> the rows of that attempt."""
    asked = []

    def attempt(wanted, number):
        asked.append(list(wanted))
        rows = [row for g in wanted for row in answers[number - 1][g](g)]
        return rows, annotate(rows, config)

    rows = [row for g, make in enumerate(groups) for row in make(g)]
    episodes, rollouts, counts = resample(rows, annotate(rows, config), attempt, algorithm(name).credit, rounds)
    return rows, episodes, rollouts, counts, asked


def test_dead_groups_are_tried_until_they_live_or_the_cap(config):
    answers = [{0: solved, 2: alive}, {0: solved}]
    before, episodes, rollouts, counts, asked = run(config, [solved, alive, solved], answers)
    assert asked == [[0, 2], [0]] and counts == {"tried": 2.0, "recovered": 1.0, "rounds": 2.0, "dead": 1.0}
    assert episodes[:4] == before[:4] and all(a is not b for a, b in zip(episodes[4:], before[4:], strict=True))
    np.testing.assert_array_equal(rollouts.group, [0, 0, 1, 1, 2, 2])
    expected = annotate(episodes, config)
    for found, wanted in ((rollouts.rewards, expected.rewards), (rollouts.labels, expected.labels)):
        for key in ("tool", "summary", "segment", "role", "step", "version"):
            if key in wanted:
                np.testing.assert_array_equal(found[key], wanted[key])
    for name in ("slca", "grpo", "gigpo", "cue"):
        np.testing.assert_array_equal(algorithm(name).credit(rollouts), algorithm(name).credit(expected))


def test_nothing_is_tried_without_dead_groups(config):
    *_, counts, asked = run(config, [alive, alive], [])
    assert not asked and counts == {"tried": 0.0, "recovered": 0.0, "rounds": 0.0, "dead": 0.0}


def test_attempts_without_any_score_leave_everything_as_it_was(config):
    def lost(group):
        return [episode(task(), [calls(GOLD)], group=group, sample=k, end="sim_failed") for k in (0, 1)]

    for first, second in ((solved, lost), (lost, solved)):
        before, episodes, rollouts, counts, _ = run(config, [first], [{0: second}], rounds=1)
        assert episodes == before and counts["dead"] == 1.0
        assert np.isnan(rollouts.rewards["tool"]).all() == (first is lost)


def test_longer_new_rollouts_widen_the_arrays(config):
    def long(group):
        return [good(group=group), episode(task(), [calls(WRONG), calls(GOLD), ANSWER], group=group, sample=1)]

    _, episodes, rollouts, _, _ = run(config, [solved, alive], [{0: long}], rounds=1)
    expected = annotate(episodes, config)
    np.testing.assert_array_equal(rollouts.kind, expected.kind)
    np.testing.assert_array_equal(rollouts.tokens, expected.tokens)
    np.testing.assert_array_equal(rollouts.rewards["final"], expected.rewards["final"])


@pytest.mark.parametrize("name, tried", [("slca", 0.0), ("grpo", 1.0)])
def test_a_group_lives_when_either_channel_varies(config, name, tried):
    """Rewards that cancel in the total: dead under GRPO, alive under SLCA."""
    rows = alive(0)
    rollouts = annotate(rows, config)
    rollouts.rewards.update(tool=np.array([1.0, 0.5]), summary=np.array([0.0, 0.5]), total=np.array([1.0, 1.0]))
    *_, counts = resample(rows, rollouts, lambda groups, number: (rows, rollouts), algorithm(name).credit, 1)
    assert counts["tried"] == tried
