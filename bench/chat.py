"""Speed of the chat room: calls parsed and validated a second; text tokenised for the suffix of turn 2 to 64.

    python -m bench.chat

Ratios are of one run on one machine; absolute numbers mean little on another.
"""

from __future__ import annotations

import time
from typing import Any

from slca.chat.parse import parse
from slca.chat.template import Template
from slca.chat.tokenizer import load
from slca.tasks.schema import ToolSet

CALLS = 10_000
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 0}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def calls_a_second() -> tuple[float, float]:
    """(parsed, parsed and validated) a second, one core."""
    turns = [
        f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "Paris {i}", "days": {i}}}}}\n</tool_call>'
        for i in range(CALLS)
    ]
    toolset = ToolSet.load([TOOL])
    names = frozenset(toolset.tools)
    start = time.process_time()
    parsed = [parse(turn, tools=names) for turn in turns]
    middle = time.process_time()
    assert not any(toolset.check(call) for turn in parsed for call in turn.calls)
    return CALLS / (middle - start), CALLS / (time.process_time() - start)


class Counting:
    """A tokenizer that counts the characters it encodes."""

    def __init__(self, inner: Any):
        self.inner, self.characters = inner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def encode(self, text: str) -> list[int]:
        self.characters += len(text)
        return self.inner.encode(text)


def suffix_cost(turns: int) -> tuple[int, float, int]:
    """(characters encoded, seconds, characters of the whole rendering) for the suffix of the last of `turns` turns."""
    counting = Counting(load("tiny"))
    template = Template(counting)
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "name": "get_weather", "content": '{"temperature": 21}'}
    history: list[Any] = [{"role": "user", "content": "Weather?"}, *[turn, result] * turns]
    template.suffix(history[:-1], history[-1:])
    counting.characters = 0
    start = time.process_time()
    template.suffix(history[:-1], history[-1:])
    seconds, characters = time.process_time() - start, counting.characters
    counting.characters = 0
    template.ids(history, [TOOL], generation_prompt=True)
    return characters, seconds, counting.characters


def main() -> None:
    parsed, validated = calls_a_second()
    print(f"parse              {parsed:10,.0f} calls/s")
    print(f"parse + validate   {validated:10,.0f} calls/s   (goal 20,000)")
    print("turns   characters tokenised for the suffix / for the whole conversation   seconds a suffix")
    for turns in (2, 4, 8, 16, 32, 64):
        suffix, seconds, whole = suffix_cost(turns)
        print(f"{turns:5d}   {suffix:6,d} / {whole:8,d}   {seconds * 1e3:8.2f} ms")


if __name__ == "__main__":
    main()
