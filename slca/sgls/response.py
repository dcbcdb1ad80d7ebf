"""The check of a simulated body, and the cut of a long one: JSON in, JSON out, nothing that could be read as markup."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

MAX_BODY = 256 * 2**10  # characters of a body before any cut
MAX_PATCH = 32 * 2**10  # characters of one state patch
MAX_DEPTH = 64  # levels
PAPER_CUT = "...(truncated)..."  # verl's marker, as in the paper's runs

# Markup of the families we serve; inside a JSON string `<` is written as an escape, which changes no value.
_MARKUP = re.compile(
    r"<(?=[/|]?\s*(?:tool_call|tool_response|tools?\b|think|response\b|start_of_turn|end_of_turn|\|?[a-z_]+\|?>))"
)


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(digits)
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_ENCODER = json.JSONEncoder(ensure_ascii=False)


class InvalidResponse(Exception):
    """A body that the policy must not see. kind: empty | not_json | too_large | too_deep | schema | keys."""

    def __init__(self, kind: str, message: str = ""):
        super().__init__(message or kind)
        self.kind = kind


def loads(text: str) -> Any:
    """The JSON value of a body. Raises InvalidResponse: prose, NaN, infinities, lone surrogates, too deep, too large."""
    if not text:
        raise InvalidResponse("empty", "it was empty")
    if len(text) > MAX_BODY:
        raise InvalidResponse("too_large", f"it had more than {MAX_BODY} characters")
    try:
        value = _DECODER.decode(text)
        if not text.isascii() or "\\u" in text:  # else no surrogate can be in it
            (text + dumps(value)).encode()
    except RecursionError:
        raise InvalidResponse("too_deep", f"it was nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:
        raise InvalidResponse("not_json", "it was not one JSON value") from None
    if text.count("[") + text.count("{") > MAX_DEPTH and _deeper(value, MAX_DEPTH):
        raise InvalidResponse("too_deep", f"it was nested deeper than {MAX_DEPTH} levels")
    return value


def dumps(value: Any) -> str:
    """The wire text of a body, in one form whatever the backend wrote (`json.dumps` with `ensure_ascii=False`)."""
    return _ENCODER.encode(value)


def wire(value: Any) -> str:
    """The text that the policy reads: `dumps` in which no chat or call marker stands literally; the same value."""
    text = dumps(value)
    return _MARKUP.sub("\\\\u003c", text) if "<" in text else text


def top_keys(text: str) -> frozenset[str]:
    """Keys of a recorded body (empty unless it is a JSON object)."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(value) if isinstance(value, dict) else frozenset()


def check(value: Any, violation: Callable[[Any], str | None] | None, keys: frozenset[str] = frozenset()) -> None:
    """Raise InvalidResponse unless `value` obeys the declared schema (`violation` gives the first fault or None) and has the
    `keys` learned from recorded bodies. A body {"error": ...} alone is the simulated API's own error and obeys any schema."""
    if api_error(value):
        return
    if violation is not None and (fault := violation(value)) is not None:
        raise InvalidResponse("schema", f"it violates the response schema {fault}"[:300])
    if keys and not (isinstance(value, dict) and keys <= value.keys()):
        raise InvalidResponse("keys", f"it lacks keys that this tool's responses have: {sorted(keys)}"[:300])


def api_error(value: Any) -> bool:
    """Status is read from the field, never from words: an object whose only key is `error`."""
    return isinstance(value, dict) and len(value) == 1 and "error" in value and value["error"] is not None


def with_patch(schema: Mapping[str, Any] | None, keys: Iterable[str] = ()) -> dict[str, Any]:
    """Schema of a reply in kv mode: {"response": body, "state_patch": object}; references of the body stay inside it.

    keys: names that the patch may well hold (any other is allowed too)."""
    body = dict(schema or {})
    definitions: dict[str, Any] = {name: body.pop(name) for name in ("$defs", "definitions") if name in body}
    patch = {"type": "object", "properties": {key: {} for key in keys}}
    properties = {"response": body, "state_patch": patch}
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False, **definitions}


def split_patch(value: Any) -> tuple[Any, dict[str, Any]]:
    """Body and patch of a reply in kv mode. Raises InvalidResponse."""
    if not isinstance(value, dict) or value.keys() != {"response", "state_patch"} or not isinstance(value["state_patch"], dict):
        raise InvalidResponse("state_patch", 'it was not {"response": ..., "state_patch": {...}}')
    if len(dumps(value["state_patch"])) > MAX_PATCH:
        raise InvalidResponse("state_patch", f"its state_patch had more than {MAX_PATCH} characters")
    return value["response"], value["state_patch"]


def cut_middle(text: str, limit: int) -> str:
    """The published cut: at most `limit` characters of the body, from both ends, around a marker."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return text[:half] + PAPER_CUT + text[len(text) - half :]


def cut_json(value: Any, limit: int) -> str:
    """`wire(value)`, at most `limit` characters, still JSON: long strings lose their middle, long lists their tail, each with
    a marker that says how much is gone; what cannot be shortened so is quoted as {"truncated": text}."""
    text, keep = wire(value), 64
    while len(text) > limit and keep:
        text = wire(_shortened(value, string=4 * keep, items=keep))
        keep //= 2
    room = limit
    while len(text) > limit and room:
        room //= 2  # escapes may grow the text again
        text = wire({"truncated": cut_middle(dumps(value), room)})
    return text


def _shortened(value: Any, *, string: int, items: int) -> Any:
    if isinstance(value, str) and len(value) > string + 24:
        half = max(1, string // 2)
        return f"{value[:half]}…[{len(value) - 2 * half} characters]…{value[-half:]}"
    if isinstance(value, dict):
        return {key: _shortened(item, string=string, items=items) for key, item in value.items()}
    if isinstance(value, list):
        kept = [_shortened(item, string=string, items=items) for item in value[:items]]
        return kept if len(value) <= items else [*kept, f"…[{len(value) - items} more]"]
    return value


def _deeper(value: Any, limit: int) -> bool:
    """True if lists and objects nest deeper than `limit` levels; level by level, so that depth itself cannot hurt."""
    level = [value]
    for _ in range(limit + 1):
        level = [node for node in level if isinstance(node, dict | list)]
        if not level:
            return False
        level = [child for node in level for child in _children(node)]
    return True


def _children(node: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return node.values() if isinstance(node, dict) else node
