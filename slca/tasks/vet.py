"""Vetting of JSON Schemas that come from outside: one dialect, bounded cost, references only inside the document.

A tool catalogue is input like any other. Every schema is brought to JSON Schema 2020-12 (`normalise`) and walked once
(`vet`) before it may validate anything, so that no later check can be slow, recurse without end, open a file or a
connection. Patterns are compiled by a linear-time engine with a size limit (see `slca.tasks.schema`).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

MAX_BYTES = 256 * 1024  # JSON text of one schema
MAX_DEPTH = 64  # nesting of schemas, and of arguments checked against them
MAX_COST = 100_000  # schema nodes visited on one path into a value, references expanded
MIN_DEPTH = 4  # a schema too dear even for values this deep is refused

# Keywords that hold schemas. In-place ones look at the same value, child ones at a part of it.
_IN_PLACE_ONE = ("not", "if", "then", "else")
_IN_PLACE_MANY = ("anyOf", "oneOf", "allOf")
_CHILD_ONE = (
    "items", "additionalProperties", "contains", "propertyNames", "additionalItems", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_CHILD_MAP = ("properties", "patternProperties")
_DEFINITIONS = ("$defs", "definitions")
_COUNTS = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"}
)  # 3.0 is as good as 3
_MAPS = (*_CHILD_MAP, *_DEFINITIONS, "dependentSchemas")
_LISTS = (*_IN_PLACE_MANY, "prefixItems")

_DIALECT = {
    "dict": "object", "hashmap": "object", "hashtable": "object", "map": "object",
    "float": "number", "double": "number", "decimal": "number",
    "int": "integer", "long": "integer", "short": "integer", "byte": "integer", "bigint": "integer",
    "tuple": "array", "list": "array", "arraylist": "array", "set": "array", "queue": "array", "stack": "array",
    "str": "string", "char": "string", "bool": "boolean", "none": "null",
}  # fmt: skip
_STANDARD = frozenset({"object", "number", "integer", "array", "string", "boolean", "null"})


class Refused(ValueError):
    """A schema that may not be used; the text is the reason."""


def normalise(schema: Any, depth: int = 0) -> Any:
    """The same schema in JSON Schema 2020-12.

    Null keywords (padding of columnar files) mean absent; BFCL and Java/JavaScript type names, `nullable`, boolean
    `exclusiveMinimum/Maximum` and positional `items` are translated. Raises Refused on anything that is no schema.
    """
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise Refused(f"a schema must be an object or a boolean, got {type(schema).__name__}")
    if depth > MAX_DEPTH:
        raise Refused(f"deeper than {MAX_DEPTH} levels")
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if not isinstance(key, str):
            raise Refused(f"keyword {key!r:.40} is not a string")
        if key == "$schema" or (value is None and key not in ("const", "default", "example")):
            continue
        if key in _MAPS:
            if not isinstance(value, dict):
                raise Refused(f"{key} must be an object")
            out[key] = {name: normalise(part, depth + 1) for name, part in value.items() if part is not None}
        elif key in _LISTS or (key == "items" and isinstance(value, list)):
            if not isinstance(value, list):
                raise Refused(f"{key} must be a list")
            if value:  # `anyOf: []` is padding as well
                out["prefixItems" if key == "items" else key] = [normalise(part, depth + 1) for part in value]
        elif key in _CHILD_ONE or key in _IN_PLACE_ONE:
            out[key] = normalise(value, depth + 1)
        elif key in _COUNTS and isinstance(value, float) and value.is_integer():
            out[key] = int(value)
        else:
            out[key] = value
    if depth == 0:
        out.pop("$id", None)
    _translate_type(out)
    for bound, flag in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(out.get(flag), bool) and out.pop(flag) and bound in out:
            out[flag] = out.pop(bound)
    return out


def _translate_type(schema: dict[str, Any]) -> None:
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        types = [_standard_type(name) for name in names if name is not None]
        if "any" in types or not types:
            del schema["type"]
        else:
            schema["type"] = types if isinstance(schema["type"], list) else types[0]
    nullable = schema.pop("nullable", False)
    if nullable is True and isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]


def _standard_type(name: Any) -> str:
    if not isinstance(name, str):
        raise Refused(f"type must be a string, got {name!r:.40}")
    if name in _STANDARD:
        return name
    lower = name.lower()
    known = lower if lower in _STANDARD or lower == "any" else _DIALECT.get(lower)
    if known is None:
        raise Refused(f"unknown type {name!r:.40}")
    return known


def vet(schema: Any) -> int:
    """Walk a normalised schema once; return how deep a value it may check, in levels (MAX_DEPTH unless it branches a lot).

    The work of a validator on a value of depth d is bounded by following one path into the value: every in-place
    applicator (`anyOf`, `$ref`, ...) multiplies the visits of a level, every level of a recursive schema repeats them.
    Raises Refused: references out of the document or to nothing, `$id`/`$anchor` below the root, a reference cycle
    on the same value, and more than MAX_COST visits for values of MIN_DEPTH levels.
    """
    if not isinstance(schema, dict):
        return MAX_DEPTH
    same, parts = _edges(schema)
    order = _topological(same)
    size: dict[int, int] = {}
    below: dict[int, Counter[tuple[str, int]]] = {}  # visits of each part of the value, all in-place branches together
    for node in order:
        size[node] = 1 + sum(size[other] for other in same[node])
        below[node] = Counter(parts[node])
        for other in same[node]:
            below[node].update(below[other])
    cost = dict.fromkeys(order, 0)
    for depth in range(1, MAX_DEPTH + 1):
        deeper = {node: size[node] + _dearest_part(below[node], cost) for node in order}
        if deeper[id(schema)] > MAX_COST:
            if depth <= MIN_DEPTH:
                raise Refused(f"{deeper[id(schema)]:,} checks for one value of depth {depth}, more than {MAX_COST:,}")
            return depth - 1
        if deeper == cost:
            break
        cost = deeper
    return MAX_DEPTH


def _dearest_part(below: Counter[tuple[str, int]], cost: dict[int, int]) -> int:
    named: Counter[str] = Counter()
    for (label, node), count in below.items():
        named[label] += count * cost[node]
    anywhere = named.pop("*", 0)  # items, additionalProperties, ... may meet any part
    return anywhere + max(named.values(), default=0)


def resolve(root: Any, reference: Any) -> Any:
    """The schema a `$ref` points to inside its own document. Raises Refused."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise Refused(f"$ref {reference!r:.80} leaves the document; only '#/...' is followed")
    node = root
    for part in reference.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and part in node:
            node = node[part]
        elif isinstance(node, list) and part.isascii() and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        else:
            raise Refused(f"$ref {reference!r:.80} points to nothing")
    return node


def _edges(root: dict[str, Any]) -> tuple[dict[int, list[int]], dict[int, list[tuple[str, int]]]]:
    """Schema nodes by identity: in-place edges, and edges to parts of the value labelled by the part ("*" = any)."""
    same: dict[int, list[int]] = {}
    parts: dict[int, list[tuple[str, int]]] = {}
    pending = [root]
    while pending:
        node = pending.pop()
        if id(node) in same:
            continue
        for keyword in ("$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef", "$recursiveAnchor"):
            if keyword in node:
                raise Refused(f"{keyword} is not supported")
        here = [part for key in _IN_PLACE_MANY for part in node.get(key, ())]
        here += [node[key] for key in _IN_PLACE_ONE if key in node] + list(node.get("dependentSchemas", {}).values())
        if "$ref" in node:
            here.append(resolve(root, node["$ref"]))
        inner = [(name, part) for name, part in node.get("properties", {}).items()]
        inner += [("*", part) for part in node.get("patternProperties", {}).values()]
        inner += [("*", node[key]) for key in _CHILD_ONE if key in node]
        inner += [(f"[{i}]", part) for i, part in enumerate(node.get("prefixItems", ()))]
        for part in (*here, *(part for _, part in inner)):
            if not isinstance(part, dict | bool):
                raise Refused(f"a reference points to {type(part).__name__}, not to a schema")
            if isinstance(part, dict):
                pending.append(part)
        same[id(node)] = [id(part) for part in here if isinstance(part, dict)]
        parts[id(node)] = [(label, id(part)) for label, part in inner if isinstance(part, dict)]
    return same, parts


def _topological(same: dict[int, list[int]]) -> list[int]:
    """Nodes after all that they refer to in place. Raises Refused on a cycle: such a check would never end."""
    waiting = {node: len(others) for node, others in same.items()}
    users: dict[int, list[int]] = {node: [] for node in same}
    for node, others in same.items():
        for other in others:
            users[other].append(node)
    order = [node for node, count in waiting.items() if count == 0]
    for node in order:  # grows while it is walked
        for user in users[node]:
            waiting[user] -= 1
            if waiting[user] == 0:
                order.append(user)
    if len(order) < len(same):
        raise Refused("$ref leads back to itself on the same value")
    return order
