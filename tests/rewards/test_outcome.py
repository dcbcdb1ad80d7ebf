"""Outcome rewards: solved, right calls, RLTR's planner reward, roles and states."""

import pytest

from slca.rewards.outcome import (
    EXPLORATION,
    INFRASTRUCTURE,
    PROGRESS,
    REGRESSION,
    Compared,
    completeness,
    duplicates,
    format_valid,
    layered,
    overlong,
    right_calls,
    rltr,
    solved,
    steps,
    unusable,
)  # fmt: skip
from slca.types import Observation, Parsed, ToolCall
from tests.rewards.episodes import ANSWER, GOLD, calls, episode, says, task

A, B = ToolCall("a", {"x": 1}), ToolCall("b", {})


def test_solved_is_strict():
    assert solved([calls(A, B), says("ok")], [[B], [A]])
    assert solved([calls(A), calls(B)], [[A, B]])
    assert solved([says("no")], [])
    assert not solved([calls(A, A)], [[A]])
    assert not solved([calls(A)], [[A, B]])
    assert not solved([calls(ToolCall("a", {"x": "1"}))], [[A]])
    assert not solved([calls(A, errors=1)], [[A]])
    assert not solved([calls(A)], [])
    assert solved([calls(A, A)], [[A], [A]])


def test_action_counts_gold_calls_once():
    extra = ToolCall("a", {"x": "1", "note": "more"})  # every gold key there and loosely equal
    assert right_calls(Compared.of([calls(extra)], [[A]])) == 1
    assert right_calls(Compared.of([calls(A, A, A)], [[A]])) == 1  # repeating pays nothing
    assert right_calls(Compared.of([calls(ToolCall("a", {"x": 2}))], [[A]])) == 0
    assert right_calls(Compared.of([calls(A, B)], [[A], [B]])) == 2


def test_a_call_with_every_gold_key_is_right_whatever_came_before_it():
    """The first call has the better keys (Jaccard 1 and half the values against 1/2 and all of them) and is not right."""
    gold = ToolCall("a", {"x": 1, "y": 2})
    near, more = ToolCall("a", {"x": 1, "y": 9}), ToolCall("a", {"x": 1, "y": 2, "u": 0, "v": 0})
    compared = Compared.of([calls(near), calls(more), says("ok")], [[gold]])
    assert right_calls(compared) == 1 and completeness(compared) == 1.0
    assert [step.role for step in steps(compared, [[], [], []], {"a"})] == [EXPLORATION, PROGRESS, INFRASTRUCTURE]


def test_right_calls_are_the_most_that_pair_up():
    """a(x=1, y=2) meets both gold calls, a(x=1, y=9, z=0) the first alone: two are right, in either order."""
    gold = [[ToolCall("a", {"x": 1}), ToolCall("a", {"x": 1, "y": 2})]]
    both, first = ToolCall("a", {"x": 1, "y": 2}), ToolCall("a", {"x": 1, "y": 9, "z": 0})
    assert right_calls(Compared.of([calls(both), calls(first)], gold)) == 2
    assert right_calls(Compared.of([calls(first), calls(both)], gold)) == 2
    assert right_calls(Compared.of([calls(first), calls(first)], gold)) == 1


def test_progress_is_the_call_that_first_meets_an_open_gold_call():
    exact, wordy = ToolCall("a", {"x": 1}), ToolCall("a", {"x": 1, "note": "more"})
    for first, second in ((exact, wordy), (wordy, exact)):
        found = walk(task(gold=[[A]]), [calls(first), calls(second), ANSWER], {"a"})
        assert [step.role for step in found] == [PROGRESS, EXPLORATION, INFRASTRUCTURE]


@pytest.mark.parametrize(
    "complete, repeats, errors, valid, expected", [(1, 0, 0, True, 1), (2 / 3, 1, 0, True, 0.5667), (0, 0, 1, True, -0.2), (1 / 3, 0, 0, False, -1)]
)  # fmt: skip
def test_rltr_hand_case(complete, repeats, errors, valid, expected):
    assert rltr(complete, repeats, errors, valid) == pytest.approx(expected, abs=1e-4)


def test_completeness_by_rule():
    assert completeness(Compared.of([calls(A)], [[A], [B]])) == 0.5
    assert completeness(Compared.of([says("no")], [])) == 1.0
    assert completeness(Compared.of([calls(errors=1)], [])) == 0.0


def test_format_validity():
    assert format_valid([says("x")]) and format_valid([calls(A), calls(errors=1)])
    assert not format_valid([calls(errors=1), says("x")])
    assert not format_valid([calls(A), Parsed(text="x", forged=True)])


def test_counts():
    assert duplicates(Compared.of([calls(A, B), calls(A), calls(ToolCall("a", {"x": 2}))], [])) == 1
    turns = [calls(A, errors=2), calls(B, A)]
    seen = [[Observation("{}")], [Observation("e", "unknown_tool"), Observation("e", "invalid_arguments")]]
    assert unusable(turns, seen) == 4
    assert unusable(turns, [[], [Observation("e", "tool_error")]]) == 2


def test_layers():
    assert layered(True, 0, True, True) == 1.0
    assert layered(False, 0, True, True) == 0.5
    assert layered(False, 1, True, True) == 0.0
    assert layered(False, 0, False, True) == 0.0  # nothing tried where a call was due
    assert layered(False, 0, True, False) == 0.0  # a needless call


@pytest.mark.parametrize("tokens, penalty", [(0, 0), (16_384, 0), (18_432, -0.5), (20_480, -1), (30_000, -1)])
def test_soft_overlong_penalty_has_the_published_constants(tokens, penalty):
    assert overlong(tokens, 20_480) == pytest.approx(penalty)


def walk(the_task, turns, allowed):
    row = episode(the_task, turns)
    return steps(Compared.of(row.turns, row.task.gold_steps), row.observations, allowed)


def test_roles_and_states():
    wrong = ToolCall("weather", {"city": "Rome"})
    turns = [calls(wrong), calls(GOLD), calls(GOLD), calls(errors=1), calls(ToolCall("nope", {})), ANSWER]
    found = walk(task(), turns, {"weather"})
    assert [s.role for s in found] == [EXPLORATION, PROGRESS, REGRESSION, REGRESSION, REGRESSION, INFRASTRUCTURE]
    assert [len(s.state) for s in found] == [0, 1, 2, 3, 3, 4]
    assert [s.similarity for s in found] == [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_states_forget_the_order_of_calls():
    one = walk(task(), [calls(A), calls(B), ANSWER], {"a", "b"})
    two = walk(task(), [calls(B), calls(A), ANSWER], {"a", "b"})
    assert one[0].state == two[0].state and one[1].state != two[1].state and one[2].state == two[2].state


def test_matchtir_similarity():
    gold = ToolCall("a", {"x": 1, "y": 2})
    found = walk(task(gold=[[gold]]), [calls(ToolCall("a", {"x": 1, "z": 0})), ANSWER], {"a"})
    assert found[0].similarity == pytest.approx((1 + 1 / 3 + 1) / 4)
