"""Ids of any lengths as the arguments of programs of few shapes. NumPy only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int


def split(items: Sequence[int] | np.ndarray, sizes: Sequence[int]) -> list[Any]:
    """Cut into pieces of at most the largest size; a rest that is small against it goes in pieces of the smallest."""
    pieces, at = [], 0
    while at < len(items):
        rest = len(items) - at
        size = sizes[-1] if 2 * rest >= sizes[-1] else sizes[0]
        pieces.append(items[at : at + size])
        at += size
    return pieces


def padded(prompts: Sequence[Sequence[int]], rows: int, length: int) -> Int[np.ndarray, "rows length"]:
    """Prompts padded on the right."""
    tokens = np.zeros((rows, length), np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    return tokens


def append_calls(
    pieces: Mapping[int, Sequence[int]], bucket: int, room: int, own: int, shards: int
) -> list[tuple[np.ndarray, ...]]:
    """Arguments (tokens, count, rows, last) of as few `programs.append` calls as it takes.

    pieces: slot -> ids, at most `bucket`. Each call has room for `room` rows of each of the `shards` ranges of `own` slots.
    """
    seen = Counter[int]()
    calls: list[tuple[np.ndarray, ...]] = []
    for slot, ids in pieces.items():
        shard, row = divmod(slot, own)
        number, at = (0, row) if room == own else divmod(seen[shard], room)
        seen[shard] += 1
        if number == len(calls):
            shape = (shards, room)
            tokens, rows = np.zeros((*shape, bucket), np.int32), np.full(shape, own, np.int32)
            calls.append((tokens, np.zeros(shape, np.int32), rows, np.zeros(shape, np.int32)))
        tokens, count, rows, last = (x[shard] for x in calls[number])
        tokens[at, 1 : len(ids)], count[at], rows[at], last[at] = ids[:-1], len(ids), row, ids[-1]
    return calls
