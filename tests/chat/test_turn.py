"""Bounds that hold for every wire format: message sizes, caps, text that can be written."""

from slca.chat.strict_json import Fault, Reader
from slca.chat.turn import MAX_MESSAGE, Turn, message, read_calls
from slca.types import CallError, ToolCall


def turn(**options):
    return Turn(None, options.get("truncated", False), options.get("max_calls", 2), Reader())


def test_messages_are_bounded_and_say_the_true_size():
    text = message("what " * 500, "x" * 10_000)
    assert len(text) == MAX_MESSAGE
    text = message("it is wrong", "x" * 10_000)
    assert len(text) < 300 and "10,000 characters" in text
    message("it is wrong", "\ud800").encode("utf-8")


def test_an_unfinished_block_is_truncated_only_where_the_text_ended():
    cut, elsewhere = Fault("malformed_json", "x", 3, cut=True), Fault("malformed_json", "x", 3)
    assert turn().fault(cut, "{", ended=False).kind == "truncated"
    assert turn().fault(elsewhere, "{", ended=False).kind == "malformed_json"
    assert turn(truncated=True).fault(elsewhere, "{", ended=False).kind == "truncated"
    assert turn(truncated=True).fault(elsewhere, "{", ended=True).kind == "malformed_json"


def test_calls_beyond_the_cap_are_one_error():
    t = turn(max_calls=2)
    t.block("raw", [ToolCall("a", {})])
    t.block("raw", [ToolCall("b", {}), ToolCall("c", {}), CallError("not_object", "x")])
    t.block("raw", [ToolCall("d", {})])
    parsed = t.parsed()
    assert [call.name for call in parsed.calls] == ["a", "b"]
    assert [(error.kind, error.block) for error in parsed.errors] == [("not_object", 1), ("too_many", 1)]
    assert len(parsed.blocks) == 2


def test_read_calls_keeps_order_and_types_faults():
    t = turn(max_calls=20)
    items = read_calls(t, [{"name": "a", "arguments": {}}, 3, {"name": "b", "arguments": {"x": 1}}], "raw")
    assert items[0] == ToolCall("a", {}) and items[2] == ToolCall("b", {"x": 1})
    assert items[1].kind == "not_object" and "a number" in items[1].message
