"""Conversations in the shapes that datasets keep them, brought to one: OpenAI messages whose calls are data.

Read: `role`/`content` and ShareGPT's `from`/`value`; calls as `tool_calls`, `function_call`, a turn of their own (`tool_call`)
or `<tool_call>` blocks inside text; results as `tool`, `function`, `observation`, `tool_response` turns or blocks inside a user
turn.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, NamedTuple

from slca.types import Message, ToolCall

_ROLES = {
    "system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant", "tool": "tool",
    "function": "tool", "observation": "tool", "tool_response": "tool", "function_call": "call", "tool_call": "call",
}  # fmt: skip
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_RESULT = re.compile(r"<tool_response>\s*(.*?)\s*</tool_response>", re.DOTALL)
# A system message that declares tools: the chat template does that itself, so its part on tools goes.
_DECLARES = ("<tools>", "<tool_call>", "tool_declare")
_HEADING = re.compile(r"(?m)^#+ ")


class Asked(NamedTuple):
    """A call that waits for its result. given: the id that the data gave it, "" = none."""

    call: ToolCall
    given: str


class Unusable(ValueError):
    """A row that is no task; the text is the reason, the same words for the same reason so that reasons can be counted."""


def loaded(value: Any) -> Any:
    """JSON text as data; anything else as it is. Columnar files keep what has no fixed shape as text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def conversation(raw: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Messages in one shape. Calls of one turn stand in one message, results follow with the ids of their calls.

    A result belongs to the call whose id and name it says, else to the first that waits for one. Raises Unusable for a role nobody
    knows, a call that cannot be read and a result without a call.
    """
    out: list[Message] = []
    waiting: list[Asked] = []
    for item in raw:
        role = _ROLES.get(str(item.get("role", item.get("from"))))
        if role is None:
            raise Unusable("a message has an unknown role")
        content = item.get("content", item.get("value"))
        text = "" if content is None else content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        if role == "system":
            if text := _without_tools(text):
                waiting.clear()
                out.append(Message(role="system", content=text))
        elif role == "user":
            results = _RESULT.findall(text)
            for result in results:
                _result(out, waiting, result)
            if not results:
                waiting.clear()
                out.append(Message(role="user", content=text))
        elif role == "tool":
            results = _RESULT.findall(text) or [text]
            says = (_text(item.get("tool_call_id")), _text(item.get("name"))) if len(results) == 1 else ("", "")
            for result in results:
                _result(out, waiting, result, *says)
        else:
            _assistant(out, waiting, *_turn(item, text, role))
    return out


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _without_tools(text: str) -> str:
    if not any(sign in text for sign in _DECLARES):
        return text.strip()
    if "tool_declare" in text:
        return ""
    heading = _HEADING.search(text)
    return text[: heading.start()].strip() if heading else ""


def _turn(item: Mapping[str, Any], text: str, role: str) -> tuple[str, str, list[ToolCall]]:
    """(text, reasoning, calls) of an assistant turn."""
    if role == "call":
        return "", "", _calls(_value(text))
    reasoning = item.get("reasoning_content") or ""
    given = item.get("tool_calls") or ([item["function_call"]] if item.get("function_call") else [])
    if given:
        return text, reasoning, _calls(loaded(given))
    thought, closed, said = text.rpartition("</think>")
    calls = [call for block in _CALL.findall(said) for call in _calls(_value(block.strip()))]
    rest = _CALL.sub("", said).strip()
    if "tool_call>" in rest:
        raise Unusable("a call in the text is not closed")
    return rest, reasoning or (thought.replace("<think>", "").strip() if closed else ""), calls


def _value(text: str) -> Any:
    """A call written as JSON, or as a Python literal (Toucan's SFT rows)."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise Unusable("a call cannot be read") from None


def calls_of(value: Any) -> list[ToolCall]:
    """Calls from an object or a list of them, wrapped in `function` or not, without ids. Raises Unusable."""
    return [ToolCall(call.name, call.arguments) for call in _calls(value)]


def _calls(value: Any) -> list[ToolCall]:
    """As `calls_of`, with the ids that the data give."""
    out = []
    for one in value if isinstance(value, list) else [value]:
        given = _text(one.get("id")) if isinstance(one, Mapping) else ""
        one = one.get("function", one) if isinstance(one, Mapping) else None
        if not isinstance(one, Mapping) or not isinstance(one.get("name"), str):
            raise Unusable("a call has no name")
        arguments = one.get("arguments", one.get("parameters"))
        arguments = {} if arguments in (None, "") else loaded(arguments)
        if not isinstance(arguments, Mapping):
            raise Unusable("a call's arguments are no object")
        out.append(ToolCall(one["name"], dict(arguments), given))
    return out


def _assistant(out: list[Message], waiting: list[Asked], text: str, reasoning: str, calls: list[ToolCall]) -> None:
    """Append a turn; calls that follow calls without a result between them belong to the same turn."""
    if calls and out and out[-1]["role"] == "assistant" and out[-1].get("tool_calls"):
        message = out[-1]
    elif not calls and not text.strip():
        return
    else:
        message = Message(role="assistant", content=text)
        if reasoning:
            message["reasoning_content"] = reasoning
        out.append(message)
        waiting.clear()
    if calls:
        have = message.setdefault("tool_calls", [])
        turn = sum(other["role"] == "assistant" for other in out)
        for call in calls:
            taken = {other["id"] for other in have}
            made = next(name for k in count(len(have)) if (name := f"call_{turn}_{k}") not in taken)
            own = ToolCall(call.name, call.arguments, call.id if call.id and call.id not in taken else made)
            have.append(own.message())
            waiting.append(Asked(own, call.id))


def _result(out: list[Message], waiting: list[Asked], text: str, given: str = "", name: str = "") -> None:
    """Append the result of a waiting call. given, name: what it says of that; where no call has an id, its own says nothing."""
    if not waiting:
        raise Unusable("a tool result has no call")
    given = given if any(asked.given for asked in waiting) else ""
    found = [asked for asked in waiting if given in ("", asked.given) and name in ("", asked.call.name)]
    if not found:
        raise Unusable("a tool result names no call that waits")
    call = found[0].call
    waiting.remove(found[0])
    out.append(Message(role="tool", content=text, tool_call_id=call.id, name=call.name))


def steps_of(messages: Iterable[Message]) -> list[list[ToolCall]]:
    """The calls of a conversation, one list an assistant turn that has any."""
    return [
        [ToolCall(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
        for message in messages
        if message.get("tool_calls")
    ]
