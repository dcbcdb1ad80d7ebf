"""Answers to BFCL entries as text: what the official decoder finds in one, what the ground truth would say, and damaged copies.

The ground truth gives accepted values a call writes as JSON; Java and JavaScript arguments are source text. An oracle that
answers with it measures the ceiling of a category (some entries cannot be satisfied), one that never calls measures the floor.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slca.evals.chat import Chat, Reply, Request
from slca.types import ToolCall

_BLOCK = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)  # the pattern of the package's QwenFCHandler
MAX_DEPTH = 64  # levels of a call; a deeper one is no call to us, whatever the package makes of it
SILENCE = "I cannot help with that."
DONE = "Done."
SOURCE = ("simple_java", "simple_javascript")  # categories whose arguments are source text

Entry = Mapping[str, Any]


def decoded(text: str) -> list[ToolCall]:
    """The calls that the official decoder of Hermes text hands on: well-formed blocks on lines of their own."""
    calls = []
    for block in _BLOCK.findall(text):
        try:
            call = json.loads(block)
        except (ValueError, RecursionError):
            continue
        if (
            isinstance(call, dict)
            and isinstance(call.get("name"), str)
            and isinstance(call.get("arguments"), dict)
            and _shallow(call)
        ):
            calls.append(ToolCall(call["name"], call["arguments"]))
    return calls


def _shallow(value: Any) -> bool:
    """Whether it nests no deeper than MAX_DEPTH: templates and encoders recurse."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for part in level
            if isinstance(part, dict | list)
            for item in (part.values() if isinstance(part, dict) else part)
        ]
        if not level:
            return True
    return False


def written(calls: Sequence[ToolCall]) -> str:
    """Calls in the form that the official decoder reads."""
    values = ({"name": call.name, "arguments": dict(call.arguments)} for call in calls)
    return "\n".join(f"<tool_call>\n{json.dumps(value, ensure_ascii=False)}\n</tool_call>" for value in values)


def without_calls(text: str) -> str:
    """The text without what the official decoder would take for a call."""
    return _BLOCK.sub("", text)


# Ground truth


def true_turns(entry: Entry) -> list[list[ToolCall]]:
    """The right calls, user turn by user turn; single-turn entries have one. Relevance entries: any call will do."""
    category, truth = category_of(entry), entry["ground_truth"]
    if category.startswith("multi_turn"):
        return [[ToolCall(call["name"], call["arguments"]) for call in turn] for turn in truth]
    if category == "live_relevance":
        return [[ToolCall(entry["function"][0]["name"], {})]]
    declared = {function["name"]: function["parameters"] for function in entry["declared"]}
    calls = [(tool, options) for call in accepted(entry) for tool, options in call.items()] if truth else []
    return [[ToolCall(tool, _right(options, declared[tool])) for tool, options in calls]]


def category_of(entry: Entry) -> str:
    return entry["id"].rsplit("_", 1)[0]


def accepted(entry: Entry) -> list[dict[str, dict[str, list[Any]]]]:
    """Ground truth call by call, {tool: {argument: accepted values}}, with values as a call writes them."""
    truth = entry["ground_truth"]
    if category_of(entry) not in SOURCE:
        return truth
    return [{tool: sources(options, entry["declared"][0]) for tool, options in call.items()} for call in truth]


def _right(options: Mapping[str, list[Any]], declared: Mapping[str, Any]) -> dict[str, Any]:
    """The first accepted value of each argument. "" stands for one that may be left out, unless the tool requires it; one that
    the tool does not declare is left out where it may be (the checker would refuse it)."""
    out = {}
    for key, values in options.items():
        given = [one for one in values if one != ""]
        if given and (key in declared["properties"] or "" not in values):
            out[key] = plain(given[0])
        elif not given and values and key in declared.get("required", ()):
            out[key] = ""
    return out


def first(options: Mapping[str, list[Any]]) -> dict[str, Any]:
    """The first accepted value of each argument that has one besides "", which stands for "may be left out"."""
    firsts = {key: next((one for one in values if one != ""), None) for key, values in options.items()}
    return {key: plain(one) for key, one in firsts.items() if one is not None}


def plain(one: Any) -> Any:
    """An accepted value as a call has it; objects in the ground truth hold lists of accepted values again."""
    if isinstance(one, dict) and all(isinstance(options, list) for options in one.values()):
        return first(one)
    return [plain(part) for part in one] if isinstance(one, list) else one


def sources(options: Mapping[str, list[Any]], function: Mapping[str, Any]) -> dict[str, list[str]]:
    """Accepted values as Java or JavaScript source text."""
    properties = function["parameters"]["properties"]
    kinds = {key: (part["type"], part.get("items", {}).get("type", "")) for key, part in properties.items()}
    return {key: [one if one == "" else _source(one, *kinds[key]) for one in values] for key, values in options.items()}


def _source(value: Any, kind: str, item: str = "") -> str:
    """A value as Java or JavaScript source text, in the forms that the official converters read."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value}{ {'long': 'L', 'Bigint': 'n'}.get(kind, '') }"
    if isinstance(value, list) and kind in ("Array", "ArrayList"):
        parts = ", ".join(f'"{part}"' if kind == "ArrayList" and item == "String" else _source(part, item) for part in value)
        return f"new Object[]{{{parts}}}" if kind == "Array" else f"new ArrayList<>(Arrays.asList({parts}))"
    if isinstance(value, dict) and kind == "HashMap":
        puts = (f'put("{key}", {json.dumps(plain(options[0]))});' for key, options in value.items())
        return f"new HashMap<>() {{{{ {' '.join(puts)} }}}}"
    return value if isinstance(value, str) else json.dumps(plain(value))


# Oracles


def oracle(entries: Sequence[Entry], damage: str = "") -> Chat:
    """A chat that knows the ground truth. damage: a key of `DAMAGES`, done to every second entry."""
    known = {entry["id"]: entry for entry in entries}
    spoiled = {entry["id"] for entry in entries[1::2]} if damage else set()

    def reply(request: Request) -> Reply:
        entry = known[request.key]
        if category_of(entry).startswith(("memory", "web_search")):
            return Reply(str(entry["ground_truth"][0]))
        turns = true_turns(entry)
        rewrite: Callable[[str], str] = str
        if request.key in spoiled:
            turns, rewrite = DAMAGES[damage](copy.deepcopy(turns))
        calls = turns[request.turn] if request.step == 0 else []
        return Reply(rewrite(written(calls)) if calls else (DONE if request.step else SILENCE))

    return lambda requests: [reply(request) for request in requests]


def silent(requests: Sequence[Request]) -> list[Reply]:
    """The do-nothing policy: text, never a call."""
    return [Reply(SILENCE) for _ in requests]


Turns = list[list[ToolCall]]
Damaged = tuple[Turns, Callable[[str], str]]  # the calls, and what is done to their text


def _wrong_value(turns: Turns) -> Damaged:
    """The first argument of the first call that has one gets another value."""
    for turn in turns:
        for i, call in enumerate(turn):
            if call.arguments:
                key = next(iter(call.arguments))
                turn[i] = ToolCall(call.name, {**call.arguments, key: _other(call.arguments[key])})
                return turns, str
    return turns, str


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 987
    return "quite another value" if isinstance(value, str) else type(value)()


def _renamed(turns: Turns) -> Damaged:
    for turn in turns:
        for i, call in enumerate(turn):
            turn[i] = ToolCall(f"{call.name}_x", call.arguments)
    return turns, str


def _dropped(turns: Turns) -> Damaged:
    next((turn for turn in reversed(turns) if turn), [None]).pop()
    return turns, str


def _repeated(turns: Turns) -> Damaged:
    last = next((turn for turn in reversed(turns) if turn), None)
    if last:
        last.append(last[-1])
    return turns, str


DAMAGES: dict[str, Callable[[Turns], Damaged]] = {
    "wrong_value": _wrong_value,
    "renamed": _renamed,
    "dropped": _dropped,
    "repeated": _repeated,
    "no_newlines": lambda turns: (turns, lambda text: text.replace(">\n", ">").replace("\n</", "</")),
    "prose": lambda turns: (turns, lambda text: f"Let me look that up for you.\n{text}"),
}
