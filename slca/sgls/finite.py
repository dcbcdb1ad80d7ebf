"""Narrowing a JSON Schema to bodies of bounded length: what is valid under the result is valid under the original.

References are followed and end at a depth, objects are closed, strings, lists and numbers get bounds where they have none.
`not`, `if` and the like are left to the check of the finished body.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from slca.tasks.flatten import choices, flat
from slca.tasks.vet import Refused

CHAR_BYTES = 6  # the longest spelling of a character in JSON, \\uXXXX
SPAN = 1_000_000  # a number without bounds lies between -SPAN and SPAN
MAX_VISITS = 5_000  # schema nodes looked at, references expanded: beyond it there is no narrowed form
_FORMATS = {
    "date": 10,
    "time": 20,
    "date-time": 32,
    "duration": 16,
    "uuid": 36,
    "ipv4": 15,
    "ipv6": 45,
    "email": 48,
    "hostname": 48,
    "uri": 64,
}
_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_IMPLIED = (
    ("properties", "object"),
    ("required", "object"),
    ("items", "array"),
    ("prefixItems", "array"),
    ("minimum", "number"),
)


class Sizes(NamedTuple):
    """How generous the result may be: characters a string, items a list, levels, optional fields kept."""

    characters: int
    items: int
    levels: int
    optional: bool


class Finite(NamedTuple):
    """A narrowed schema and the bytes of its longest body."""

    schema: dict[str, Any]
    longest: int


def narrowed(schema: Mapping[str, Any], sizes: Sizes) -> Finite | None:
    """The narrowed schema, None where a required part nests deeper than `sizes.levels`."""
    return _Narrowing(schema, sizes).any(schema, 0)


class _Narrowing:
    def __init__(self, root: Any, sizes: Sizes):
        self.root, self.sizes, self.visits = root, sizes, 0

    def any(self, node: Any, level: int) -> Finite | None:
        self.visits += 1
        if level > self.sizes.levels or self.visits > MAX_VISITS:
            return None
        try:
            found = flat(self.root, node)
        except Refused:
            return None
        if found is None:
            return None
        for keyword in ("anyOf", "oneOf"):
            if keyword in found:
                rest = {key: part for key, part in found.items() if key != keyword}
                branches = [self.any({"allOf": [rest, part]}, level) for part in found[keyword]]
                # Two branches of oneOf may both hold; one alone is the safe choice.
                return _either([part for part in branches if part is not None][: 1 if keyword == "oneOf" else None])
        if (values := choices(found)) is not None:
            return _literal(values) if values else None
        kinds = found.get("type") or next(
            (kind for keyword, kind in _IMPLIED if keyword in found), ["string", "integer", "boolean"]
        )
        kinds = [kinds] if isinstance(kinds, str) else kinds
        typed = [self._typed({**found, "type": kind}, level) for kind in kinds if kind in _TYPES]
        return _either([part for part in typed if part is not None])

    def _typed(self, node: dict[str, Any], level: int) -> Finite | None:
        match node["type"]:
            case "object":
                return self._object(node, level)
            case "array":
                return self._array(node, level)
            case "string":
                return self._string(node)
            case "integer" | "number":
                return _number(node)
            case "boolean":
                return Finite({"type": "boolean"}, 5)
            case _:
                return Finite({"type": "null"}, 4)

    def _object(self, node: dict[str, Any], level: int) -> Finite | None:
        required, properties = list(node.get("required", ())), dict(node.get("properties", {}))
        extra = node.get("additionalProperties", True)
        if node.get("minProperties", 0) > MAX_VISITS:
            return None
        names = required + [f"key{i}" for i in range(int(node.get("minProperties", 0)) - len({*required, *properties}))]
        if not self.sizes.optional or level >= 3:
            keep = {*names, *list(properties)[: int(node.get("minProperties", 0))]}
            properties = {name: part for name, part in properties.items() if name in keep}
        made: dict[str, Finite] = {}
        for name in dict.fromkeys([*properties, *names]):
            part = self.any(properties.get(name, extra), level + 1)
            if part is not None:
                made[name] = part
            elif name in names:
                return None
        longest = 2 + sum(len(json.dumps(name, ensure_ascii=False).encode()) + 4 + part.longest for name, part in made.items())
        schema = {"type": "object", "properties": {name: part.schema for name, part in made.items()}, "required": names}
        return Finite({**schema, "additionalProperties": False}, longest)

    def _array(self, node: dict[str, Any], level: int) -> Finite | None:
        first = [self.any(part, level + 1) for part in node.get("prefixItems", ())]
        least = int(node.get("minItems", 0))
        item = self.any(node.get("contains", node.get("items", True)), level + 1)
        if "contains" in node:
            least = max(1, least)
        most = max(least, self.sizes.items)
        if node.get("uniqueItems") and least <= 1:
            most = 1
        most = min(most, int(node.get("maxItems", most)))
        usable = first[: next((i for i, part in enumerate(first) if part is None), len(first))]
        if item is None:
            most = min(most, len(usable))
        if least > most:
            return None
        parts = [part for part in usable[:most] if part is not None]
        rest = most - len(parts)
        longest = 2 + sum(part.longest + 2 for part in parts) + (rest * (item.longest + 2) if item and rest else 0)
        schema: dict[str, Any] = {"type": "array", "minItems": least, "maxItems": most}
        if parts:
            schema["prefixItems"] = [part.schema for part in parts]
        schema["items"] = item.schema if item is not None and rest else False
        return Finite(schema, longest)

    def _string(self, node: dict[str, Any]) -> Finite:
        least, most = int(node.get("minLength", 0)), int(node.get("maxLength", 1 << 30))
        known = _FORMATS.get(node.get("format", ""))
        if "pattern" in node:  # how long its shortest match is cannot be seen from here
            most = min(most, max(least, 2 * self.sizes.characters))
        else:
            most = min(most, max(least, known or self.sizes.characters))
        schema: dict[str, Any] = {"type": "string", "minLength": least, "maxLength": most}
        if "pattern" in node:
            schema["pattern"] = node["pattern"]
        elif known:
            schema["format"] = node["format"]
            return Finite(schema, most + 2)  # formats are ASCII
        return Finite(schema, CHAR_BYTES * most + 2)


def _number(node: dict[str, Any]) -> Finite | None:
    bounds = {key: node[key] for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if key in node}
    low = max((bounds[key] for key in ("minimum", "exclusiveMinimum") if key in bounds), default=None)
    high = min((bounds[key] for key in ("maximum", "exclusiveMaximum") if key in bounds), default=None)
    if low is None:
        low = bounds["minimum"] = -SPAN if high is None else high - SPAN
    if high is None:
        high = bounds["maximum"] = max(low, 0) + SPAN
    step = node.get("multipleOf") or (1 if node["type"] == "integer" else _step(high - low))
    exact = Fraction(str(step))  # decimal, as JSON is: 3 * 0.1 is 0.3
    first = math.ceil(Fraction(str(low)) / exact) * exact
    first += exact * (first == Fraction(str(bounds.get("exclusiveMinimum", first + 1))))
    if first > Fraction(str(high)) or first == Fraction(str(bounds.get("exclusiveMaximum", first + 1))):
        return None
    schema = {"type": node["type"], **bounds}
    digits = max(len(f"{int(low)}"), len(f"{int(high)}")) + 1
    if node["type"] == "number":
        schema["multipleOf"] = step
        digits += 2 + max(0, -int(Decimal(repr(step)).as_tuple().exponent))
    elif "multipleOf" in node:
        schema["multipleOf"] = step
    return Finite(schema, digits)


def _step(span: float) -> float:
    """Distance of the numbers kept of an interval: two decimals, more where it is small."""
    return 0.01 if span >= 0.1 else 0.0001 if span >= 0.001 or span <= 0 else 10.0 ** (math.floor(math.log10(span)) - 1)


def _literal(values: list[Any]) -> Finite:
    return Finite({"enum": values}, max(_spelled(value) for value in values))


def _spelled(value: Any) -> int:
    """Bytes of a value as a grammar spells it: numbers without an exponent, one separator more than there are."""
    if isinstance(value, dict):
        return 2 + sum(_spelled(key) + _spelled(part) + 4 for key, part in value.items())
    if isinstance(value, list):
        return 2 + sum(_spelled(part) + 2 for part in value)
    if isinstance(value, float):
        return len(f"{Decimal(repr(value)):f}")
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def _either(parts: list[Finite]) -> Finite | None:
    if len(parts) <= 1:
        return parts[0] if parts else None
    return Finite({"anyOf": [part.schema for part in parts]}, max(part.longest for part in parts))
