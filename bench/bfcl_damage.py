"""Copies of a ground truth as the text of an assistant turn: sound ones, and ones damaged in a known way.

A damage takes an entry of `bench.bfcl_parity` and returns a text, or None where it does not apply.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.bfcl_parity import Calls, Entry

Damage = Callable[["Entry"], "str | None"]


def block(call: tuple[str, dict[str, Any]]) -> str:
    name, arguments = call
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def turn(calls: Calls) -> str:
    return "\n".join(map(block, calls)) or "I cannot help with that."


# Text


def rewritten(change: Callable[[str], str]) -> Damage:
    """The sound text, changed; None where the change does nothing."""

    def damage(entry: Entry) -> str | None:
        text = turn(entry.calls)
        changed = change(text)
        return None if changed == text else changed

    return damage


def last(old: str, new: str) -> Callable[[str], str]:
    """Replace the last `old`."""
    return lambda text: new.join(text.rsplit(old, 1))


def in_reasoning(entry: Entry) -> str:
    return f"<think>\nFirst thought: {turn(entry.calls[:1])}\n</think>\n\n{turn(entry.calls)}"


def in_single_quotes(entry: Entry) -> str:
    name, arguments = entry.calls[0]
    return f"<tool_call>\n{ {'name': name, 'arguments': arguments} }\n</tool_call>"


def arguments_as_text(entry: Entry) -> str:
    name, arguments = entry.calls[0]
    first: Any = (name, json.dumps(arguments))
    return "\n".join([block(first), *map(block, entry.calls[1:])])


def argument_twice(entry: Entry) -> str | None:
    arguments = entry.calls[0][1]
    if not arguments:
        return None
    key, value = next(iter(arguments.items()))
    pair = f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
    first = block(entry.calls[0])
    return "\n".join([first.replace(pair, f"{pair}, {pair}", 1), *map(block, entry.calls[1:])])


# Calls


def recalled(change: Callable[[Calls, Entry], Calls | None]) -> Damage:
    """The text of changed calls."""

    def damage(entry: Entry) -> str | None:
        calls = change(copy.deepcopy(entry.calls), entry)
        return None if calls is None else turn(calls)

    return damage


def other_tool(calls: Calls, entry: Entry) -> Calls | None:
    others = [function["name"] for function in entry.functions if function["name"] != calls[0][0]]
    return [(others[0], calls[0][1]), *calls[1:]] if others else None


def required_left_out(calls: Calls, entry: Entry) -> Calls | None:
    required = _parameters(entry).get("required") or []
    key = next((key for key in required if key in calls[0][1]), None)
    return None if key is None else _without(calls, key)


def optional_left_out(calls: Calls, entry: Entry) -> Calls | None:
    """Every argument that the ground truth allows to leave out."""
    free = {key for key, options in entry.accepted[0][calls[0][0]].items() if "" in options} & calls[0][1].keys()
    return [(calls[0][0], {key: value for key, value in calls[0][1].items() if key not in free}), *calls[1:]] if free else None


def _without(calls: Calls, key: str) -> Calls:
    return [(calls[0][0], {name: value for name, value in calls[0][1].items() if name != key}), *calls[1:]]


def _parameters(entry: Entry) -> dict[str, Any]:
    return next(function for function in entry.functions if function["name"] == entry.calls[0][0])["parameters"]


# Arguments


def valued(applies: Callable[[Any], bool], change: Callable[[Any], Any]) -> Damage:
    """Change the first argument of the first call that `applies`."""

    def damaged(calls: Calls, entry: Entry) -> Calls | None:
        arguments = calls[0][1]
        for key, value in arguments.items():
            if applies(value):
                arguments[key] = change(value)
                return calls
        return None

    return recalled(damaged)


def is_integer(value: Any) -> bool:
    return type(value) is int


def is_number(value: Any) -> bool:
    return type(value) in (int, float)


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


DAMAGES: dict[str, Damage] = {
    "as it is": lambda entry: turn(entry.calls),
    "text before and after": lambda entry: f"Let me see.\n{turn(entry.calls)}\nOne moment.",
    "reasoning that drafts a call": in_reasoning,
    "tags and JSON on one line": rewritten(
        lambda text: text.replace("<tool_call>\n", "<tool_call>").replace("\n</tool_call>", "</tool_call>")
    ),
    "calls in reverse order": recalled(lambda calls, entry: calls[::-1] if len(calls) > 1 else None),
    "optional arguments left out": recalled(optional_left_out),
    "closing brace lost": rewritten(last("}\n</tool_call>", "\n</tool_call>")),
    "comma before the closing brace": rewritten(last("}\n</tool_call>", ",}\n</tool_call>")),
    "single quotes": lambda entry: in_single_quotes(entry) if len(entry.calls) == 1 else None,
    "code fence in the tags": rewritten(
        lambda text: text.replace("<tool_call>\n", "<tool_call>\n```json\n").replace("\n</tool_call>", "\n```\n</tool_call>")
    ),
    "cut in the middle": lambda entry: turn(entry.calls)[: len(turn(entry.calls)) // 2],
    "closing tag lost": rewritten(last("\n</tool_call>", "")),
    "opening tag lost": rewritten(lambda text: text.replace("<tool_call>\n", "", 1)),
    "arguments as a JSON string": arguments_as_text,
    '"parameters" for "arguments"': rewritten(lambda text: text.replace('"arguments":', '"parameters":', 1)),
    "name left out": rewritten(lambda text: text.replace('"name":', '"tool":', 1)),
    "an argument twice": argument_twice,
    "no call": lambda entry: turn([]),
    "last call left out": recalled(lambda calls, entry: calls[:-1] if len(calls) > 1 else None),
    "last call twice": recalled(lambda calls, entry: [*calls, calls[-1]]),
    "unknown tool": recalled(lambda calls, entry: [(calls[0][0] + "_x", calls[0][1]), *calls[1:]]),
    "tool name in other case": recalled(lambda calls, entry: [(calls[0][0].swapcase(), calls[0][1]), *calls[1:]]),
    "another tool of the catalogue": recalled(other_tool),
    "required argument left out": recalled(required_left_out),
    "unknown argument added": recalled(lambda calls, entry: [(calls[0][0], {**calls[0][1], "zz_extra": 1}), *calls[1:]]),
    "number as text": valued(is_number, str),
    "text as number": valued(is_text, lambda value: 7),
    "text as null": valued(is_text, lambda value: None),
    "text in a list": valued(is_text, lambda value: [value]),
    "text in other case": valued(lambda value: is_text(value) and value.swapcase() != value, str.swapcase),
    "text without blanks and punctuation": valued(
        lambda value: is_text(value) and any(c in value for c in " ,./-"),
        lambda value: "".join(c for c in value if c not in " ,./-"),
    ),
    "other text": valued(is_text, lambda value: value + " zz"),
    "integer as 4.0": valued(is_integer, float),
    "integer as boolean": valued(is_integer, lambda value: True),
    "other integer": valued(is_integer, lambda value: value + 1_000_003),
    "fraction for an integer": valued(is_integer, lambda value: value + 0.5),
    "whole float as integer": valued(lambda value: type(value) is float and value.is_integer(), int),
    "number as NaN": valued(is_number, lambda value: float("nan")),
    "boolean as text": valued(lambda value: isinstance(value, bool), lambda value: str(value).lower()),
    "boolean as integer": valued(lambda value: isinstance(value, bool), int),
    "other boolean": valued(lambda value: isinstance(value, bool), lambda value: not value),
    "list as its first item": valued(is_list, lambda value: value[0]),
    "list item left out": valued(is_list, lambda value: value[:-1]),
    "list in reverse": valued(lambda value: is_list(value) and value[::-1] != value, lambda value: value[::-1]),
    "list item of another type": valued(is_list, lambda value: [*value[:-1], {"zz": 1}]),
    "object with another key": valued(lambda value: isinstance(value, dict), lambda value: {**value, "zz_extra": 1}),
    "object as JSON text": valued(lambda value: isinstance(value, dict), json.dumps),
}
