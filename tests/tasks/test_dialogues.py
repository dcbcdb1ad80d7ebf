"""Which call a result belongs to, by hand. The shapes themselves: tests/tasks/test_toucan.py."""

import itertools

import pytest

from slca.tasks.dialogues import Unusable, calls_of, conversation, steps_of
from slca.types import ToolCall

USER = {"role": "user", "content": "Weather and time?"}


def asked(*calls, **more):
    return {"role": "assistant", "content": "", "tool_calls": [
        {"id": given, "type": "function", "function": {"name": name, "arguments": "{}"}} for given, name in calls], **more}  # fmt: skip


def result(text, **says):
    return {"role": "tool", "content": text, **says}


def answers(messages):
    """Of each call, in order: (name, what was answered), by the ids of the outcome."""
    out, found = conversation([USER, *messages]), []
    for n, message in enumerate(out):
        if calls := message.get("tool_calls", ()):
            results = {one["tool_call_id"]: one for one in out[n + 1 : n + 1 + len(calls)]}
            assert [results[call["id"]]["name"] for call in calls] == [call["function"]["name"] for call in calls]
            found += [(call["function"]["name"], results[call["id"]]["content"]) for call in calls]
    return found


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("says", [("tool_call_id",), ("name",), ("tool_call_id", "name")])
def test_a_result_goes_to_the_call_that_it_names(order, says):
    names, texts, ids = ("weather", "time", "news"), ("rain", "12:00", "none"), ("a", "b", "c")
    results = [result(texts[i], **{key: {"tool_call_id": ids[i], "name": names[i]}[key] for key in says}) for i in order]
    assert answers([asked(*zip(ids, names)), *results]) == list(zip(names, texts))


def test_ids_of_the_data_are_kept():
    out = conversation([USER, asked(("a", "weather"), ("b", "time")), result("12:00", tool_call_id="b"), result("rain")])
    assert [call["id"] for call in out[1]["tool_calls"]] == ["a", "b"]
    assert [(message["tool_call_id"], message["content"]) for message in out[2:]] == [("b", "12:00"), ("a", "rain")]


def test_without_a_name_the_order_counts():
    assert answers([asked((None, "weather"), ("", "time")), result("rain"), result("12:00")]) == [
        ("weather", "rain"),
        ("time", "12:00"),
    ]
    # Calls that say no id cannot contradict a result that does.
    turns = [{"role": "tool_call", "content": f'{{"name": "{name}", "arguments": {{}}}}'} for name in ("weather", "time")]
    assert answers([*turns, result("rain", tool_call_id="x"), result("12:00", tool_call_id="y")])[1] == ("time", "12:00")


def test_of_equal_names_the_first_without_an_answer():
    calls = asked((None, "weather"), (None, "time"), (None, "weather"))
    found = answers([calls, result("rain", name="weather"), result("sun", name="weather"), result("12:00", name="time")])
    assert found == [("weather", "rain"), ("time", "12:00"), ("weather", "sun")]


def test_the_same_ids_in_every_turn():
    turns = [asked(("0", "weather"), ("1", "time")), result("12:00", tool_call_id="1"), result("rain", tool_call_id="0")]
    assert answers(turns * 2) == [("weather", "rain"), ("time", "12:00")] * 2


def test_calls_of_their_own_turns_with_ids_inside():
    turns = [
        {"role": "tool_call", "content": f'{{"id": "{i}", "name": "{n}", "arguments": {{}}}}'}
        for i, n in (("a", "f"), ("b", "g"))
    ]
    assert answers([*turns, result("2", tool_call_id="b"), result("1", tool_call_id="a")]) == [("f", "1"), ("g", "2")]


@pytest.mark.parametrize(
    "results",
    [
        [result("x", tool_call_id="c")],  # an id of no call
        [result("x", name="news")],  # a name of no call
        [result("x", tool_call_id="a", name="time")],  # an id and a name that contradict each other
        [result("x", tool_call_id="a"), result("y", tool_call_id="a")],  # one call, two results
        [result("x", name="time"), result("y", name="time")],
    ],
)
def test_a_result_that_names_another_call_makes_the_row_unusable(results):
    with pytest.raises(Unusable, match="a tool result names no call that waits"):
        conversation([USER, asked(("a", "weather"), ("b", "time")), *results])


@pytest.mark.parametrize("late", [{"role": "user", "content": "And?"}, {"role": "assistant", "content": "Well."}])
def test_a_result_after_another_turn_has_no_call(late):
    with pytest.raises(Unusable, match="a tool result has no call"):
        conversation([USER, asked(("a", "weather")), late, result("rain", tool_call_id="a")])


def test_two_calls_of_one_id_are_told_apart():
    with pytest.raises(Unusable, match="names no call that waits"):
        conversation(
            [USER, asked(("a", "f"), ("a", "g")), result("1", tool_call_id="a", name="f"), result("2", tool_call_id="z")]
        )
    assert answers([asked(("a", "f"), ("a", "g")), result("2", tool_call_id="a", name="g"), result("1", name="f")]) == [
        ("f", "1"),
        ("g", "2"),
    ]


def test_gold_calls_have_no_ids():
    (call,) = calls_of({"id": "a", "function": {"name": "f", "arguments": {}}})
    assert call == ToolCall("f", {})
    assert steps_of(conversation([USER, asked(("a", "f")), result("1")])) == [[ToolCall("f", {})]]
