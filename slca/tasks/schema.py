"""Tool schemas: load and vet once, check arguments, one canonical form of a call.

    tools = ToolSet.load(specs)          # bad tools are refused by name, the rest stay usable
    tools.check(ToolCall("get_weather", {"city": "Oslo"}))   # [] = valid

Specs may be OpenAI / Hugging Face function JSON (wrapped in {"type": "function"} or bare), MCP tools (`inputSchema`,
`outputSchema`) or BFCL's dialect. Validation is JSON Schema 2020-12 by jsonschema-rs, offline: a boolean is never a
number, 4.0 is an integer, values are never converted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import jsonschema_rs

from slca.tasks import vet
from slca.tasks.vet import MAX_BYTES, MAX_DEPTH, Refused
from slca.types import ToolCall

MAX_ERRORS = 20  # reported for one call
_MAX_BITS = 14_000  # beyond about 4,300 digits Python refuses to write an integer in decimal
_PATTERNS = jsonschema_rs.RegexOptions(
    size_limit=1 << 20, dfa_size_limit=1 << 20
)  # linear time; no look-around, no back-references


@dataclass(frozen=True)
class SchemaError:
    """One fault of a call. path: place in the arguments, e.g. `trip.legs[1].day` ("" = the arguments themselves).

    kind: `unknown_tool`, `depth`, `not_json`, or the JSON Schema keyword that failed (required, type, enum, minimum,
    additionalProperties, anyOf, ...). message: one line without the offending value, at most 300 characters.
    """

    path: str
    kind: str
    message: str


@dataclass(frozen=True, eq=False)
class Tool:
    """A vetted tool. parameters, response: normalised JSON Schemas (response None = undeclared); spec: OpenAI form of both.

    extra: other keys of the function that are kept: strict, return, and cost, the declared price of a call in any unit.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    response: dict[str, Any] | None
    max_depth: int = MAX_DEPTH
    extra: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def spec(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": self.parameters, **self.extra}
        if self.response is not None:
            function["response"] = self.response
        return {"type": "function", "function": function}

    @cached_property
    def validator(self) -> Any:
        return _compile(self.parameters)

    @cached_property
    def response_validator(self) -> Any:
        return None if self.response is None else _compile(self.response)

    def check(self, arguments: Any) -> list[SchemaError]:
        """Faults of the arguments, [] = valid. Never raises."""
        return _errors(self.validator, arguments, self.max_depth)

    def check_response(self, value: Any) -> list[SchemaError]:
        """Faults of a result against the declared response schema; [] when none is declared. Never raises."""
        return [] if self.response is None else _errors(self.response_validator, value, MAX_DEPTH)


@dataclass(frozen=True)
class ToolSet:
    """Usable tools by name, and the refused ones with the reason. A refused tool is an unknown tool to a caller."""

    tools: dict[str, Tool]
    refused: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def load(cls, specs: Iterable[Any]) -> ToolSet:
        """Vet each spec. Never raises on a bad one: it lands in `refused` and the others stay."""
        tools: dict[str, Tool] = {}
        refused: list[tuple[str, str]] = []
        for index, spec in enumerate(specs):
            name = _name(spec) or f"#{index}"
            try:
                tool = load_tool(spec)
                if tool.name in tools:
                    raise Refused("a tool of this name is already loaded")
                tools[tool.name] = tool
            except Refused as reason:
                refused.append((name, str(reason)))
        return cls(tools, refused)

    def check(self, call: ToolCall) -> list[SchemaError]:
        """Faults of a call, [] = valid. Never raises."""
        tool = self.tools.get(call.name) if isinstance(call.name, str) else None
        if tool is None:
            return [SchemaError("", "unknown_tool", f"unknown tool {call.name!r:.100}")]
        return tool.check(call.arguments)

    @property
    def specs(self) -> list[dict[str, Any]]:
        return [tool.spec for tool in self.tools.values()]


def load_tool(spec: Any) -> Tool:
    """One spec as a vetted Tool. Equal specs are vetted once a process. Raises Refused with the reason."""
    try:
        text = json.dumps(spec, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused(f"not JSON: {error!s:.100}") from None
    if len(text) > MAX_BYTES:
        raise Refused(f"{len(text):,} characters of JSON, more than {MAX_BYTES:,}")
    return _load_text(text)


@lru_cache(maxsize=8192)
def _load_text(text: str) -> Tool:
    spec = json.loads(text)
    function = _function(spec)
    name = _name(spec)
    if not name or not name.isprintable() or len(name) > 256:
        raise Refused("a name must be 1 to 256 printable characters")
    if isinstance(function.get("refused"), str):  # an importer's word on what it could not read
        raise Refused(function["refused"][:200])
    description = function.get("description") or ""
    if not isinstance(description, str):
        raise Refused("description must be a string")
    parameters = function.get("parameters") or function.get("inputSchema") or function.get("input_schema")
    parameters = vet.normalise({"type": "object", "properties": {}} if parameters is None else parameters)
    if not isinstance(parameters, dict):
        raise Refused("parameters must be a schema object")
    kinds = parameters.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        raise Refused(f"parameters must describe an object, not {kinds!r:.40}")
    response = next(
        (function[key] for key in ("response", "outputSchema", "output_schema") if function.get(key) is not None), None
    )
    if response is None and isinstance(function.get("return"), dict):  # the key `transformers` writes for typed functions
        response = function["return"]
    response = None if response is None else vet.normalise(response)
    if isinstance(response, bool):
        response = None
    depth = _vetted(parameters, "parameters")
    if response is not None:
        _vetted(response, "response")
    extra = {key: function[key] for key in ("strict", "return", "cost") if function.get(key) is not None}
    if not _price(extra.get("cost", 0)):
        raise Refused("cost, the price of a call, must be a number from 0 up")
    return Tool(name, description, parameters, response, depth, extra)


def _price(cost: Any) -> bool:
    return isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost < 1e12


def _vetted(schema: dict[str, Any], what: str) -> int:
    try:
        depth = vet.vet(schema)
        _compile(schema)
    except Refused as reason:
        raise Refused(f"{what}: {reason}") from None
    except (jsonschema_rs.ValidationError, ValueError, RecursionError) as error:
        raise Refused(f"{what}: {str(error).splitlines()[0]:.200}") from None
    return depth


def _compile(schema: dict[str, Any]) -> Any:
    return jsonschema_rs.Draft202012Validator(schema, offline=True, pattern_options=_PATTERNS, validate_formats=False)


def _function(spec: Any) -> dict[str, Any]:
    if not isinstance(spec, dict):
        raise Refused(f"a tool spec must be an object, got {type(spec).__name__}")
    function = spec.get("function", spec)
    if not isinstance(function, dict):
        raise Refused(f"`function` must be an object, got {type(function).__name__}")
    return function


def _name(spec: Any) -> str:
    function = spec.get("function", spec) if isinstance(spec, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def public_specs(tools: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The specs as the policy may see them: without `response`, the simulator's knowledge, and `cost`, the run's."""
    hidden = ("response", "outputSchema", "output_schema", "cost")
    result = []
    for spec in tools:
        if "function" in spec:
            result.append({**spec, "function": {key: value for key, value in spec["function"].items() if key not in hidden}})
        else:
            result.append({key: value for key, value in spec.items() if key not in hidden})
    return result


def _errors(validator: Any, value: Any, max_depth: int) -> list[SchemaError]:
    if not _within(value, max_depth):
        return [SchemaError("", "depth", f"nested deeper than {max_depth} levels")]
    try:
        if validator.is_valid(value):
            return []
        found = [_error(error) for _, error in zip(range(MAX_ERRORS), validator.iter_errors(value), strict=False)]
    except (ValueError, TypeError, OverflowError, RecursionError) as error:  # lone surrogates, keys that are no strings, sets
        return [SchemaError("", "not_json", f"not JSON: {error!s:.200}")]
    return sorted(found, key=lambda error: (error.path, error.kind, error.message))


def _within(value: Any, levels: int) -> bool:
    if isinstance(value, dict):
        return levels > 0 and all(_within(part, levels - 1) for part in value.values())
    if isinstance(value, list):
        return levels > 0 and all(_within(part, levels - 1) for part in value)
    return True


def _error(error: Any) -> SchemaError:
    path = ""
    for part in error.instance_path:
        path += f"[{part}]" if isinstance(part, int) else (f".{part}" if path else str(part))
    path = path[:120]
    kind = error.kind.name
    where = path or "arguments"
    if kind == "required":
        text = f"{where}: {error.kind.property!r:.60} is missing" if path else f"{error.kind.property!r:.60} is missing"
    elif kind in ("additionalProperties", "unevaluatedProperties"):
        names = ", ".join(repr(name)[:40] for name in list(error.kind.unexpected)[:3])
        text = f"{where}: unexpected {names}"
    elif kind == "type":
        types = error.kind.as_dict().get("types", [])
        text = f"{where}: must be {' or '.join(map(str, types)) or 'of another type'}"
    else:
        text = f"{where}: fails {kind}"
    return SchemaError(path, kind, text[:300])


def canonical(call: ToolCall) -> str:
    """One text a call: keys sorted, no spaces, numbers by value (1.0 is 1; true stays true). The id is no part of it."""
    return json.dumps(
        {"arguments": _plain(call.arguments), "name": call.name}, ensure_ascii=False, sort_keys=True, separators=(",", ":")
    )


def call_hash(call: ToolCall) -> str:
    """32 hex digits of the canonical form: key of caches, duplicates and state."""
    return hashlib.blake2b(canonical(call).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return f"{value:x}"
    return value
