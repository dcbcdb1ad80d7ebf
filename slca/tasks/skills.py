"""A skill: a tool together with the ways people ask for it and answer about it.

Built-in entries bring their own phrasings; any other tool gets plain ones made of its name, description and argument
names. Templates hold `{argument}` placeholders; a part in [brackets] is said only when its optional argument is given.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from slca.tasks import meanings, values, words
from slca.tasks.entry import Entry, Link
from slca.tasks.schema import Tool, load_tool

MAX_FACTS = 2  # values of a result that a plain answer states
_VERBS = frozenset(
    "get set list find search create make add put update change delete remove send read write book order check count convert calculate "
    "compute describe show play open close start stop cancel run fetch query lookup is has".split()
)
MAX_SAID = 40  # characters of a value worth stating or asking with
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_BRACKETS = re.compile(r"\[([^\[\]]*\{[^\[\]]*)\]")

Draw = Callable[[Random, bool, float, frozenset[str]], dict[str, Any]]


@dataclass(frozen=True)
class Skill:
    """asks, unseen: query templates (training, held-out); gap: (argument, query without it, the same for held-out);
    says: answer template, "" = made from the result. draw(rng, unseen, made_up, mentioned) -> arguments."""

    tool: Tool
    domain: str
    asks: tuple[str, ...]
    unseen: tuple[str, ...]
    says: str
    gap: tuple[str, str, str] | None
    draw: Draw
    held_out: bool

    @property
    def name(self) -> str:
        return self.tool.name

    def answer(self, arguments: Mapping[str, Any], result: Any) -> tuple[str, list[str]]:
        """One sentence about a result, and the values it must state."""
        if self.says:
            fields = {**arguments, **result}
            facts = [said(result[name]) for name in _PLACEHOLDER.findall(self.says) if name in result]
            return fill(self.says, fields), facts
        known = {said(value) for value in arguments.values()}
        found = [(path, said(value)) for path, value in _scalars(result) if value not in ("", None)]
        found = [(path, text) for path, text in found if len(text) <= MAX_SAID and text not in known][:MAX_FACTS]
        if not found:
            return f"Done: {phrase(self.name)}.", []
        parts = " and ".join(f"{spoken(path)} {text}" for path, text in found)
        return f"The result has {parts}.", [text for _, text in found]


def from_entry(entry: Entry, domain: str) -> Skill:
    """A built-in entry as a skill."""

    def draw(rng: Random, unseen: bool, made_up: float, mentioned: frozenset[str]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for name, kind in entry.args.items():
            if kind.startswith("?") and (name not in mentioned or rng.random() < 0.5):
                continue
            for _ in range(20):  # two cities of one call differ
                out[name] = words.draw(kind.removeprefix("?"), rng, unseen, made_up)
                if list(out.values()).count(out[name]) == 1:
                    break
        return out

    return Skill(load_tool(entry.spec()), domain, entry.asks, entry.unseen, entry.says, entry.gap, draw, entry.held_out)


def from_tool(tool: Tool) -> Skill:
    """Any tool as a skill, plainly worded. One name in five (by hash) is held out."""
    properties = tool.parameters.get("properties", {})
    required = [name for name in tool.parameters.get("required", ()) if name in properties]
    optional = [name for name in properties if name not in required][:2]
    with_all = "".join((" and " if i else " with ") + f"{spoken(name)} {{{name}}}" for i, name in enumerate(required))
    extras = "".join(f"[, {spoken(name)} {{{name}}}]" for name in optional)
    listed = ", ".join(f"{spoken(name)} {{{name}}}" for name in required)
    verb = phrase(tool.name)
    asks = (
        f"{verb}{with_all}{extras}",
        f"please {verb}{with_all}{extras}",
        f"{verb}: {listed}{extras}" if listed else f"i want to {verb}{extras}",
    )
    unseen = (f"can you {verb}, {listed}{extras}?" if listed else f"can you {verb}{extras}?",)

    def draw(rng: Random, is_unseen: bool, made_up: float, mentioned: frozenset[str]) -> dict[str, Any]:
        chosen = required + [name for name in optional if name in mentioned and rng.random() < 0.3]
        for _ in range(8):
            out = {
                name: values.argument(properties[name], rng, name, root=tool.parameters, unseen=is_unseen, made_up=made_up)
                for name in chosen
            }
            if not tool.check(out):
                return out
        raise values.Unsatisfiable(f"{tool.name}: no valid arguments found")

    gap = None
    if required:
        rest = ", ".join(f"{spoken(name)} {{{name}}}" for name in required[:-1])
        gap = (required[-1], f"{verb}: {rest}" if rest else verb, f"can you {verb}, {rest}?" if rest else f"can you {verb}?")
    return Skill(tool, domain_of(tool.name), asks, unseen, "", gap, draw, zlib.crc32(tool.name.encode()) % 5 == 0)


def chains(skills: Sequence[Skill]) -> tuple[Link, ...]:
    """Pairs of one family whose first result has, as a text field, an identifier that the second demands."""
    found = []
    for first in skills:
        fields = (first.tool.response or {}).get("properties", {})
        given = first.tool.parameters.get("properties", {})
        offered = [name for name, part in fields.items() if name not in given and meanings.is_identifier(name)]
        for second in skills:
            if not offered or second is first or second.domain != first.domain or not second.domain:
                continue
            needed = second.tool.parameters.get("required", ())
            shared = [name for name in offered if name in needed and _suits(fields[name], first, second, name)]
            if len(shared) == 1 and not any(name in given for name in needed):
                found.append(_chain(first, second, shared[0], [name for name in needed if name != shared[0]]))
    return tuple(found)


def _chain(first: Skill, second: Skill, name: str, others: Sequence[str]) -> Link:
    rest = "".join(f" and {spoken(other)} {{{other}}}" for other in others)
    then = f"{phrase(second.name)} with that {spoken(name)}{rest}"
    asks = tuple(f"{ask}, then {then}" for ask in first.asks)
    return Link(first.name, name, second.name, name, asks, (f"{first.asks[0]} and with its result {then}",))


def _suits(field: Any, first: Skill, second: Skill, name: str) -> bool:
    """Whether what the first tool returns there is text that the second one accepts."""
    sample = values.argument(field, Random(0), name, root=first.tool.response)
    return isinstance(sample, str) and all(error.kind == "required" for error in second.tool.check({name: sample}))


def domain_of(name: str) -> str:
    """The family of a tool: what its name starts with, unless that is a verb. `s3_get_object` -> "s3", `get_user` -> ""."""
    first, separator, _ = re.match(r"([^_.:/\-]*)([_.:/\-]?)(.*)", name, re.DOTALL).groups()  # type: ignore[union-attr]
    return first if separator and first.lower() not in _VERBS else ""


def phrase(name: str) -> str:
    """A tool's name as something to ask for: `s3_get_object` -> "get object in s3"."""
    domain = domain_of(name)
    return f"{spoken(name[len(domain) + 1 :])} in {domain}" if domain else spoken(name)


def spoken(name: str) -> str:
    """A name as words: `ec2_describeVolumes` -> "ec2 describe volumes"."""
    return " ".join(part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|[^\W\d_]+", name)) or name


def said(value: Any) -> str:
    """A value as it stands in a query or an answer: strings as they are, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def fill(template: str, fields: Mapping[str, Any]) -> str:
    """The template with its values; bracketed parts whose values are missing are left out. Raises KeyError otherwise."""
    template = _BRACKETS.sub(lambda m: m[1] if all(name in fields for name in _PLACEHOLDER.findall(m[1])) else "", template)
    return _PLACEHOLDER.sub(lambda m: said(fields[m[1]]), template)


def mentioned(template: str) -> frozenset[str]:
    return frozenset(_PLACEHOLDER.findall(template))


def _scalars(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """(name, value) of the scalar fields of a result, outer ones first."""
    if isinstance(value, dict):
        pairs = [(key, part) for key, part in value.items()]
    elif isinstance(value, list):
        pairs = [(path, part) for part in value[:1]]
    else:
        return [(path or "value", value)]
    flat = [(key, part) for key, part in pairs if not isinstance(part, dict | list)]
    deep = [pair for key, part in pairs if isinstance(part, dict | list) for pair in _scalars(part, key)]
    return flat + deep
