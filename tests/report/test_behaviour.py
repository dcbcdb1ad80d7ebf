"""Counts and spreads of a hand-made batch: four rollouts a group, the third with a bad call, the fourth without an answer."""

import numpy as np
import pytest

from slca.report.behaviour import behaviour, spread
from slca.report.metrics import finalize, merge
from slca.types import END_REASONS, Rollouts
from tests.report.synthetic import batch


def test_counts_by_type_with_zeros_and_merged_over_hosts():
    episodes = batch(groups=2)[0]
    found = finalize(merge(behaviour(episodes[:4]), behaviour(episodes[4:]), behaviour([])))
    assert found["end/answered"] == 0.75 and found["end/max_turns"] == 0.25 and found["end/dead"] == 0
    assert {f"end/{reason}" for reason in END_REASONS} < found.keys()
    assert found["error/malformed_json"] == 0.25 and found["error/unknown_tool"] == 0
    assert found["status/ok"] == found["calls"] == found["tool_turns"] == 1
    lengths = [int((e.writer == 1).sum()) for e in episodes]
    assert found["length/policy"] == sum(lengths) / 8 and found["length/policy_max"] == max(lengths)
    assert found["unscored"] == found["forged"] == found["truncated"] == 0


def test_spread_inside_groups_and_extremes_by_segment_merged_over_hosts():
    nan = float("nan")

    def host(tool, summary, credit, tokens):
        kind = np.array([[0, 1]] * len(tool))
        kind[-1, 1] = -1  # the last rollout wrote no summary
        rewards = {"tool": np.array(tool), "summary": np.array(summary), "total": np.array(tool)}
        return spread(Rollouts(np.array([0, 0, 1, 1]), kind, rewards, tokens=np.array(tokens)), np.array(credit))

    one = host([1.0, 0.0, 0.5, 0.5], [0.8, 0.2, nan, 0.5], [[2.0, 1], [-2, -1], [0, 0], [0.0, 9]], [[3, 1]] * 4)
    two = host([0.0, 0.0, 1.0, 3.0], [0.0, 0.0, 1.0, 1.0], [[0.0, 0], [0, 0], [3, -4], [-1.0, 0]], [[5, 5]] * 4)
    found = finalize(merge(one, two))
    assert found["reward_std/tool"] == pytest.approx((0.5**0.5 + 0 + 0 + 2**0.5) / 4)
    assert found["reward_std/summary"] == pytest.approx((0.18**0.5 + 0 + 0) / 3)  # one group had a single score
    assert (found["advantage/tool_min"], found["advantage/tool_max"]) == (-2, 3)
    assert (found["advantage/summary_min"], found["advantage/summary_max"]) == (-4, 1)  # absent segments have none
    assert found["token_share/tool"] == 32 / 50 and found["token_share/summary"] == 18 / 50
