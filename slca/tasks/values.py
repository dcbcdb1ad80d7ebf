"""Believable values from JSON Schemas: arguments for queries, results for the scripted simulator.

A value is a pure function of the schema and a random generator. `respond` seeds the generator with the canonical call,
so the same call gets the same answer everywhere in a group, and validates what it returns.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Any

from slca.tasks import meanings, patterns, words
from slca.tasks.flatten import choices, flat
from slca.tasks.schema import Tool, canonical, load_tool
from slca.tasks.vet import MAX_DEPTH
from slca.types import ToolCall

MAX_LEVELS = 6  # below this depth only what the schema demands is made
PLENTY = 1_000  # values of one answer after which only what the schema demands is made
MAX_VALUES = 5_000  # values of one answer
MAX_CHARACTERS = 65_536  # of one string
_ATTEMPTS = 12


class Unsatisfiable(ValueError):
    """No value for this schema was found."""


class TooLarge(Unsatisfiable):
    """Every value of this schema is too large to be made up."""


def response_seed(task_id: str) -> int:
    """The seed of a task's world: what `respond` gets in demonstrations and in every rollout of the task's group."""
    return int.from_bytes(hashlib.blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=6).digest())


def respond(
    tool: Tool | Mapping[str, Any],
    arguments: Mapping[str, Any],
    seed: int | str,
    transcript: Iterable[tuple[ToolCall, Any]] = (),
) -> Any:
    """A result of the tool that validates against its response schema.

    Deterministic in (tool, canonical arguments, seed). Fields named like an argument repeat its value. When an argument
    holds an identifier that an earlier result invented, fields named like that identifier's neighbours repeat them.

    tool: a Tool (fast) or its spec. transcript: earlier (call, result value) pairs. Without a response schema the answer
    is {"status": "ok"} and the scalar arguments. Raises Unsatisfiable when no valid value is found.
    """
    tool = tool if isinstance(tool, Tool) else load_tool(tool)
    if tool.response is None:
        return {"status": "ok", **{key: value for key, value in arguments.items() if isinstance(value, str | int | float)}}
    call = canonical(ToolCall(tool.name, arguments))
    known = {_key(name): value for name, value in _neighbours(arguments, transcript).items()}
    known.update({_key(name): value for name, value in arguments.items()})
    for attempt in range(_ATTEMPTS):
        digest = hashlib.blake2b(f"{seed}|{attempt}|{call}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        echo = known if attempt < _ATTEMPTS // 2 else {}
        sampler = Sampler(
            Random(int.from_bytes(digest)), tool.response, echo=echo, optional=1.0 if attempt < _ATTEMPTS - 2 else 0.0
        )
        try:
            value = sampler.value(tool.response)
        except TooLarge:
            raise
        except Unsatisfiable:
            continue
        if tool.response_validator.is_valid(value):
            return value
    raise Unsatisfiable(f"{tool.name}: no value for the response schema in {_ATTEMPTS} tries")


def argument(
    schema: Mapping[str, Any], rng: Random, name: str = "", *, root: Any = None, unseen: bool = False, made_up: float = 0.0
) -> Any:
    """An argument value for this schema. `unseen` draws words from the held-out half; root: where `$ref` points into."""
    return Sampler(rng, root or schema, unseen=unseen, made_up=made_up, optional=0.0).value(schema, name)


def _neighbours(arguments: Mapping[str, Any], transcript: Iterable[tuple[ToolCall, Any]]) -> dict[str, Any]:
    """Fields beside an identifier (text with a digit) in an earlier result, if the result, not its caller, brought it up."""
    found: dict[str, Any] = {}
    wanted = [value for value in arguments.values() if isinstance(value, str) and any(map(str.isdigit, value))]
    for call, result in transcript:
        given = list(call.arguments.values())
        for item in _objects(result):
            if any(value in item.values() and value not in given for value in wanted):
                found.update({key: value for key, value in item.items() if isinstance(value, str | int | float)})
    return found


def _objects(value: Any) -> Iterable[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(part)


def _key(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


@dataclass
class Sampler:
    """Draws values for the schemas of one document. echo: field (see `_key`) -> value to repeat. optional: share of
    optional fields made on the first levels; fewer below."""

    rng: Random
    root: Any
    echo: Mapping[str, Any] = field(default_factory=dict)
    optional: float = 1.0
    unseen: bool = False
    made_up: float = 0.0
    made: int = 0  # values so far

    def value(self, schema: Any, name: str = "", level: int = 0) -> Any:
        """Raises Unsatisfiable where parts of the schema contradict each other, or where it asks for too much."""
        self.made += 1
        if self.made > MAX_VALUES or level > MAX_DEPTH:
            raise TooLarge(f"more than {MAX_VALUES:,} values or {MAX_DEPTH} levels")
        if self.made > PLENTY:
            level = max(level, MAX_LEVELS)
        if not isinstance(schema, Mapping):
            return self._string({}, name)
        schema = self._one_branch(schema, level)
        if (values := choices(schema)) is not None:
            if not values:
                raise Unsatisfiable("no listed value has the declared type")
            return values[0] if "const" in schema else self.rng.choice(values)
        kind = self._kind(schema, level)
        if kind == "object":
            return self._object(schema, level)
        if kind == "array":
            return self._array(schema, name, level)
        if kind == "string":
            return self._string(schema, name)
        if kind in ("integer", "number"):
            try:
                return self._number(schema, name, kind == "integer")
            except OverflowError as error:
                raise TooLarge(f"{name or kind}: bounds that no float reaches") from error
        return self.rng.random() < 0.5 if kind == "boolean" else None

    def _one_branch(self, schema: Mapping[str, Any], level: int) -> Mapping[str, Any]:
        """References followed, `allOf` merged, one branch of `anyOf`/`oneOf` chosen (never null if there is a choice)."""
        found = flat(self.root, schema)
        while found is not None and (word := "anyOf" if "anyOf" in found else "oneOf" if "oneOf" in found else None):
            base = {key: part for key, part in found.items() if key != word}
            branches = [{} if part is True else part for part in found[word] if part is not False]
            simple = [part for part in branches if part.get("type") in ("null", "string", "integer", "number", "boolean")]
            if level >= MAX_LEVELS and simple:
                branches = simple
            else:
                branches = [part for part in branches if part.get("type") != "null"] or branches
            found = self._chosen(base, branches)
        if found is None:
            raise Unsatisfiable("parts of the schema contradict each other")
        return found

    def _chosen(self, base: Mapping[str, Any], branches: list[Any]) -> dict[str, Any] | None:
        """`base` with one of the branches that do not contradict it, a drawn one where that works."""
        if not branches:
            return None
        drawn = self.rng.choice(branches)
        for branch in (drawn, *branches):
            if (found := flat(self.root, {"allOf": [base, branch]})) is not None:
                return found
        return None

    def _kind(self, schema: Mapping[str, Any], level: int) -> str:
        kind = schema.get("type")
        if isinstance(kind, list):
            deep = level >= MAX_LEVELS and "null" in kind
            kind = "null" if deep else self.rng.choice([k for k in kind if k != "null"] or ["null"])
        if isinstance(kind, str):
            return kind
        for keyword, implied in _IMPLIED:
            if keyword in schema:
                return implied
        return self.rng.choice(("string", "integer", "boolean", "object", "array")) if "not" in schema else "string"

    def _object(self, schema: Mapping[str, Any], level: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        required = schema.get("required", ())
        share = self.optional if level <= 2 else self.optional * 0.4 if level < MAX_LEVELS else 0.0
        out: dict[str, Any] = {}
        for name, part in properties.items():
            if part is False:
                continue
            said = self.echo.get(_key(name)) if level <= 2 and self.echo else None
            if said is not None and _fits(part, said):
                out[name] = said
            elif name in required or share >= 1.0 or (share > 0.0 and self.rng.random() < share):
                out[name] = self.value(part, name, level + 1)
        extra = schema.get("additionalProperties")
        if not out and properties and self.optional and level < MAX_LEVELS:  # an empty object tells nothing
            name, part = next(iter(properties.items()))
            if part is not False:
                out[name] = self.value(part, name, level + 1)
        for name in required:
            if name not in out:
                out[name] = self.value(extra, name, level + 1)
        wanted = max(
            schema.get("minProperties", 0), 1 if isinstance(extra, Mapping) and not properties and level < MAX_LEVELS else 0
        )
        if wanted > MAX_VALUES:
            raise TooLarge(f"minProperties is {wanted:,}")
        patterned = schema.get("patternProperties") if extra is False else None
        while len(out) < wanted:
            names = [name for name in properties if name not in out]
            if names or not patterned:
                name = self.rng.choice(names) if names else self._map_key(schema, out)
                part = properties.get(name, extra)
            else:  # only names of these patterns may be added
                pattern, part = self.rng.choice(list(patterned.items()))
                name = self._string({"pattern": pattern}, "key")
            out[name] = self.value(part, name, level + 1)
        return out

    def _map_key(self, schema: Mapping[str, Any], taken: Mapping[str, Any]) -> str:
        names = schema.get("propertyNames")
        key = self.value({"type": "string", **names}, "key") if isinstance(names, Mapping) else words.word("word", self.rng)
        return f"{key}" if key not in taken else f"{key}{len(taken)}"

    def _array(self, schema: Mapping[str, Any], name: str, level: int) -> list[Any]:
        first = schema.get("prefixItems", [])
        items = schema.get("items", True)
        low = schema.get("minItems", 0)
        high = schema.get("maxItems", max(low, 3))
        if low > MAX_VALUES:
            raise TooLarge(f"minItems is {low:,}")
        if items is False:
            low = high = len(first)
        believable = 0 if level >= MAX_LEVELS else self.rng.randint(1, 3 if level < 2 else 1)
        count = min(max(low, believable, len(first) if low else 0), high)
        single = name[:-1] if name.endswith("s") else name
        out: list[Any] = []
        for _ in range(count * 4):
            if len(out) >= count:
                break
            part = self.value(first[len(out)] if len(out) < len(first) else items, single, level + 1)
            if not schema.get("uniqueItems") or part not in out:
                out.append(part)
        if "contains" in schema:
            least = schema.get("minContains", 1)
            if least > MAX_VALUES:
                raise TooLarge(f"minContains is {least:,}")
            out[max(0, min(len(out), high - least)) :] = [
                self.value(schema["contains"], single, level + 1) for _ in range(least)
            ]
        return out

    def _number(self, schema: Mapping[str, Any], name: str, integer: bool) -> int | float:
        low, high = meanings.range_of_name(name)
        least = schema.get("minimum", schema.get("exclusiveMinimum"))
        most = schema.get("maximum", schema.get("exclusiveMaximum"))
        if least is not None and not low >= least:
            low, high = least, least + max(high - low, 1)
        if most is not None and not high <= most:
            high = most
            low = max(least, most - 100) if least is not None else min(low, most - 100)
        if least is not None and most is not None:
            low, high = least, most
        step = schema.get("multipleOf")
        for _ in range(8):
            if step:
                number = self._multiple(low, high, Fraction(str(step)))
            elif integer:
                bottom = int(-(-low // 1))
                number = self.rng.randint(bottom, max(int(high // 1), bottom))
            else:
                number = round(self.rng.uniform(low, high), 1 if high - low > 2 else 3)
                number = min(max(number, low), high)
            if number != schema.get("exclusiveMinimum") and number != schema.get("exclusiveMaximum"):
                break
        return int(number) if integer else number

    def _multiple(self, low: float, high: float, step: Fraction) -> int | float:
        """A multiple of `step`, in decimals as JSON is: 3 * 0.1 is 0.3."""
        first, last = math.ceil(Fraction(str(low)) / step), math.floor(Fraction(str(high)) / step)
        number = step * self.rng.randint(first, max(first, last))
        return int(number) if number.denominator == 1 else float(number)

    def _string(self, schema: Mapping[str, Any], name: str) -> str:
        low, high = schema.get("minLength", 0), schema.get("maxLength")
        if low > MAX_CHARACTERS:
            raise TooLarge(f"minLength is {low:,}")
        if "pattern" in schema:
            text = patterns.generate(schema["pattern"], self.rng, low, high)
            if text is not None:
                return text
        text = meanings.text(schema.get("format", ""), name, self.rng, self.unseen, self.made_up)
        while len(text) < low:
            text += words.word("word", self.rng)[: max(1, low - len(text))]
        return text if high is None else text[:high]


_IMPLIED = (
    ("properties", "object"), ("additionalProperties", "object"), ("required", "object"), ("items", "array"), ("prefixItems", "array"),
    ("minItems", "array"), ("minimum", "number"), ("maximum", "number"), ("multipleOf", "number"),
)  # fmt: skip


def _fits(schema: Any, value: Any) -> bool:
    """A quick look at whether an echoed value suits a field; the final validation has the last word."""
    if not isinstance(schema, Mapping):
        return True
    if isinstance(schema.get("enum"), list) and value not in schema["enum"]:
        return False
    kinds = schema.get("type")
    if kinds is None:
        return True
    name = _JSON_TYPES.get(type(value), "")
    return any(
        name == kind or (kind == "number" and name == "integer") for kind in (kinds if isinstance(kinds, list) else [kinds])
    )


_JSON_TYPES: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
