"""Tool-output budget in tokens: cut in the middle, with a marker that says how many tokens are gone.

The head of a result says what it is, its tail often holds the outcome; the middle is the cheapest loss. A JSON result stays
JSON: long strings, lists and objects inside it are shortened, each with its own marker. Characters are never split.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from slca.chat.strict_json import Reader, skip_space

SMALLEST = 32  # tokens; below it the markers alone would not fit
_SIZES = tuple(2**n for n in range(10, -1, -1))  # items kept of a list or object, tried in turn

Count = Callable[[str], int]


def cut(content: str, budget: int, encode: Callable[[str], list[int]], decode: Callable[[list[int]], str]) -> str:
    """`content`, or a shorter text of at most `budget` tokens. Valid JSON stays valid JSON where its skeleton fits."""
    if len(content.encode("utf-8", "replace")) <= budget:  # no token is shorter than a byte
        return content
    ids = encode(content)
    if len(ids) <= budget:
        return content
    return _cut_json(content, budget, len(ids), lambda text: len(encode(text))) or _cut_text(ids, budget, encode, decode)


def marker(tokens: int) -> str:
    """What stands where `tokens` tokens were."""
    return f"[... {tokens} tokens cut ...]"


def _cut_text(ids: list[int], budget: int, encode: Callable[[str], list[int]], decode: Callable[[list[int]], str]) -> str:
    kept = budget - len(encode(f"\n{marker(len(ids))}\n"))
    while kept > 0:
        head, tail = ids[: (kept + 1) // 2], ids[len(ids) - kept // 2 :]
        text = f"{_whole(decode(head))}\n{marker(len(ids) - kept)}\n{_whole(decode(tail))}"
        over = len(encode(text)) - budget
        if over <= 0:
            return text
        kept -= over
    return marker(len(ids))


def _whole(text: str) -> str:
    """Without the halves of characters that a cut between byte tokens leaves at the edges."""
    return text.strip("\ufffd")


def _cut_json(content: str, budget: int, tokens: int, count: Count) -> str | None:
    value, end, fault = Reader(max_bytes=4 * len(content)).read(content)
    if fault is not None or skip_space(content, end) != len(content):
        return None
    for items in _SIZES:
        # What is cut is nearly everything, so it is counted only for a size that fits with markers of the largest number.
        if count(_json(_shortened(value, items, lambda _: tokens))) <= budget:
            text = _json(_shortened(value, items, count))
            if count(text) <= budget:
                return text
    return None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _shortened(value: Any, items: int, count: Count) -> Any:
    """`value` with at most about `items` entries in each list and object and `8 * items` characters in each string."""
    characters = 8 * items
    if isinstance(value, str) and len(value) > characters + 32:
        head, tail = characters // 2, len(value) - characters // 2
        return value[:head] + marker(count(value[head:tail])) + value[tail:]
    if isinstance(value, list):
        head, tail = (items + 1) // 2, len(value) - items // 2
        if len(value) <= items + 1:
            return [_shortened(item, items, count) for item in value]
        gone = marker(count(_json(value[head:tail])))
        kept = [[_shortened(item, items, count) for item in part] for part in (value[:head], value[tail:])]
        return [*kept[0], gone, *kept[1]]
    if isinstance(value, Mapping):
        entries = list(value.items())
        short = {key: _shortened(item, items, count) for key, item in entries[:items]}
        if len(entries) > items:
            short["..."] = marker(count(_json(dict(entries[items:]))))
        return short
    return value
