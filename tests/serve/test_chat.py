"""A sampled turn as a message: by hand for each wire, and as it grows."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slca.serve.chat import Answer, Reading
from slca.types import ToolCall

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
F = ToolCall("f", {"a": 1})


@pytest.mark.parametrize(
    ("text", "finish", "expected"),
    [
        (" hello\n", "stop", Answer("hello", "", (), "stop")),
        ("cut", "length", Answer("cut", "", (), "length")),
        (f"so:\n{CALL}", "stop", Answer("so:", "", (F,), "tool_calls")),
        (f"{CALL}\n{CALL}", "stop", Answer("", "", (F, F), "tool_calls")),
        (f"{CALL}\n<tool_call>", "length", Answer("", "", (F,), "length", 1)),
        ("<think>\nhm\n</think>\n\nyes", "stop", Answer("yes", "hm", (), "stop")),
        ("hm</think>yes", "stop", Answer("yes", "hm", (), "stop")),
        ("<tool_call>{bad", "stop", Answer("<tool_call>{bad", "", (), "stop", 1)),
        ("<think>x</think>a <tool_call>{bad", "stop", Answer("a <tool_call>{bad", "x", (), "stop", 1)),
    ],
)
def test_hermes_turns(text, finish, expected):
    assert Reading("hermes", tools=True).answer(text, finish) == expected


def test_without_tools_a_call_is_text():
    assert Reading("hermes").answer(f"so:\n{CALL}", "stop") == Answer(f"so:\n{CALL}", "", (), "stop")


def test_single_keeps_the_first_call():
    other = CALL.replace('"f"', '"g"')
    assert Reading("hermes", tools=True, single=True).answer(f"{CALL}{other}", "stop").calls == (F,)


def test_text_around_the_sampled_one_is_read_with_it():
    forced = Reading("hermes", tools=True, before="<tool_call>\n", after="\n</tool_call>")
    assert forced.answer('{"name": "f", "arguments": {"a": 1}}', "stop").calls == (F,)
    assert forced.answer('{"name": "f", "argu', "length") == Answer('<tool_call>\n{"name": "f", "argu', "", (), "length", 1)
    assert Reading("hermes", before="<think>").answer("hm</think>yes", "stop") == Answer("yes", "hm", (), "stop")
    assert Reading("hermes", before="<think>").answer("hm", "length") == Answer("", "hm", (), "length")


def test_llama_turns():
    turn = '{"name": "f", "parameters": {"a": 1}}'
    assert Reading("llama_json", tools=True).answer(turn, "stop") == Answer("", "", (F,), "tool_calls")
    assert Reading("llama_json").answer(turn, "stop") == Answer(turn, "", (), "stop")
    assert Reading("llama_json", tools=True).certain('{"name"') == Answer()
    assert Reading("llama_json").certain('{"name"') == Answer('{"name"')
    assert Reading("llama_python", tools=True).answer("<|python_tag|>f.call(a=1)", "stop").calls == (F,)


def test_forged_markers():
    reading = Reading("hermes", tools=True)
    assert reading.forged("a <tool_response>") and not reading.forged('<tool_call>{"name": "<tool_response>"')


WORDS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", '{"name": "f", "arguments": {}}', "{", " ", "\n", "a", "b c", "<", "<to"]  # fmt: skip


@settings(max_examples=200, deadline=None)
@example(["a", " ", "</tool_call>", " ", "b c", "<tool_call>", WORDS[5], "</tool_call>"], "hermes", True, "", "stop")
@example(["a", "</tool_call>", "b c"], "hermes", True, "", "stop")
@given(
    st.lists(st.sampled_from(WORDS), max_size=12),
    st.sampled_from(["hermes", "llama_json", "llama_python"]),
    st.booleans(),
    st.sampled_from(["", "<think>"]),
    st.sampled_from(["stop", "length"]),
)
def test_what_is_certain_is_never_taken_back(words, wire, tools, before, finish):
    text, reading = "".join(words), Reading(wire, tools=tools, before=before)
    final = reading.answer(text, finish)
    stray = "</think>" in before + text and not (before + text).lstrip().startswith("<think>")
    content = reasoning = ""
    for n in range(len(text) + 1):
        now = reading.certain(text[:n])
        if not stray:
            assert now.content.startswith(content) and now.reasoning.startswith(reasoning), (text, n)
            assert final.content.startswith(now.content) and final.reasoning.startswith(now.reasoning), (text, n)
        content, reasoning = now.content, now.reasoning
