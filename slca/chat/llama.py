"""The two Llama wire formats: JSON objects that are the whole turn, and `name.call(key=value)` behind a tag.

Rules and limits: see `slca.chat.parse`. No Python is run or compiled: arguments are read one JSON value at a time.
"""

from __future__ import annotations

import re
from typing import Any

from slca.chat.markers import ENVIRONMENT_MARKERS, PYTHON_TAG, THINK_CLOSE, THINK_OPEN, any_of
from slca.chat.strict_json import Fault, Reader, skip_space
from slca.chat.turn import Turn, message, read_calls
from slca.types import CallError

_MARKER = any_of(*ENVIRONMENT_MARKERS)
_PYTHON_CALL = re.compile(r"([\w.:/-]+)\.call\(\s*")
_PYTHON_KEY = re.compile(r"([A-Za-z_]\w*)\s*=\s*")
_PYTHON_CONSTANT = re.compile(r"(True|False|None)\b")
_PYTHON_CONSTANTS = {"True": True, "False": False, "None": None}


def _after_reasoning(turn: Turn, text: str) -> str:
    """Note the reasoning that opens a Llama turn; the rest of the turn."""
    body = text.lstrip()
    if body.startswith(("{", PYTHON_TAG)):
        return body
    thought, closed, rest = body.partition(THINK_CLOSE)
    if closed or thought.startswith(THINK_OPEN):
        turn.reasoning.append(thought.removeprefix(THINK_OPEN))
        return rest.lstrip()
    return body


def _plain(turn: Turn, text: str) -> None:
    turn.text.append(text)
    turn.forged = turn.forged or _MARKER.search(text) is not None


def read_json(turn: Turn, text: str) -> None:
    """A turn of JSON objects, bare or behind the tag; anything else is an answer."""
    text = _after_reasoning(turn, text)
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
        turn.block(raw, [turn.fault(fault, raw, ended=True)] if fault else read_calls(turn, value, raw, key="parameters"))
        position = _after_separator(text, end)
    _leftover(turn, text[position:])


def read_python(turn: Turn, text: str) -> None:
    """Text, then the tag, then calls."""
    text = _after_reasoning(turn, text)
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
        turn.block(raw, read_calls(turn, {"name": match.group(1), "arguments": arguments}, raw))
        position = _after_separator(body, end)
    _leftover(turn, body[position:])


def _after_separator(text: str, end: int) -> int:
    """Behind the white space and at most one ";" that part two Llama calls."""
    at = skip_space(text, end)
    return skip_space(text, at + 1) if text.startswith(";", at) else at


def _leftover(turn: Turn, text: str) -> None:
    """A Llama turn that calls consists of calls alone."""
    if text:
        turn.forged = turn.forged or _MARKER.search(text) is not None
        turn.block(text, [CallError("malformed_json", message("something that is not a call follows the calls", text))])


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
