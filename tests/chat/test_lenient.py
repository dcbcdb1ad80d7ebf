"""What serving forgives and training does not, and what nobody forgives."""

import pytest

from slca.chat.lenient import parse_lenient
from slca.chat.parse import parse
from slca.types import ToolCall
from tests.chat.properties import attacks, property_tests

CALL = ToolCall("f", {"a": 1})


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"name": "f", "arguments": {"a": 1}}\n```',
        '<tool_call>```{"name": "f", "arguments": {"a": 1}}```</tool_call>',
        'Sure: {"name": "f", "parameters": {"a": 1}} as you wish',
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 1}}',
        '<think>{"name": "g", "arguments": {}}</think>{"name": "f", "arguments": {"a": 1}}',
    ],
)
def test_forgiven_only_here(text):
    assert parse(text, tools={"f"}).calls == ()
    assert parse_lenient(text, tools={"f"}).calls == (CALL,)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "f", "arguments": {"a": 1}',
        "{'name': 'f', 'arguments': {}}",
        '{"name": "g", "arguments": {}}',
        '{"f": {}}',
        "{" * 999,
    ],
)
def test_never_forgiven(text):
    assert parse_lenient(text, tools={"f"}) == parse(text, tools={"f"})


def test_cut_calls_are_never_run():
    text = '<tool_call>{"name": "f", "arguments": {"a": 1}}'
    assert parse_lenient(text, truncated=True).calls == ()


def test_a_sound_turn_is_read_as_ever():
    text = 'Hi <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    assert parse_lenient(text) == parse(text)


@property_tests(text=attacks(10))
def never_raises(text):
    parse_lenient(text + '{"name": "f", "arguments": {}}' + text)


test_never_raises, test_never_raises_nightly = never_raises
