"""Several schemas as one, for code that makes values: what `$ref`, its siblings and `allOf` say in many places, said in one.

The result is never wider than its parts together, as far as the keywords that values are made from go; for `not`, `if`,
`contains` and patterns that stand in several parts, the check of the finished value has the last word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slca.tasks.vet import Refused, resolve

MAX_HOPS = 64  # references and `allOf` inside one another on the same value
MAX_BRANCHES = 64  # kept of two `anyOf` multiplied


class _Contradiction(Exception):
    """No value obeys both parts."""


def flat(root: Any, schema: Any, hops: int = 0) -> dict[str, Any] | None:
    """`schema` without `$ref` and `allOf` at its top (parts of it may get some); None where its parts contradict each other.

    root: the document that references point into. A schema that has neither is returned as it is. Raises Refused for a
    reference that points to nothing or back to itself.
    """
    if not isinstance(schema, Mapping):
        return None if schema is False else {}
    if "$ref" not in schema and "allOf" not in schema:
        return schema  # type: ignore[return-value]
    if hops > MAX_HOPS:
        raise Refused("$ref leads back to itself on the same value")
    parts = [resolve(root, schema["$ref"])] if "$ref" in schema else []
    found: dict[str, Any] = {}
    try:
        for part in (*parts, *schema.get("allOf", ())):
            one = flat(root, part, hops + 1)
            if one is None:
                return None
            found = _both(found, one)
        return _both(found, {key: part for key, part in schema.items() if key not in ("$ref", "allOf")})
    except _Contradiction:
        return None


def choices(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values that `const` or `enum` leaves, those of a wrong type taken out; None where there is neither."""
    if "const" in schema:
        values = [schema["const"]]
    elif isinstance(schema.get("enum"), list):
        values = schema["enum"]
    else:
        return None
    kinds = schema.get("type")
    if kinds is None:
        return values
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return [value for value in values if any(_is(kind, value) for kind in kinds)]


def _both(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    if not a or not b:
        return dict(a or b)
    out = {**a, **b}
    for key in a.keys() & b.keys() & _JOINS.keys():
        out[key] = _JOINS[key](a[key], b[key])
    if "properties" in out:
        names = dict.fromkeys((*a.get("properties", ()), *b.get("properties", ())))
        out["properties"] = {name: _all(_field(a, name), _field(b, name)) for name in names}
    if "prefixItems" in out:
        count = max(len(a.get("prefixItems", ())), len(b.get("prefixItems", ())))
        out["prefixItems"] = [_all(_item(a, i), _item(b, i)) for i in range(count)]
    if "const" in out and not _among(out["const"], out.get("enum", [out["const"]])):
        raise _Contradiction
    if choices(out) == [] or not _room(out):
        raise _Contradiction
    return out


def _field(schema: Mapping[str, Any], name: str) -> Any:
    """What the schema says of a property; where patterns of names decide, nothing is said here."""
    properties = schema.get("properties", {})
    if name in properties:
        return properties[name]
    return True if "patternProperties" in schema else schema.get("additionalProperties", True)


def _item(schema: Mapping[str, Any], index: int) -> Any:
    first = schema.get("prefixItems", ())
    return first[index] if index < len(first) else schema.get("items", True)


def _room(schema: Mapping[str, Any]) -> bool:
    """Whether the bounds of the schema's only type leave anything between them."""
    low, high = _BOUNDS.get(schema["type"] if isinstance(schema.get("type"), str) else "", ("", ""))
    return low not in schema or high not in schema or schema[low] <= schema[high]


_BOUNDS = {
    "integer": ("minimum", "maximum"), "number": ("minimum", "maximum"), "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"), "object": ("minProperties", "maxProperties"),
}  # fmt: skip


def _all(a: Any, b: Any) -> Any:
    if a is False or b is False:
        return False
    if a is b or b is True or b == {}:
        return a
    return b if a is True or a == {} else {"allOf": [a, b]}


def _types(a: str | list[str], b: str | list[str]) -> str | list[str]:
    wide, other = ([kinds] if isinstance(kinds, str) else kinds for kinds in (a, b))
    kept = [kind for kind in wide if kind in other or (kind == "integer" and "number" in other)]
    kept += [kind for kind in other if kind == "integer" and "number" in wide and kind not in kept]
    if not kept:
        raise _Contradiction
    return kept[0] if len(kept) == 1 else kept


def _is(kind: str, value: Any) -> bool:
    """Whether a JSON value has this type: a boolean is no number, 2.0 is an integer."""
    if kind == "integer":
        return isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
    return isinstance(value, _CLASSES[kind]) and (kind != "number" or not isinstance(value, bool))


_CLASSES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "number": int | float, "boolean": bool, "null": type(None)
}  # fmt: skip


def _among(value: Any, values: Iterable[Any]) -> bool:
    return any(isinstance(value, bool) == isinstance(other, bool) and value == other for other in values)


def _same(a: Any, b: Any) -> Any:
    if not _among(a, [b]):
        raise _Contradiction
    return a


def _shared(a: list[Any], b: list[Any]) -> list[Any]:
    if not (kept := [value for value in a if _among(value, b)]):
        raise _Contradiction
    return kept


def _multiple(a: float, b: float) -> float:
    if isinstance(a, int) and isinstance(b, int):
        return math.lcm(a, b)
    return a if b and a % b == 0 else b


def _union(a: Iterable[Any], b: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys([*a, *b]))


def _product(a: list[Any], b: list[Any]) -> list[Any]:
    return [_all(x, y) for x in a for y in b][:MAX_BRANCHES]


def _patterns(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _all(a.get(name, True), b.get(name, True)) for name in _union(a, b)}


_JOINS: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
    **dict.fromkeys(("items", "propertyNames", "additionalProperties"), _all),
    **dict.fromkeys(("anyOf", "oneOf"), _product),
    "type": _types, "const": _same, "enum": _shared, "required": _union, "multipleOf": _multiple, "patternProperties": _patterns,
    "uniqueItems": lambda a, b: a or b,
}  # fmt: skip
