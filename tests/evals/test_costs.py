"""Costs a solved rollout: everybody's spending over the successes."""

import numpy as np

from slca.evals.costs import costs
from slca.report.metrics import finalize, merge
from slca.types import Episode, Observation, Task

EMPTY = np.zeros(0, np.int32)


def episode(*costs_of_calls):
    observations = [[Observation("{}", cost=cost) for cost in costs_of_calls], []]
    return Episode(Task("t", [], [], []), 0, 0, EMPTY, EMPTY, EMPTY, EMPTY, observations=observations)


PAID = episode({"tokens": 20, "prompt_tokens": 100, "declared": 0.5}, {"declared": 0.25})
LOST = episode({"tokens": 7, "prompt_tokens": 30, "seconds": 2.0})


def test_all_spending_is_shared_by_the_solved_rollouts():
    found = costs([PAID, LOST], 2.0)
    assert found == {
        "cost/calls_per_solved": (3.0, 2.0),
        "cost/tokens_per_solved": (157.0, 2.0),
        "cost/declared_per_solved": (0.75, 2.0),
    }
    # Steps and hosts merge as sums over sums.
    assert finalize(merge(found, costs([PAID], 1.0)))["cost/calls_per_solved"] == 5 / 3


def test_nothing_solved_is_not_measured():
    assert finalize(costs([LOST], 0.0)) == {}
