"""How many tokens a text must have, without tokenizing it: encoding a megabyte of hostile text holds the interpreter for seconds.

Each byte of a text lies in some token, and a token that holds byte b has at most `longest[b]` bytes. So the weights 1 / longest of a
token's bytes sum to at most 1, and their sum over the text is a number of tokens that it cannot stay below: a million digits are a
million tokens where no token has two of them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from slca.chat.markers import THINK_CLOSE
from slca.sgls.grammar import byte_letters

SPACE = "▁"  # how sentencepiece spells a space
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")

Bound = Callable[[str], int]


class Fewest:
    """Of one tokenizer. What is not longer than `least` characters is not looked at: its own tokens are counted fast enough."""

    def __init__(self, tokenizer: Any, least: int = 0):
        self._tokenizer, self._least = tokenizer, least

    @cached_property
    def _bounds(self) -> tuple[Bound, Bound]:
        return fewest(self._tokenizer)

    def conversation(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Tokens that a prompt of these messages has at least. Tool results do not count: they are cut to a budget; nor does
        reasoning, which a template may drop."""
        texts = [str(m.get("content") or "").rpartition(THINK_CLOSE)[2].strip() for m in messages if m["role"] != "tool"]
        return sum(map(self._bounds[0], texts)) if sum(map(len, texts)) > self._least else 0

    def raw(self, text: str) -> int:
        """Tokens that a raw prompt has at least; control strings in it are one token each."""
        return self._bounds[1](text) if len(text) > self._least else 0


def fewest(tokenizer: Any) -> tuple[Bound, Bound]:
    """text -> a number of tokens that its ids are never fewer than, for `encode` and for `encode_trusted`. 0 where the tokenizer
    does not spell its tokens."""
    spell = getattr(tokenizer, "piece", None)
    if spell is None:
        return (lambda text: 0), (lambda text: 0)
    pieces = [spell(i) for i in range(tokenizer.size)]
    letters = byte_letters() if not any(SPACE in piece for piece in pieces) else {}
    control = set(tokenizer.control.values())
    plain = np.zeros(256)
    for i, piece in enumerate(pieces):
        if i not in control:
            _widen(plain, piece, letters)
    trusted = plain.copy()
    for text in tokenizer.control:
        _widen(trusted, text, letters)
    return _bound(plain), _bound(trusted)


def _widen(longest: np.ndarray, piece: str, letters: dict[str, int]) -> None:
    """Take note of a token. A piece of letters that also stand for bytes may be meant either way."""
    if found := _BYTE.fullmatch(piece):
        longest[int(found[1], 16)] = max(1.0, longest[int(found[1], 16)])
        return
    spelled = [piece.replace(SPACE, " ").encode("utf-8", "replace")]
    if letters and all(letter in letters for letter in piece):
        spelled.append(bytes(letters[letter] for letter in piece))
    for word in spelled:
        places = list(set(word))
        longest[places] = np.maximum(longest[places], len(word))


def _bound(longest: np.ndarray) -> Bound:
    weights = np.divide(1.0 - 1e-9, longest, out=np.zeros(256), where=longest > 0)  # rounding must not lift the sum

    def bound(text: str) -> int:
        # What a pipeline may do to a text before it cuts it: compose characters, write spaces in its own way.
        forms = [text] if text.isascii() else [text, *(unicodedata.normalize(form, text) for form in ("NFC", "NFKC"))]
        counts = [
            np.bincount(np.frombuffer(form.replace(SPACE, " ").encode("utf-8", "replace"), np.uint8), minlength=256)
            for form in forms
        ]
        return min(int(count @ weights) for count in counts)

    return bound
