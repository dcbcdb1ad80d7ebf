"""Chat requests to prompt ids, by the template of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slca.chat.strict_json import Reader
from slca.serve.errors import ApiError
from slca.types import Message

if TYPE_CHECKING:
    from slca.serve.schema import ChatMessage

MAX_ARGUMENTS = 1 << 20  # bytes of one call's arguments in a history


def conversation(messages: Sequence[ChatMessage]) -> list[Message]:
    """The messages as training keeps them: arguments parsed, text parts joined, each tool result with the name of its call.

    Raises ApiError for arguments that are no JSON object and for a result of a call that its turn does not have.
    """
    result: list[Message] = []
    names: dict[str, str] = {}
    for i, message in enumerate(messages):
        plain = Message(role="system" if message.role == "developer" else message.role, content=_text(message.content))
        if message.reasoning_content:
            plain["reasoning_content"] = message.reasoning_content
        if message.role != "tool":
            names = {}
        if message.tool_calls and message.role == "assistant":
            plain["tool_calls"] = [_call(call, f"messages[{i}].tool_calls[{k}]") for k, call in enumerate(message.tool_calls)]
            names = {call.id: call.function.name for call in message.tool_calls if call.id}
        if message.role == "tool" and message.tool_call_id:
            if message.tool_call_id not in names:
                where = f"messages[{i}].tool_call_id"
                raise ApiError(400, f"{where}: the turn before it has no such call", param=where)
            plain["tool_call_id"] = message.tool_call_id
        if message.role == "tool" and (name := message.name or names.get(message.tool_call_id or "")):
            plain["name"] = name
        result.append(plain)
    return result


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part.text for part in content)
    return content or ""


def _call(call: Any, where: str) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": arguments(call.function.arguments, where)}
    return {"id": call.id, "type": "function", "function": function}


def arguments(text: str, where: str) -> Mapping[str, Any]:
    """A call's arguments from their JSON text ("" = none), read as the parser reads them, so they are rendered as they were."""
    text = text.strip()
    if not text:
        return {}
    value, end, fault = Reader(max_bytes=MAX_ARGUMENTS).read(text)
    if fault is None and end == len(text) and isinstance(value, dict):
        return value
    reason = fault.detail if fault is not None else "text follows it" if end != len(text) else "it is not an object"
    raise ApiError(
        400, f"{where}.function.arguments is not the text of a JSON object: {reason}", param=f"{where}.function.arguments"
    )
