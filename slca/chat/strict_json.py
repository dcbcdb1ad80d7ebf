"""One JSON value out of model text: where it ends, and every reason not to trust it.

Python's decoder accepts NaN, lets the last of two equal keys win, turns 1e999 into inf, raises `ValueError` (not
`JSONDecodeError`) on integers beyond 4,300 digits and `RecursionError` on deep nesting. `read` makes each a typed fault.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

MAX_DEPTH = 64  # levels of nesting
MAX_BYTES = 256 * 1024  # of one value, UTF-8
MAX_DIGITS = 4300  # of one integer

_SPACE = re.compile(r"[ \t\n\r]*")
# Possessive, so that a string that is never closed costs one pass, not one a quote.
STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*+"', re.DOTALL)
_NESTING = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)


def skip_space(text: str, at: int) -> int:
    """The offset of the first character at or after `at` that is not JSON white space."""
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # the pattern matches everywhere


class Fault(NamedTuple):
    """kind: one of `slca.types.CallError`; detail: what was wrong; at: offset in the text; cut: the text ended too early."""

    kind: str
    detail: str
    at: int
    cut: bool = False


class Value(NamedTuple):
    """A decoded value (None when `fault` is set) and the offset just behind it (behind the fault when it cannot be known)."""

    value: Any
    end: int
    fault: Fault | None = None


class Reader:
    """A strict decoder. One instance is one thread's: the hooks note faults in a list, so the end of a bad value is still known."""

    def __init__(self, *, max_depth: int = MAX_DEPTH, max_bytes: int = MAX_BYTES):
        self._max_depth, self._max_bytes = max_depth, max_bytes
        self._faults: list[tuple[str, str]] = []
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._object, parse_int=self._int, parse_float=self._float, parse_constant=self._constant
        )

    def read(self, text: str, start: int = 0) -> Value:
        """The JSON value at `start` (leading white space allowed). Never raises."""
        start = skip_space(text, start)
        if start >= len(text):
            return Value(None, start, Fault("malformed_json", "nothing where a JSON value should be", start, cut=True))
        self._faults.clear()
        try:
            value, end = self._decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            return Value(None, error.pos, Fault("malformed_json", error.msg, error.pos, cut=_cut(text, error.pos)))
        except RecursionError:
            end, _ = _balance(text, start)
            return Value(None, end, self._too_deep(start))
        if end - start > self._max_bytes // 4 and len(text[start:end].encode("utf-8", "surrogatepass")) > self._max_bytes:
            return Value(None, end, Fault("too_large", f"larger than {self._max_bytes:,} bytes", start))
        fault = self._inspect(text, start, end, value)
        return Value(None if fault else value, end, fault)

    def _inspect(self, text: str, start: int, end: int, value: Any) -> Fault | None:
        if self._faults:
            return Fault(*self._faults[0], start)
        brackets = text.count("{", start, end) + text.count("[", start, end)  # an upper bound of the depth, at C speed
        if brackets > self._max_depth and _balance(text, start)[1] > self._max_depth:
            return self._too_deep(start)
        if not text.isascii() or text.find("\\u", start, end) >= 0:
            try:
                json.dumps(value, ensure_ascii=False).encode("utf-8")
            except UnicodeEncodeError:
                return Fault("bad_text", "half of a surrogate pair, which is not text", start)
        return None

    def _too_deep(self, at: int) -> Fault:
        return Fault("too_deep", f"nested deeper than {self._max_depth} levels", at)

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            self._faults.append(("duplicate_key", f"the key {preview(twice, 80)} is there twice"))
        return value

    def _int(self, digits: str) -> int:
        if len(digits) - digits.startswith("-") > MAX_DIGITS:
            self._faults.append(("number_range", f"an integer of more than {MAX_DIGITS:,} digits"))
            return 0
        return int(digits)

    def _float(self, digits: str) -> float:
        value = float(digits)
        if math.isinf(value):
            self._faults.append(("number_range", f"{preview(digits, 40)} is beyond the largest float"))
        return value

    def _constant(self, name: str) -> float:
        self._faults.append(("number_range", f"{name} is not JSON"))
        return 0.0


def sound(text: str) -> str:
    """Half surrogates, which nothing can encode, become U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def preview(text: str, size: int) -> str:
    """`text` quoted as JSON (so one line, no control characters), at most about `size` characters; longer text is cut."""
    shown = text if len(text) <= size else text[: size - 1] + "…"
    return json.dumps(shown.encode("utf-8", "replace").decode("utf-8"), ensure_ascii=False)


def _cut(text: str, at: int) -> bool:
    """Did decoding fail because the text ended? True at the end, and inside a string that is never closed."""
    return skip_space(text, at) >= len(text) or (text[at] == '"' and STRING.match(text, at) is None)


def _balance(text: str, start: int) -> tuple[int, int]:
    """(offset behind the value, deepest level) by counting brackets outside strings; the end of the text if it never closes."""
    level = deepest = 0
    for match in _NESTING.finditer(text, start):
        bracket = text[match.start()]
        if bracket in "[{":
            level += 1
            deepest = max(deepest, level)
        elif bracket in "]}":
            level -= 1
            if level <= 0:
                return match.end(), deepest
    return len(text), deepest
