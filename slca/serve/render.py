"""Chat requests to prompt ids, by the template of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slca.chat.strict_json import Reader
from slca.serve.errors import ApiError
from slca.types import Message

if TYPE_CHECKING:
    from slca.serve.schema import Call, ChatMessage

MAX_ARGUMENTS = 1 << 20  # bytes of one call's arguments in a history


def conversation(messages: Sequence[ChatMessage]) -> list[Message]:
    """The messages as training keeps them: arguments parsed, text parts joined, each tool result with the name of its call.

    A result without `tool_call_id` answers the first call of its turn that has none yet. Raises ApiError for arguments that are no
    JSON object, for calls of another than the assistant, for a result that answers no call and for a call without a result.
    """
    result: list[Message] = []
    turn = Turn()
    for i, message in enumerate(messages):
        plain = Message(role="system" if message.role == "developer" else message.role, content=_text(message.content))
        if message.reasoning_content:
            plain["reasoning_content"] = message.reasoning_content
        if message.role == "tool":
            name = turn.answered(message, f"messages[{i}]")
            if message.tool_call_id:
                plain["tool_call_id"] = message.tool_call_id
            if name := message.name or name:
                plain["name"] = name
        else:
            turn.closed()
            turn = Turn()
        if message.tool_calls:
            if message.role != "assistant":
                where = f"messages[{i}].tool_calls"
                raise ApiError(
                    400, f"{where}: only an assistant message calls tools, this is a {message.role} message", param=where
                )
            turn = Turn(message.tool_calls, f"messages[{i}].tool_calls")
            plain["tool_calls"] = [_call(call, f"messages[{i}].tool_calls[{k}]") for k, call in enumerate(message.tool_calls)]
        result.append(plain)
    turn.closed()
    return result


class Turn:
    """The calls of an assistant message that wait for their results. where: its place in the request. Raises ApiError."""

    def __init__(self, calls: Sequence[Call] = (), where: str = ""):
        self._where, self._calls = where, calls
        self._waiting = list(range(len(calls)))
        known: set[str] = set()
        for k, call in enumerate(calls):
            if call.id and call.id in known:
                raise ApiError(400, f"{where}[{k}].id: another call of this message has the same id", param=f"{where}[{k}].id")
            known.add(call.id)

    def answered(self, message: ChatMessage, where: str) -> str:
        """The name of the call that a tool message answers."""
        if not self._calls:
            said = f"{where}: a tool message must follow the assistant message whose tool_calls it answers"
            raise ApiError(400, said, param=where)
        asked = message.tool_call_id
        found = [k for k in self._waiting if not asked or self._calls[k].id == asked]
        if not found:
            where = f"{where}.tool_call_id" if asked else where
            if not asked:
                said = "every call of the turn before it has its result already"
            elif any(call.id == asked for call in self._calls):
                said = "this call has its result already"
            else:
                said = "the turn before it has no such call"
            raise ApiError(400, f"{where}: {said}", param=where)
        self._waiting.remove(found[0])
        return self._calls[found[0]].function.name

    def closed(self) -> None:
        """No more results come."""
        if self._waiting:
            k = self._waiting[0]
            name = f" ({self._calls[k].id!r:.100})" if self._calls[k].id else ""
            said = f"{self._where}[{k}]: this call{name} has no result; a tool message with its id must follow"
            raise ApiError(400, said, param=f"{self._where}[{k}]")


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
