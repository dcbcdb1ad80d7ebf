"""What a stored task must look like, and whether it can be done at all: a task nobody can do scores 0 without a word."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

from slca.tasks.schema import ToolSet
from slca.types import Task

Seen = MutableMapping[bytes, frozenset[str] | str]  # digest of a tool set -> its names, or what is wrong with it


def faults(fields: Mapping[str, Any]) -> list[str]:
    """One sentence for each field of a stored task that has the wrong form."""
    return [f"{name} must be {what}" for name, what, right in _SHAPES if name in fields and not right(fields[name])]


def impossible(task: Task, seen: Seen) -> str:
    """Why nobody can do this task: tools that cannot be used, gold calls of tools that are not offered; "" = it can be done.

    seen: tool sets that were vetted before, so that each is vetted once a file.
    """
    text = json.dumps(task.tools, ensure_ascii=False, sort_keys=True)
    key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    if key not in seen:
        seen[key] = _vetted(task.tools)
    names = seen[key]
    if isinstance(names, str):
        return names
    missing = sorted({call.name for step in task.gold_steps for call in step} - names)
    if missing:
        offered = f"those offered are {', '.join(sorted(names)):.200}" if names else "`tools` is empty"
        return f"gold_steps call {', '.join(map(repr, missing)):.200}, which the task does not offer: {offered}"
    return ""


def _vetted(tools: Sequence[Mapping[str, Any]]) -> frozenset[str] | str:
    loaded = ToolSet.load(tools)
    if not loaded.refused:
        return frozenset(loaded.tools)
    name, reason = loaded.refused[0]
    more = f" (and {len(loaded.refused) - 1} more)" if len(loaded.refused) > 1 else ""
    return f"tool {name!s:.100} cannot be used: {reason}{more}"


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _messages(value: Any) -> bool:
    """Messages with a known role and text (or null) for content."""
    roles, content = ("system", "user", "assistant", "tool"), (str, type(None))
    return isinstance(value, list) and all(
        isinstance(m, Mapping) and m.get("role") in roles and isinstance(m.get("content", ""), content) for m in value
    )


def _written_calls(value: Any) -> bool:
    """Whether the calls in messages have a name and arguments, as every chat template reads them."""
    if not _messages(value):
        return True  # said already
    lists = [message["tool_calls"] for message in value if message.get("tool_calls") is not None]
    return all(isinstance(calls, list) and all(map(_written_call, calls)) for calls in lists)


def _written_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, Mapping) else None
    return (
        isinstance(function, Mapping)
        and isinstance(function.get("name"), str)
        and isinstance(function.get("arguments"), Mapping | str)
    )


def _results_have_a_turn(value: Any) -> bool:
    """Whether each run of `tool` messages follows an assistant turn, which alone can have called."""
    if not _messages(value):
        return True  # said already
    pairs = zip([None, *(message["role"] for message in value)], value, strict=False)
    return all(before in ("assistant", "tool") for before, message in pairs if message["role"] == "tool")


def _calls(value: Any) -> bool:
    return all(isinstance(call.name, str) and isinstance(call.arguments, Mapping) for step in value for call in step)


_MESSAGES = "a list of messages, each with `role` system, user, assistant or tool, and `content` a text"
_WRITTEN = 'messages whose `tool_calls` are lists of {"type": "function", "function": {"name": a text, "arguments": an object}}'
_SHAPES: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("id", "a text", lambda value: isinstance(value, str)),
    ("messages", f"{_MESSAGES}, at least one", lambda value: _messages(value) and bool(value)),
    ("messages", _WRITTEN, _written_calls),
    ("messages", "messages in which a `tool` message follows the assistant turn that called", _results_have_a_turn),
    ("demo", _MESSAGES, _messages),
    ("demo", _WRITTEN, _written_calls),
    ("tools", "a list of objects", lambda value: isinstance(value, list) and all(isinstance(x, Mapping) for x in value)),
    ("gold_steps", "lists of lists of calls, each with `name` a text and `arguments` an object", _calls),
    ("facts", "a list of lists of texts, one a user turn", lambda value: isinstance(value, list) and all(map(_texts, value))),
    ("followups", "a list of texts", _texts),
    ("kind", "a text", lambda value: isinstance(value, str)),
    ("split", "a text", lambda value: isinstance(value, str)),
    ("meta", "an object", lambda value: isinstance(value, Mapping)),
)
