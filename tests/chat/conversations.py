"""The conversations that golden ids and live comparisons render. Changing one means running `tests/golden/make.py` again."""

from __future__ import annotations

from typing import Any

from slca.types import ToolCall


def tool(name: str, description: str, **properties: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties)[:1],
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


# The description holds what stock jinja would escape (T15).
TOOLS = [
    tool("get_weather", "Weather now, if a<b & it's é", city="string", days="integer"),
    tool("get_time", "Local time", zone="string"),
]
OSLO = ToolCall("get_weather", {"city": "Oslo", "days": 2}, "call_0000")
ROME = ToolCall("get_weather", {"city": "Rome"}, "call_0001")
ZONE = ToolCall("get_time", {"zone": "Europe/Oslo"}, "call_0002")


def system(content: str) -> dict[str, Any]:
    return {"role": "system", "content": content}


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str = "", *calls: ToolCall, reasoning: str | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [call.message() for call in calls]
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    return message


def result(call: ToolCall, content: str) -> dict[str, Any]:
    return {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": content}


FOUR_TURNS = [
    system("Be brief."),
    user("Weather in Oslo and Rome?"),
    assistant("", OSLO, ROME),
    result(OSLO, '{"temp": 4, "sky": "grå"}'),
    result(ROME, '{"temp": 21}'),
    assistant("Oslo 4 °C,\n\nRome 21 °C."),
    user("And what time is it in Oslo?"),
    assistant("Let me look.", ZONE),
    result(ZONE, "12:05"),
    assistant("It is 12:05."),
]
FOUR_TURNS_SINGLE = [message for message in FOUR_TURNS if message.get("tool_call_id") != ROME.id]
FOUR_TURNS_SINGLE[2] = assistant("", OSLO)


def _case(messages: list[Any], tools: list[Any], *, generation_prompt: bool = True, parallel: bool = False) -> dict[str, Any]:
    return {"messages": messages, "tools": tools, "generation_prompt": generation_prompt, "parallel": parallel}


CASES: dict[str, dict[str, Any]] = {
    "prompt": _case(FOUR_TURNS[:2], TOOLS),
    "no_system": _case([user("Hi, it's 2024!")], TOOLS[1:]),
    "no_tools": _case([system("Be brief."), user("Hi,\n\n\ta <b>bold</b>  move."), assistant("Hello!"), user("Bye")], []),
    "four_turns": _case(FOUR_TURNS[:9], TOOLS, parallel=True),
    "whole": _case(FOUR_TURNS, TOOLS, generation_prompt=False, parallel=True),
    "four_turns_single": _case(FOUR_TURNS_SINGLE[:8], TOOLS),
}
