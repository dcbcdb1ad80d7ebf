"""Speed of the chat room: calls parsed and validated a second; text tokenised for the suffix of turn 2 to 64.

    python -m bench.chat

Ratios are of one run on one machine; absolute numbers mean little on another.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from importlib.metadata import version
from typing import Any

from bench import arguments
from slca.chat.parse import parse
from slca.chat.template import Template
from slca.chat.tokenizer import load
from slca.tasks.schema import ToolSet

CALLS = 10_000
RUNS = 5
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


def calls_a_second() -> tuple[float, float, float]:
    """Calls a CPU second: decoded by `json.loads` alone (the floor), parsed, parsed and validated."""
    bodies = [json.dumps({"name": "get_weather", "arguments": {"city": f"Paris {i}", "days": i}}) for i in range(CALLS)]
    turns = [f"<tool_call>\n{body}\n</tool_call>" for body in bodies]
    toolset = ToolSet.load([TOOL])
    start = time.process_time()
    for body in bodies:
        json.loads(body)
    decoded = time.process_time()
    parsed = [parse(turn, tools=toolset.tools) for turn in turns]
    read = time.process_time()
    assert not any(toolset.check(call) for turn in parsed for call in turn.calls)
    checked = time.process_time()
    return CALLS / (decoded - start), CALLS / (read - decoded), CALLS / (checked - decoded)


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
    arguments.none("bench.chat", __doc__)
    libraries = ", ".join(f"{name} {version(name)}" for name in ("jsonschema-rs", "sentencepiece", "transformers"))
    print(f"Python {platform.python_version()}, {libraries}; {CALLS:,} calls, {RUNS} runs: median (least to most)\n")
    print("| | calls/s |\n|---|---|")
    for name, rates in zip(("json.loads alone", "parse", "parse and validate"), zip(*(calls_a_second() for _ in range(RUNS)))):
        print(f"| {name} | {statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f}) |")
    print("\n| turns | characters tokenised for the suffix | for the whole conversation | ms a suffix |\n|---|---|---|---|")
    for turns in (2, 4, 8, 16, 32, 64):
        costs = [suffix_cost(turns) for _ in range(RUNS)]
        times = [1e3 * seconds for _, seconds, _ in costs]
        spread = f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"
        print(f"| {turns} | {costs[0][0]:,} | {costs[0][2]:,} | {spread} |")


if __name__ == "__main__":
    main()
