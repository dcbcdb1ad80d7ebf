"""Model text to calls: one strict parser per wire format, used by rollout, reward, evaluation and server alike.

`hermes` (Qwen, SmolLM2, the tiny tokenizer)   <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number, text between
`llama_json` (Llama 3.x)                       the turn is {"name": ..., "parameters": {...}}, several separated by ";" or white space
`llama_python` (Llama 3.1 built-in tools)      <|python_tag|>name.call(key="value", ...), values are JSON (or True, False, None);
                                               for evaluation and serving: to train, the chat template must write it too (`checks`)

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

from slca.chat import llama
from slca.chat.markers import CALL_CLOSE, CALL_OPEN, ENVIRONMENT_MARKERS, THINK_CLOSE, THINK_OPEN, any_of
from slca.chat.strict_json import MAX_BYTES, MAX_DEPTH, STRING, Fault, Reader, skip_space
from slca.chat.turn import Turn, read_calls
from slca.types import Parsed

WIRES = ("hermes", "llama_json", "llama_python")
MAX_CALLS = 20  # usable calls of one turn

_CALL_TAG = any_of(CALL_OPEN, CALL_CLOSE)
_QUOTE_OR_CALL_TAG = any_of('"', CALL_OPEN, CALL_CLOSE)
_TAG = any_of(CALL_OPEN, CALL_CLOSE, THINK_OPEN, THINK_CLOSE, *ENVIRONMENT_MARKERS)


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

    text: the decoded turn without its stop token, control strings kept. tools: known names, function specs or a `ToolSet`; a call
    of any other name is an `unknown_tool` error; None = every name is known. truncated: the turn met its token budget.
    max_calls, max_depth (levels), max_bytes (UTF-8, a call): what goes beyond is a typed error.

    Never raises on any text. Errors: see `slca.types.CallError`; each message has at most 1,000 characters.
    Raises ValueError on an unknown `wire`, which is a mistake of the program, not of the model.
    """
    if wire not in WIRES:
        raise ValueError(f"unknown wire format {wire!r}: chat.wire is one of {', '.join(WIRES)}")
    turn = Turn(known_names(tools), truncated, max_calls, Reader(max_depth=max_depth, max_bytes=max_bytes))
    if wire == "hermes":
        _hermes(turn, text)
    elif wire == "llama_json":
        llama.read_json(turn, text)
    else:
        llama.read_python(turn, text)
    return turn.parsed()


def known_names(tools: Collection[Any] | None) -> Collection[str] | None:
    """Tool names from names, function specs or a `ToolSet`; a set or mapping is taken as it is, for speed."""
    if tools is None or isinstance(tools, (set, frozenset, Mapping)):
        return tools
    if isinstance(known := getattr(tools, "tools", None), Mapping):
        return known
    return {tool if isinstance(tool, str) else tool.get("function", tool).get("name") for tool in tools}


def _hermes(turn: Turn, text: str) -> None:
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


def _hermes_block(turn: Turn, text: str, start: int) -> int:
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
            turn.block(raw, [turn.fault(fault, raw, ended=True)] if fault else read_calls(turn, value, raw))
            return after + len(CALL_CLOSE)
        fault = fault or Fault("malformed_json", f"the JSON value is not followed by {CALL_CLOSE}", after, after == len(text))
    closing = _resync(text, start, fault.at)
    raw = text[start : closing.start() if closing else None]
    turn.block(raw, [turn.fault(fault, raw, ended=closing is not None)])
    return _close(turn, text, closing)


def _close(turn: Turn, text: str, tag: re.Match[str] | None) -> int:
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
