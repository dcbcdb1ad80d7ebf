"""The parts of an assistant turn as a parser finds them: blocks of calls, typed faults, text, reasoning.

Shared by the wire formats, so that a fault has the same kind and the same bounded message in each.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from slca.chat.strict_json import Fault, Reader, preview, sound
from slca.types import Block, CallError, Parsed, ToolCall

MAX_MESSAGE = 1000  # characters of an error message


class Turn:
    """The parts of a turn as they are found."""

    def __init__(self, names: Collection[str] | None, truncated: bool, max_calls: int, reader: Reader):
        self.names, self.truncated, self.max_calls, self.reader = names, truncated, max_calls, reader
        self.reasoning: list[str] = []
        self.seen_think = False
        self.reset()

    def reset(self) -> None:
        """Forget everything but the reasoning."""
        self.text: list[str] = []
        self.calls: list[ToolCall] = []
        self.errors: list[CallError] = []
        self.blocks: list[Block] = []
        self.opened = self.closed = 0
        self.forged = self.full = False

    def block(self, raw: str, items: list[ToolCall | CallError]) -> None:
        """File one block; calls beyond the cap are refused with a single error for the turn."""
        if self.full:
            return
        index = len(self.blocks)
        calls = [item for item in items if isinstance(item, ToolCall)]
        errors = [CallError(item.kind, item.message, index) for item in items if isinstance(item, CallError)]
        room = self.max_calls - len(self.calls)
        if len(calls) > room or index >= self.max_calls:
            calls, self.full = calls[:room], True
            errors.append(CallError("too_many", f"more than {self.max_calls} calls in one turn; the rest was not run", index))
        self.calls += calls
        self.errors += errors
        self.blocks.append(Block(tuple(calls), tuple(errors), sound(raw)))

    def stray(self, message: str) -> None:
        """A fault outside any block."""
        if not self.full and len(self.errors) < 2 * self.max_calls:
            self.errors.append(CallError("malformed_json", message))

    def fault(self, fault: Fault, raw: str, ended: bool) -> CallError:
        """The error of a block whose value is unusable. ended: the end of the block was found."""
        if not ended and (fault.cut or self.truncated):
            return CallError("truncated", message("the call is not complete: the turn ended inside it", raw))
        return CallError(fault.kind, message(f"the call is not usable: {fault.detail}", raw))

    def parsed(self) -> Parsed:
        return Parsed(
            calls=tuple(self.calls),
            errors=tuple(self.errors),
            text=_joined(self.text),
            reasoning=_joined(self.reasoning),
            blocks=tuple(self.blocks),
            opened=self.opened,
            closed=self.closed,
            forged=self.forged,
            truncated=self.truncated,
        )


def _joined(pieces: list[str]) -> str:
    """Pieces without surrounding white space, one a line."""
    return sound("\n".join(stripped for piece in pieces if (stripped := piece.strip())))


def message(what: str, raw: str) -> str:
    """An error with a bounded look at its cause: an echo of a huge payload would inflate the next prompt."""
    raw = raw.strip()
    size = f" ({len(raw):,} characters)" if len(raw) > 200 else ""
    shown = sound(raw if len(raw) <= 200 else raw[:199] + "…")
    return f"{what}. Got{size}: {shown}"[:MAX_MESSAGE]


def read_calls(turn: Turn, value: Any, raw: str, key: str = "arguments") -> list[ToolCall | CallError]:
    """The calls of one block: an object, or a list of objects."""
    values = value if isinstance(value, list) else [value]
    if not values:
        return [CallError("not_object", message("a call is a JSON object; the list is empty", raw))]
    return [_read_call(turn, item, raw, key) for item in values[: turn.max_calls + 1]]


def _read_call(turn: Turn, value: Any, raw: str, key: str) -> ToolCall | CallError:
    if not isinstance(value, dict):
        return CallError("not_object", message(f"a call is a JSON object, not {_json_type(value)}", raw))
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return CallError("missing_name", message('the call has no "name" (a string)', raw))
    if key not in value:
        return CallError("missing_arguments", message(f'the call of {preview(name, 80)} has no "{key}"', raw))
    arguments = value[key]
    if not isinstance(arguments, dict):
        what = f'"{key}" of {preview(name, 80)} is a JSON object, not {_json_type(arguments)}'
        return CallError("not_object", message(what, raw))
    if turn.names is not None and name not in turn.names:
        return CallError("unknown_tool", f"there is no tool named {preview(name, 200)}"[:MAX_MESSAGE])
    return ToolCall(name, arguments)


def _json_type(value: Any) -> str:
    names = {str: "a string", list: "a list", dict: "an object", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
