"""What holds a row to a grammar: a bitmask of allowed tokens before each draw, and the token that was drawn after it.

`slca.sgls.grammar.Constraint` makes such masks from JSON Schemas; anything with these three methods will do. Bit v % 32 of word
v // 32 of a mask says whether token v may come next.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from jaxtyping import Bool, Int


class Constraint(Protocol):
    """The grammar of one row's turn."""

    def mask(self) -> Int[np.ndarray, " W"]:
        """Tokens that may come next, int32; words that are missing at the end allow nothing."""

    def advance(self, token: int) -> None:
        """Take the token that was sampled."""

    def stopped(self) -> bool:
        """Whether nothing but a stop token may follow."""


def words(vocab: int) -> int:
    """Words of a bitmask over `vocab` tokens."""
    return -(-vocab // 32)


def fitted(mask: Int[np.ndarray, " w"], vocab: int) -> Int[np.ndarray, " W"]:
    """A row's mask at the model's size: a tokenizer may know fewer ids than the (rounded) vocabulary, what is beyond is off."""
    whole = np.zeros(words(vocab), np.int32)
    mask = np.asarray(mask, np.int32)[: whole.size]
    whole[: mask.size] = mask
    whole[-1] &= _last(vocab)
    return whole


def checked(allowed: Int[np.ndarray, "B W"], active: Bool[np.ndarray, " B"], vocab: int) -> Int[np.ndarray, "B W"]:
    """`allowed` as int32. Raises ValueError for another shape, or an active row without a token: no distribution is left then."""
    allowed = np.asarray(allowed, np.int32)
    if allowed.shape != (len(active), words(vocab)):
        raise ValueError(f"decode: masks of shape {allowed.shape}, want {(len(active), words(vocab))}")
    some = allowed[:, :-1].any(1) | (allowed[:, -1] & _last(vocab) != 0)
    if len(empty := np.flatnonzero(active & ~some)):
        raise ValueError(f"decode: the masks of rows {empty.tolist()} allow no token")
    return allowed


def _last(vocab: int) -> np.int32:
    """The bits of the last word that are tokens."""
    return np.int32((1 << vocab % 32) - 1) if vocab % 32 else np.int32(-1)
