"""Segments: the vectors of the paper's position rule, and the content rule on cut-off and many-turn rollouts."""

import numpy as np
import pytest

from slca.credit.segments import segments
from slca.types import ENV, POLICY, PROMPT, SUMMARY, TOOL, CallError, Episode, Parsed, Task, ToolCall

CALL = Parsed(calls=(ToolCall("f", {}),), opened=1, closed=1)
TEXT = Parsed(text="done")


def episode(writer, turn, turns=()):
    n = len(writer)
    return Episode(
        Task("t", [], [], []), 0, 0, np.arange(n, dtype=np.int32), np.asarray(writer, np.int8), np.asarray(turn, np.int16),
        np.zeros(n, np.float32), list(turns),
    )  # fmt: skip


def from_mask(mask):
    turn, writer = [], []
    runs = 0
    for t, m in enumerate(mask):
        runs += m and not (t and mask[t - 1])
        turn.append(runs - 1 if m else -1)
        writer.append(POLICY if m else (ENV if runs else PROMPT))
    return episode(writer, turn)


@pytest.mark.parametrize(
    "mask, expected",
    [
        ([0, 1, 1, 0, 0, 1, 1, 1, 0, 0], [(TOOL, 1, 3), (SUMMARY, 5, 8)]),
        ([1, 1, 1], [(SUMMARY, 0, 3)]),
        ([0, 0, 0], []),
        ([1, 0, 1], [(TOOL, 0, 1), (SUMMARY, 2, 3)]),
        ([], []),
        ([1, 0, 1, 0, 1], [(TOOL, 0, 1), (TOOL, 2, 3), (SUMMARY, 4, 5)]),
    ],
)
def test_position_is_the_published_rule(mask, expected):
    assert [(s.kind, s.start, s.stop) for s in segments(from_mask(mask), "position")] == expected


def test_content_reads_the_parse_not_the_place():
    writer = [PROMPT, PROMPT, POLICY, POLICY, ENV, POLICY, ENV, POLICY, POLICY, ENV, POLICY]
    turn = [-1, -1, 0, 0, -1, 1, -1, 2, 2, -1, 3]
    turns = [CALL, TEXT, Parsed(text="wait", opened=1, errors=(CallError("malformed_json", "x"),)), TEXT]
    found = segments(episode(writer, turn, turns))
    assert [(s.kind, s.start, s.stop, s.turn) for s in found] == [
        (TOOL, 2, 4, 0), (SUMMARY, 5, 6, 1), (TOOL, 7, 9, 2), (SUMMARY, 10, 11, 3)
    ]  # fmt: skip


def test_a_rollout_cut_off_on_a_call_has_no_summary_by_content_and_one_by_position():
    row = episode([PROMPT, POLICY, ENV, POLICY], [-1, 0, -1, 1], [CALL, CALL])
    assert [s.kind for s in segments(row)] == [TOOL, TOOL]
    assert [s.kind for s in segments(row, "position")] == [TOOL, SUMMARY]


@pytest.mark.parametrize("how", ["content", "position"])
def test_segments_partition_the_policy_tokens(how):
    random = np.random.default_rng(0)
    for _ in range(50):
        row = from_mask([0, *random.integers(0, 2, 30).tolist()])
        row.turns = [[CALL, TEXT][i % 2] for i in range(int(row.turn.max()) + 1)]
        covered = np.zeros(len(row.tokens), int)
        for s in segments(row, how):
            covered[s.start : s.stop] += 1
        np.testing.assert_array_equal(covered, row.writer == POLICY)


def test_an_unknown_segmenter_is_named():
    with pytest.raises(ValueError, match="'regex' is not one of content, position"):
        segments(from_mask([1]), "regex")
