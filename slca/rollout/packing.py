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


def insert_calls(
    chunk: np.ndarray, columns: Sequence[np.ndarray], source: np.ndarray, targets: np.ndarray, room: int
) -> list[tuple[int, tuple[Any, ...]]]:
    """(chunk, arguments behind it) of one `programs.insert` for each chunk that the prompts `source` come from.

    chunk [P]: where each prompt lies; columns: its row there, its length and its last token; targets: slots, or places, of `room`.
    """
    calls = []
    for number in np.unique(chunk[source]):
        chosen = chunk[source] == number
        row, length, last = (column[source[chosen]].astype(np.int32) for column in columns)
        arrays = [np.pad(x, (0, room - len(row))) for x in (row, targets[chosen], length, last)]
        calls.append((int(number), (np.int32(len(row)), *arrays)))
    return calls


def spread_calls(pairs: Sequence[tuple[int, int]], own: int, shards: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Arguments (source, place) of as few `programs.spread` calls as it takes, a copy on each of `shards` ranges of `own` places."""
    seen = Counter[int]()
    calls: list[tuple[np.ndarray, np.ndarray]] = []
    for source, place in pairs:
        shard = place // own
        if source // own != shard:
            raise ValueError(f"spread: places {source} and {place} are not of one shard, which hold {own} each")
        if seen[shard] == len(calls):
            calls.append((np.zeros((shards, 1), np.int32), np.full((shards, 1), own, np.int32)))
        sources, places = calls[seen[shard]]
        sources[shard], places[shard] = source % own, place % own
        seen[shard] += 1
    return calls


def live_rows(active: np.ndarray, shards: int, sizes: Sequence[int], width: int) -> Int[np.ndarray, "shards R"]:
    """The slots to decode, each counted within its shard: those of the places of `width` slots that hold a live row, padded to the
    least of `sizes` that holds them on every shard; all, in order, where that is the whole shard (the last of `sizes`)."""
    own = active.size // shards
    places: np.ndarray = np.any(active.reshape(shards, -1, width), 2)
    size = next(size for size in sizes if size == own or width * places.sum(1).max() <= size)
    if size == own:
        return np.tile(np.arange(own, dtype=np.int32), (shards, 1))
    rows = np.full((shards, size // width, width), own, np.int32)
    for shard in range(shards):
        found = np.flatnonzero(places[shard])
        rows[shard, : len(found)] = found[:, None] * width + np.arange(width)
    return rows.reshape(shards, size)
