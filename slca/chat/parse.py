"""Model text to calls: one strict parser per wire format, used by rollout, reward, evaluation and server alike.

`hermes` (Qwen, SmolLM2, the tiny tokenizer)   <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number, text between
`llama_json` (Llama 3.x)                       the turn is {"name": ..., "parameters": {...}}, several separated by ";" or white space
`llama_python` (Llama 3.1 built-in tools)      <|python_tag|>name.call(key="value", ...), values are JSON (or True, False, None)

Rules, the same in training and evaluation:
- The end of a call is decided by its JSON value, so a tag inside a string is only text.
- What stands between <think> and </think> is reasoning, calls included. A turn whose first such tag is </think> began inside
  reasoning (some templates open it in the prompt), so all before it is reasoning.
- Arguments are a JSON object. A JSON string that holds an object is `not_object`: types are never guessed.
- A block that lacks its end (cut by the token budget, or never closed) is `truncated`: not run, not repaired.
- An environment marker outside strings and reasoning (a tool result or a turn header that the policy wrote itself) is `forged`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from slca.chat.strict_json import MAX_BYTES, MAX_DEPTH, STRING, Fault, Reader, preview, skip_space
from slca.types import Block, CallError, Parsed, ToolCall

WIRES = ("hermes", "llama_json", "llama_python")
MAX_CALLS = 20  # usable calls of one turn
MAX_MESSAGE = 1000  # characters of an error message

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
PYTHON_TAG = "<|python_tag|>"
ENVIRONMENT_MARKERS = (
    "<tool_response>",
    "</tool_response>",
    "<|im_start|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<start_of_turn>",
)


def _any(*words: str) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, words)))


_CALL_TAG = _any(CALL_OPEN, CALL_CLOSE)
_QUOTE_OR_CALL_TAG = _any('"', CALL_OPEN, CALL_CLOSE)
_MARKER = _any(*ENVIRONMENT_MARKERS)
_TAG = _any(CALL_OPEN, CALL_CLOSE, THINK_OPEN, THINK_CLOSE, *ENVIRONMENT_MARKERS)
_PYTHON_CALL = re.compile(r"([\w.:/-]+)\.call\(\s*")
_PYTHON_KEY = re.compile(r"([A-Za-z_]\w*)\s*=\s*")
_PYTHON_CONSTANT = re.compile(r"(True|False|None)\b")
_PYTHON_CONSTANTS = {"True": True, "False": False, "None": None}


def parse(
    text: str,
    *,
    wire: str = "hermes",
    tools: Collection[Any] | None = None,
    truncated: bool = False,
    max_calls: int = MAX_CALLS,
    max_depth: int = MAX_DEPTH,
    max_bytes: int = MAX_BYTES,
) -> Parsed:
    """What one assistant turn says.

    text: the decoded turn without its stop token, control strings kept. tools: known names (or function specs); a call of
    any other name is an `unknown_tool` error; None = every name is known. truncated: the turn met its token budget.
    max_calls, max_depth (levels), max_bytes (UTF-8, a call): what goes beyond is a typed error.

    Never raises on any text. Errors: see `slca.types.CallError`; each message has at most 1,000 characters.
    Raises ValueError on an unknown `wire`, which is a mistake of the program, not of the model.
    """
    if wire not in WIRES:
        raise ValueError(f"unknown wire format {wire!r}: chat.wire is one of {', '.join(WIRES)}")
    turn = _Turn(_names(tools), truncated, max_calls, Reader(max_depth=max_depth, max_bytes=max_bytes))
    if wire == "hermes":
        _hermes(turn, text)
    elif wire == "llama_json":
        _llama_json(turn, _after_reasoning(turn, text))
    else:
        _llama_python(turn, _after_reasoning(turn, text))
    return turn.parsed()


def _names(tools: Collection[Any] | None) -> Collection[str] | None:
    if tools is None or isinstance(tools, (set, frozenset, Mapping)):
        return tools
    return {tool if isinstance(tool, str) else tool.get("function", tool).get("name") for tool in tools}


class _Turn:
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
        self.blocks.append(Block(tuple(calls), tuple(errors), raw))

    def stray(self, message: str) -> None:
        """A fault outside any block."""
        if not self.full and len(self.errors) < 2 * self.max_calls:
            self.errors.append(CallError("malformed_json", message))

    def fault(self, fault: Fault, raw: str, ended: bool) -> CallError:
        """The error of a block whose value is unusable. ended: the end of the block was found."""
        if not ended and (fault.cut or self.truncated):
            return CallError("truncated", _message("the call is not complete: the turn ended inside it", raw))
        return CallError(fault.kind, _message(f"the call is not usable: {fault.detail}", raw))

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
    return _sound("\n".join(stripped for piece in pieces if (stripped := piece.strip())))


def _sound(text: str) -> str:
    """Half surrogates become U+FFFD, so that the text can be encoded and written."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _message(what: str, raw: str) -> str:
    """An error with a bounded look at its cause: an echo of a huge payload would inflate the next prompt."""
    raw = raw.strip()
    size = f" ({len(raw):,} characters)" if len(raw) > 200 else ""
    shown = _sound(raw if len(raw) <= 200 else raw[:199] + "…")
    return f"{what}. Got{size}: {shown}"[:MAX_MESSAGE]


def _calls(turn: _Turn, value: Any, raw: str, key: str = "arguments") -> list[ToolCall | CallError]:
    """The calls of one block: an object, or a list of objects."""
    values = value if isinstance(value, list) else [value]
    if not values:
        return [CallError("not_object", _message("a call is a JSON object; the list is empty", raw))]
    return [_call(turn, item, raw, key) for item in values[: turn.max_calls + 1]]


def _call(turn: _Turn, value: Any, raw: str, key: str) -> ToolCall | CallError:
    if not isinstance(value, dict):
        return CallError("not_object", _message(f"a call is a JSON object, not {_json_type(value)}", raw))
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return CallError("missing_name", _message('the call has no "name" (a string)', raw))
    if key not in value:
        return CallError("missing_arguments", _message(f'the call of {preview(name, 80)} has no "{key}"', raw))
    arguments = value[key]
    if not isinstance(arguments, dict):
        what = f'"{key}" of {preview(name, 80)} is a JSON object, not {_json_type(arguments)}'
        return CallError("not_object", _message(what, raw))
    if turn.names is not None and name not in turn.names:
        return CallError("unknown_tool", f"there is no tool named {preview(name, 200)}"[:MAX_MESSAGE])
    return ToolCall(name, arguments)


def _json_type(value: Any) -> str:
    names = {str: "a string", list: "a list", dict: "an object", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _hermes(turn: _Turn, text: str) -> None:
    begin = position = 0  # of the running piece of text; where to look for the next tag
    while match := _TAG.search(text, position):
        tag, start, position = match.group(), match.start(), match.end()
        if tag in ENVIRONMENT_MARKERS:
            turn.forged = True
            continue
        turn.text.append(text[begin:start])
        if tag == CALL_OPEN:
            position = _hermes_block(turn, text, position)
        elif tag == THINK_OPEN:
            turn.seen_think = True
            stop = text.find(THINK_CLOSE, position)
            turn.reasoning.append(text[position : stop if stop >= 0 else None])
            position = stop + len(THINK_CLOSE) if stop >= 0 else len(text)
        elif tag == CALL_CLOSE:
            turn.closed += 1
            turn.stray(f"{CALL_CLOSE} without {CALL_OPEN} before it")
        elif not turn.seen_think:
            turn.reset()
            turn.seen_think = True
            turn.reasoning.append(text[:start])
        begin = position
    turn.text.append(text[begin:])


def _hermes_block(turn: _Turn, text: str, start: int) -> int:
    """Read the block whose opening tag ends at `start`; the offset to go on from."""
    turn.opened += 1
    if turn.full:  # nothing is read any more: the turn costs linear time however many blocks it opens
        return _close(turn, text, _CALL_TAG.search(text, start))
    value, end, fault = turn.reader.read(text, start)
    if fault is None or fault.kind != "malformed_json":  # the end of the value is known
        after = skip_space(text, end)
        if text.startswith(CALL_CLOSE, after):
            turn.closed += 1
            raw = text[start:after]
            turn.block(raw, [turn.fault(fault, raw, ended=True)] if fault else _calls(turn, value, raw))
            return after + len(CALL_CLOSE)
        fault = fault or Fault("malformed_json", f"the JSON value is not followed by {CALL_CLOSE}", after, after == len(text))
    closing = _resync(text, start, fault.at)
    raw = text[start : closing.start() if closing else None]
    turn.block(raw, [turn.fault(fault, raw, ended=closing is not None)])
    return _close(turn, text, closing)


def _close(turn: _Turn, text: str, tag: re.Match[str] | None) -> int:
    """End a block at `tag`: its own closing tag, the opening tag of the next block, or None = the end of the text."""
    if tag is None:
        return len(text)
    if tag.group() == CALL_OPEN:
        return tag.start()
    turn.closed += 1
    return tag.end()


def _resync(text: str, start: int, fault_at: int) -> re.Match[str] | None:
    """The call tag that ends a damaged block: the first one outside the strings that were sound before the fault."""
    position = start
    while match := _QUOTE_OR_CALL_TAG.search(text, position):
        if match.group() != '"':
            return match
        string = STRING.match(text, match.start())
        if string is None or string.end() > fault_at:
            return _CALL_TAG.search(text, match.start())
        position = string.end()
    return None


def _after_reasoning(turn: _Turn, text: str) -> str:
    """Note the reasoning that opens a Llama turn; the rest of the turn."""
    body = text.lstrip()
    if body.startswith(("{", PYTHON_TAG)):
        return body
    thought, closed, rest = body.partition(THINK_CLOSE)
    if closed or thought.startswith(THINK_OPEN):
        turn.reasoning.append(thought.removeprefix(THINK_OPEN))
        return rest.lstrip()
    return body


def _plain(turn: _Turn, text: str) -> None:
    turn.text.append(text)
    turn.forged = turn.forged or _MARKER.search(text) is not None


def _llama_json(turn: _Turn, text: str) -> None:
    position = len(PYTHON_TAG) if text.startswith(PYTHON_TAG) else 0
    position = skip_space(text, position)
    if not text.startswith("{", position):
        return _plain(turn, text)
    while text.startswith("{", position):
        turn.opened += 1
        value, end, fault = turn.reader.read(text, position)
        if fault is not None and fault.kind == "malformed_json":
            raw = text[position:]
            return turn.block(raw, [turn.fault(fault, raw, ended=False)])
        turn.closed += 1
        raw = text[position:end]
        turn.block(raw, [turn.fault(fault, raw, ended=True)] if fault else _calls(turn, value, raw, key="parameters"))
        position = _after_separator(text, end)
    _leftover(turn, text[position:])


def _llama_python(turn: _Turn, text: str) -> None:
    before, tag, body = text.partition(PYTHON_TAG)
    _plain(turn, before)
    position = skip_space(body, 0) if tag else len(body)
    if tag and position == len(body):
        turn.opened += 1
        turn.block(body, [turn.fault(Fault("malformed_json", "no call after the tag", 0, cut=True), body, ended=False)])
    while match := _PYTHON_CALL.match(body, position):
        turn.opened += 1
        arguments, end, fault = _python_arguments(turn.reader, body, match.end())
        if fault is not None:
            raw = body[position:]
            return turn.block(raw, [turn.fault(fault, raw, ended=False)])
        turn.closed += 1
        raw = body[position:end]
        turn.block(raw, _calls(turn, {"name": match.group(1), "arguments": arguments}, raw))
        position = _after_separator(body, end)
    _leftover(turn, body[position:])


def _after_separator(text: str, end: int) -> int:
    """Behind the white space and at most one ";" that part two Llama calls."""
    at = skip_space(text, end)
    return skip_space(text, at + 1) if text.startswith(";", at) else at


def _leftover(turn: _Turn, text: str) -> None:
    """A Llama turn that calls consists of calls alone."""
    if text:
        turn.forged = turn.forged or _MARKER.search(text) is not None
        turn.block(text, [CallError("malformed_json", _message("something that is not a call follows the calls", text))])


def _python_arguments(reader: Reader, text: str, position: int) -> tuple[dict[str, Any], int, Fault | None]:
    """Keyword arguments up to and including the closing bracket. No Python is run or compiled."""
    arguments: dict[str, Any] = {}
    while not text.startswith(")", position):
        key = _PYTHON_KEY.match(text, position)
        if key is None:
            rest = skip_space(text, position)
            return {}, position, Fault("malformed_json", "an argument is key=value", position, cut=rest == len(text))
        if key.group(1) in arguments:
            return {}, position, Fault("duplicate_key", f"the argument {key.group(1)} is there twice", position)
        if constant := _PYTHON_CONSTANT.match(text, key.end()):
            arguments[key.group(1)], end = _PYTHON_CONSTANTS[constant.group()], constant.end()
        else:
            value, end, fault = reader.read(text, key.end())
            if fault is not None:
                return {}, end, fault
            arguments[key.group(1)] = value
        position = skip_space(text, end)
        if text.startswith(",", position):
            position = skip_space(text, position + 1)
        elif not text.startswith(")", position):
            return {}, position, Fault("malformed_json", 'expected "," or ")"', position, cut=position == len(text))
    return arguments, position + 1, None
