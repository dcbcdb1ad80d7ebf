"""Counts of a hand-made batch: four rollouts a group, the third with a bad call, the fourth without an answer."""

from slca.report.behaviour import behaviour
from slca.report.metrics import finalize, merge
from slca.types import END_REASONS
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
