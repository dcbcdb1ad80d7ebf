"""HierR against the hand-worked vectors of algorithms-core 8.8 and its switches."""

import itertools
from types import SimpleNamespace

import pytest

from slca.rewards.hierr import COMPONENTS, combine, match, process_reward
from slca.rewards.values import VALUE_EQ, loose, same_call, strict, typed
from slca.types import Block, CallError, Parsed, ToolCall
from tests.rewards.episodes import calls, says

A = ToolCall("a", {"x": 1, "y": "two"})
B = ToolCall("b", {"x": 2})
NAMES = {"a", "b"}


def process(turns, gold, **kw):
    return process_reward(turns, gold, NAMES, **kw)["process"]


@pytest.mark.parametrize("blocks", ["turn", "tag"])
@pytest.mark.parametrize(
    "turns, gold, expected",
    [
        ([calls(A), says("ok")], [[A]], 1.0),
        ([calls(A), calls(A)], [[A]], 0.916667),
        ([calls(A), calls(A), calls(A), calls(A)], [[A]], 0.85),
        ([calls(ToolCall("a", {"x": 5, "y": "no"}))], [[A]], 0.80),
        ([calls(errors=1)], [[A]], 0.0),
        ([says("no")], [[A]], 0.0),
        ([calls(A)], [], 0.45),
        ([calls(A), calls(B)], [[A], [B]], 1.0),
    ],
)
def test_published_numbers(blocks, turns, gold, expected):
    assert process(turns, gold, blocks=blocks) == pytest.approx(expected, abs=1e-6)


def test_parallel_calls_are_one_block_by_turn_and_one_tag_each_in_the_paper():
    together = [calls(A, B)]
    assert process(together, [[A, B]]) == 1.0
    assert process([calls(A), calls(B)], [[A, B]]) == pytest.approx(0.70)
    assert process(together, [[A, B]], blocks="tag") == pytest.approx(0.70)  # as released: two tags are two blocks
    listed = [Parsed(calls=(A, B), blocks=(Block((A, B)),), opened=1, closed=1)]
    assert process(listed, [[A, B]], blocks="tag") == 1.0


def test_abstention_is_right_or_junk():
    assert process([says("I cannot do that.")], []) == 1.0
    assert process([says("I cannot do that.")], [], abstain="paper") == 0.9  # exactly: it must pass the threshold 0.9
    assert process([calls(errors=2)], []) == 0.0
    assert process([calls(errors=2)], [], abstain="paper") == 0.9  # as released: junk looks like an abstention
    parts = process_reward([says("No.")], [], NAMES)
    assert all(parts[name] == 1.0 for name in COMPONENTS)


@pytest.mark.parametrize("combine, matching, abstain", list(itertools.product(
    ["additive", "gated", "multiplicative"], ["greedy", "hungarian"], ["sane", "paper"])))  # fmt: skip
def test_malformed_calls_never_beat_an_honest_omission(combine, matching, abstain):
    kw = dict(combine=combine, matching=matching, abstain=abstain)
    assert process([calls(errors=3)], [[A]], **kw) <= process([says("no")], [[A]], **kw)


def test_one_bad_call_voids_its_block():
    turn = calls(A, ToolCall("unknown", {}))
    assert process_reward([turn], [[A]], NAMES)["format"] == 0.0
    assert process_reward([turn], [[A]], NAMES, blocks="tag")["format"] == 0.5
    assert process_reward([calls(A), calls(errors=1)], [[A]], NAMES)["format"] == 0.5


def test_stray_tags_count_in_the_published_format_term():
    turn = Parsed(calls=(A,), blocks=(Block((A,)),), opened=1, closed=4)
    assert process_reward([turn], [[A]], NAMES, blocks="tag")["format"] == 0.25


def test_name_is_a_multiset_f1():
    found = process_reward([calls(A, A, B)], [[A, B, B]], NAMES)
    assert found["name"] == pytest.approx(2 * 2 / 6)


def test_keys_and_values_of_the_best_match():
    half = ToolCall("a", {"x": 1, "z": 0})
    found = process_reward([calls(half)], [[A]], NAMES)
    assert (found["key"], found["value"]) == (pytest.approx(1 / 3), 0.5)
    found = process_reward([calls(half, A)], [[A]], NAMES)
    assert (found["key"], found["value"]) == (1.0, 1.0)
    assert process_reward([calls(B)], [[A]], NAMES)["key"] == 0.0
    names_only = process_reward([calls(A)], [[ToolCall("a", {})]], NAMES)
    assert (names_only["key"], names_only["value"]) == (1.0, 1.0)


GREEDY_MISSES = (
    [ToolCall("a", {"x": 1, "y": 1}), ToolCall("a", {"x": 1, "y": 2})],  # predicted
    [ToolCall("a", {"x": 1}), ToolCall("a", {"x": 1, "y": 1})],  # gold: greedy gives the first gold call the first prediction
)


def test_hungarian_finds_what_greedy_misses():
    predicted, gold = GREEDY_MISSES
    assert {g: p for g, (p, _, _) in match(predicted, gold, loose).items()} == {0: 0, 1: 1}
    assert {g: p for g, (p, _, _) in match(predicted, gold, loose, "hungarian").items()} == {0: 1, 1: 0}


def test_one_prediction_goes_to_the_gold_call_that_it_fits_best():
    """Gold a(x=1), a(x=2), predicted a(x=2). Greedy: to the first, whose key it has (key 1/2, value 0). Best: to the second (1/2, 1/2)."""
    gold, predicted = [[ToolCall("a", {"x": 1}), ToolCall("a", {"x": 2})]], [calls(ToolCall("a", {"x": 2}))]
    name = 0.25 * 2 / 3  # F1 of one name of two; format is full, the first step asks for two calls
    assert process(predicted, gold) == pytest.approx(0.10 + name + 0.15 / 2)
    assert process(predicted, gold, matching="hungarian") == pytest.approx(0.10 + name + 0.15 / 2 + 0.20 / 2)


def test_matchings_agree_on_single_calls():
    for ours in (A, B, ToolCall("a", {"x": 9})):
        assert match([ours], [A], loose) == match([ours], [A], loose, "hungarian")


def test_all_steps_asks_for_every_step_size():
    turns, gold = [calls(A, B), calls(A)], [[A, B], [A, B]]
    assert process_reward(turns, gold, NAMES)["parallel"] == 1.0
    assert process_reward(turns, gold, NAMES, parallel="all_steps")["parallel"] == 0.5
    assert process_reward([calls(A)], [[A], [B]], NAMES, parallel="all_steps")["parallel"] == 0.5


WEIGHTS = (0.10, 0.25, 0.15, 0.20, 0.30)


@pytest.mark.parametrize(
    "how, parts, expected",
    [
        ("additive", (1, 1, 1, 0, 1), 0.80),
        ("gated", (1, 1, 1, 0, 1), 0.50),  # .10 + .25 + .15, value 0, parallel unpaid
        ("gated", (1, 0.5, 1, 1, 1), 0.225),
        ("gated", (0, 1, 1, 1, 1), 0.0),
        ("gated", (1, 1, 1, 1, 1), 1.0),
        ("multiplicative", (1, 0, 1, 1, 1), 0.0),  # a wrong tool zeroes argument credit
        ("multiplicative", (1, 1, 1, 0, 1), 0.45 / 0.65),
        ("multiplicative", (1, 1, 1, 1, 1), 1.0),
    ],
)
def test_combine(how, parts, expected):
    assert combine(parts, WEIGHTS, how) == pytest.approx(expected)


def test_weights_are_options():
    assert process([calls(A)], [[A]], format=0, name=0, key=0, value=0, parallel_weight=0) == 0.0
    uniform = dict(format=0.2, name=0.2, key=0.2, value=0.2, parallel_weight=0.2)
    assert process([calls(ToolCall("a", {"x": 5, "y": "no"}))], [[A]], **uniform) == pytest.approx(0.8)


def test_unknown_choice_names_the_field():
    with pytest.raises(ValueError, match=r"reward\.matching: 'magic'"):
        process([calls(A)], [[A]], matching="magic")


def test_a_mapping_of_tools_works_as_a_toolset():
    toolset = SimpleNamespace(tools={"a": None})
    assert process_reward([calls(A)], [[A]], toolset)["format"] == 1.0
    assert process_reward([calls(B)], [[B]], toolset)["format"] == 0.0


@pytest.mark.parametrize(
    "a, b, equal",
    [
        # pairs and who calls them equal: l(oose), t(yped), s(trict)
        (1, 1, "lts"), (1, 1.0, "lts"), (1, "1", "l"), ("1.0", 1, "l"), (True, "true", "l"), (True, 1, "l"), (0, False, "l"),
        ("Oslo", " oslo ", "lt"), ("Oslo", "Oslo", "lts"), (None, None, "lts"), (None, "", ""), (None, 0, ""),
        ([1, 2], [1, 2.0], "ts"), ([1, 2], [2, 1], ""), ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "lts"), ({"a": "X"}, {"a": "x"}, "lt"),
        (0.1 + 0.2, 0.3, "lt"), ("a", "b", ""), ([], {}, ""), ("nan", "nan", "lts"), (10**400, 10**400, "lts"), (10**400, 1.5, ""),
    ],
)  # fmt: skip
def test_value_equality(a, b, equal):
    assert [name[0] for name in ("loose", "typed", "strict") if VALUE_EQ[name](a, b)] == list(equal)
    assert loose(a, b) == loose(b, a) and typed(a, b) == typed(b, a) and strict(a, b) == strict(b, a)


def test_same_call_is_exact():
    assert same_call(A, ToolCall("a", {"y": "two", "x": 1.0}))
    assert not same_call(A, ToolCall("a", {"x": 1}))
    assert not same_call(A, ToolCall("a", {"x": 1, "y": "two", "z": 0}))
    assert not same_call(A, ToolCall("a", {"x": "1", "y": "two"}))


def test_errors_beside_calls_cost_format():
    turn = Parsed(calls=(A,), errors=(CallError("malformed_json", "x"),), opened=2, closed=2)
    assert process([turn], [[A]]) == pytest.approx(0.9)
