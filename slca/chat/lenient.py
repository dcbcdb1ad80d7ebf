"""A forgiving reader for serving only: what a user's agent can still use of a turn that `parse` rejects.

Never used for rollouts, rewards or evaluation: a policy paid for damaged calls learns to write them. A server counts both
rates, the turns that `parse` reads and those that only `parse_lenient` reads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from slca.chat.markers import THINK_CLOSE
from slca.chat.parse import MAX_CALLS, known_names, parse
from slca.chat.strict_json import Reader
from slca.types import Block, Parsed, ToolCall

_TRIES = 64  # opening braces looked at


def parse_lenient(text: str, *, wire: str = "hermes", tools: Collection[Any] | None = None, truncated: bool = False) -> Parsed:
    """`parse`, and where it finds no usable call, any JSON object of the turn that names a known tool.

    Forgiven: code fences, missing or wrong tags, text around the object, `parameters` for `arguments` (and the reverse),
    arguments as a JSON string. Not forgiven: JSON that does not parse, a call that the token budget cut, calls in reasoning.
    The errors of the strict reading are kept. Never raises.
    """
    strict = parse(text, wire=wire, tools=tools, truncated=truncated)
    if strict.calls or strict.truncated:
        return strict
    calls = tuple(_objects(text.rpartition(THINK_CLOSE)[2] if strict.reasoning else text, known_names(tools)))
    if not calls:
        return strict
    return Parsed(
        calls=calls,
        errors=strict.errors,
        reasoning=strict.reasoning,
        blocks=(Block(calls=calls, raw=text),),
        opened=strict.opened,
        closed=strict.closed,
        forged=strict.forged,
    )


def _objects(text: str, names: Collection[str] | None) -> list[ToolCall]:
    reader, position = Reader(), 0
    calls: list[ToolCall] = []
    for _ in range(_TRIES):
        position = text.find("{", position)
        if position < 0 or len(calls) == MAX_CALLS:
            break
        value, end, fault = reader.read(text, position)
        call = None if fault else _call(value, reader)
        position = end if call else position + 1
        if call and (names is None or call.name in names):
            calls.append(call)
    return calls


def _call(value: Any, reader: Reader) -> ToolCall | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        arguments = reader.read(arguments).value
    return ToolCall(value["name"], arguments) if isinstance(arguments, Mapping) else None
