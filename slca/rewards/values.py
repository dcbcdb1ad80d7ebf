"""When are two argument values equal, and two calls the same? Three readings, from forgiving to exact."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from slca.types import ToolCall

ValueEq = Callable[[Any, Any], bool]

NUMBER_TOLERANCE = 1e-9
BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def loose(a: Any, b: Any) -> bool:
    """HierR's published comparison: text without case and outer blanks, else numbers, else booleans, else sorted JSON."""
    if type(a) is type(b) and type(a) in (int, float):  # these two lines decide nearly every comparison
        return abs(a - b) <= NUMBER_TOLERANCE
    if type(a) is str and a == b:
        return True
    if a is None or b is None:
        return a is None and b is None
    left, right = str(a).strip().lower(), str(b).strip().lower()
    if left == right:
        return True
    try:
        if abs(float(left) - float(right)) <= NUMBER_TOLERANCE:
            return True
    except (ValueError, OverflowError):
        pass
    if left in BOOLEANS and right in BOOLEANS:
        return BOOLEANS[left] == BOOLEANS[right]
    if isinstance(a, Mapping | list | tuple) and isinstance(b, Mapping | list | tuple):
        return _canonical(a) == _canonical(b)
    return False


def typed(a: Any, b: Any) -> bool:
    """Equal JSON types; strings without case and outer blanks, numbers within 1e-9, containers member by member."""
    if isinstance(a, str) and isinstance(b, str):
        return a.strip().lower() == b.strip().lower()
    return _same(a, b, typed, NUMBER_TOLERANCE)


def strict(a: Any, b: Any) -> bool:
    """Equal JSON values: exact strings, 1 equals 1.0 (JSON has one number type), true is never 1."""
    if isinstance(a, str) and isinstance(b, str):
        return a == b
    return _same(a, b, strict, 0.0)


VALUE_EQ: dict[str, ValueEq] = {"loose": loose, "strict": strict, "typed": typed}


def same_call(a: ToolCall, b: ToolCall, equal: ValueEq = strict) -> bool:
    """Equal names and equal arguments, key by key."""
    return (
        a.name == b.name
        and a.arguments.keys() == b.arguments.keys()
        and all(equal(value, b.arguments[key]) for key, value in a.arguments.items())
    )


def identity(call: ToolCall) -> str:
    """Equal for equal calls (name and arguments, whatever the order of keys). Cheap; not the cache key of the simulator."""
    return call.name + _canonical(call.arguments)


def _canonical(value: Any) -> str:
    return _ENCODER.encode(value)


def _jsonable(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


_ENCODER = json.JSONEncoder(sort_keys=True, default=_jsonable, ensure_ascii=False)


def _same(a: Any, b: Any, inner: ValueEq, tolerance: float) -> bool:
    if isinstance(a, bool) or isinstance(b, bool) or a is None or b is None:
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        try:
            return a == b or abs(a - b) <= tolerance
        except OverflowError:  # an integer beyond the floats beside a float
            return False
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(inner(value, b[key]) for key, value in a.items())
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(inner(x, y) for x, y in zip(a, b))
    return False
