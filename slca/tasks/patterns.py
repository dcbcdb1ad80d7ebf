"""Strings that match a regular expression, drawn at random.

Walks Python's parse of the expression; what only other engines know (`\\p{L}`) is approximated. Callers check the result.
"""

from __future__ import annotations

import re
import string
from functools import lru_cache
from random import Random
from re import _constants as codes  # what `re` itself parses with
from re import _parser as parser
from typing import Any

_EXTRA_REPEATS = 6  # of `*`, `+` and `{n,}` beyond their minimum
_ATTEMPTS = 40
_MAX_PIECES = 200_000  # of all attempts: repeats inside repeats multiply
_CATEGORIES = {
    "CATEGORY_DIGIT": string.digits,
    "CATEGORY_WORD": string.ascii_letters + string.digits + "_",
    "CATEGORY_SPACE": " ",
    "CATEGORY_NOT_SPACE": string.ascii_letters + string.digits,
    "CATEGORY_NOT_DIGIT": string.ascii_letters,
    "CATEGORY_NOT_WORD": "-. ",
}
_PRINTABLE = string.ascii_lowercase + string.digits + string.ascii_uppercase + "-_. :/@,;+=()#!%&*~"


def generate(pattern: str, rng: Random, min_length: int = 0, max_length: int | None = None) -> str | None:
    """A string that matches, its length within the bounds, or None when none was found."""
    tree = _parse(pattern)
    if tree is None:
        return None
    room = [_MAX_PIECES]
    for attempt in range(_ATTEMPTS):
        wanted = (None, min_length, min_length // 2, min_length // 4, 0)[attempt % 5]
        extra = rng.randint(0, _EXTRA_REPEATS) if wanted is None else wanted + rng.randint(0, attempt // 5)
        text = _walk(tree, rng, extra, room)
        if room[0] < 0:
            return None
        if text is not None and len(text) >= min_length and (max_length is None or len(text) <= max_length):
            return text
    return None


@lru_cache(maxsize=4096)
def _parse(pattern: str) -> Any:
    for text in (pattern, re.sub(r"\\[pP]\{\^?\w+\}", "a", pattern)):
        try:
            return parser.parse(text)
        except (re.error, OverflowError, RecursionError):
            continue
    return None


def _walk(tree: Any, rng: Random, extra: int, room: list[int]) -> str | None:
    """room: pieces that may still be made, one number for all calls."""
    out: list[str] = []
    for code, value in tree:
        room[0] -= 1
        if room[0] < 0:
            return None
        piece = _piece(str(code), value, rng, extra, room)
        if piece is None:
            return None
        out.append(piece)
    return "".join(out)


def _piece(code: str, value: Any, rng: Random, extra: int, room: list[int]) -> str | None:
    if code == "LITERAL":
        return chr(value)
    if code == "NOT_LITERAL":
        return rng.choice([c for c in _PRINTABLE[:26] if ord(c) != value])
    if code == "ANY":
        return rng.choice(string.ascii_lowercase)
    if code == "IN":
        choices = _members(value)
        return rng.choice(choices) if choices else None
    if code == "BRANCH":
        return _walk(rng.choice(value[1]), rng, extra, room)
    if code == "SUBPATTERN":
        return _walk(value[-1], rng, extra, room)
    if code in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        low, high, inner = value
        count = low + extra if high is codes.MAXREPEAT else rng.randint(low, min(low + extra, int(high)))
        pieces: list[str] = []
        for _ in range(min(count, 4096)):
            piece = _walk(inner, rng, extra, room)
            if piece is None:
                return None
            pieces.append(piece)
        return "".join(pieces)
    if code == "AT":
        return ""
    return None  # look-around, back-references: the vetting refuses them anyway


def _members(items: Any) -> str:
    """Characters of a class; letters and digits only where it has any, so that results stay readable."""
    negated = bool(items) and str(items[0][0]) == "NEGATE"
    found: set[str] = set()
    for code, value in items[1:] if negated else items:
        if str(code) == "LITERAL":
            found.add(chr(value))
        elif str(code) == "RANGE":
            found.update(chr(c) for c in range(value[0], min(value[1], value[0] + 255) + 1))
        elif str(code) == "CATEGORY":
            found.update(_CATEGORIES.get(str(value), ""))
    allowed = [c for c in _PRINTABLE if c not in found] if negated else sorted(found)
    plain = [c for c in allowed if c.isascii() and c.isalnum()]
    readable = [c for c in plain if c.islower() or c.isdigit()] or plain
    return "".join(readable or [c for c in allowed if c.isprintable()] or allowed)
