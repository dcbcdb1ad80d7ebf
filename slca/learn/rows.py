"""Where episodes lie in a packed batch: first-fit-decreasing, static row counts, exact round trip. NumPy only.

A batch of B rows is cut into M micro-batches of `unit` rows each: micro-batch m holds the rows m, m+M, m+2M, ... so that
a mesh that splits the rows in order never moves one between devices. Rows are filled micro-batch by micro-batch: empty
ones, which the update skips, come last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Layout(NamedTuple):
    """Episode n lies at [row[n], start[n] : start[n] + length[n]] of a [rows, row_length] batch; row -1 = left out."""

    row: np.ndarray
    start: np.ndarray
    length: np.ndarray
    rows: int
    row_length: int


def first_fit_decreasing(lengths: Sequence[int] | np.ndarray, row_length: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Row and start of each length, and the number of rows. Longest first, each into the first row with room
    (Johnson 1973: at most 11/9 of the optimal number of rows, plus one). Length 0 is left out (row -1).

    Raises ValueError when a length exceeds `row_length`.
    """
    lengths = np.asarray(lengths, np.int64)
    if lengths.size and lengths.max() > row_length:
        worst = int(lengths.argmax())
        raise ValueError(f"episode {worst} has {lengths[worst]} tokens, a packed row holds {row_length}")
    row, start = np.full(lengths.size, -1), np.zeros(lengths.size, np.int64)
    room = np.full(lengths.size, row_length)
    used = 0
    for n in np.argsort(-lengths, kind="stable"):
        if lengths[n] == 0:
            break
        row[n] = np.argmax(room >= lengths[n])
        start[n] = row_length - room[row[n]]
        room[row[n]] -= lengths[n]
        used = max(used, int(row[n]) + 1)
    return row, start, used


def shortest(row_lengths: Sequence[int], longest: int) -> int:
    """The shortest of the config's row lengths that holds `longest` tokens; ValueError when none does."""
    fitting = [length for length in sorted(row_lengths) if length >= longest]
    if not fitting:
        raise ValueError(f"train.row_lengths {tuple(row_lengths)} hold no episode of {longest} tokens: add a longer one")
    return int(fitting[0])


def bucket(rows: int, unit: int) -> int:
    """`unit` times the least power of two that makes room for `rows`: few programs, and never none at all."""
    return unit << max(-(-rows // unit) - 1, 0).bit_length()


def layout(lengths: Sequence[int], row_length: int, *, packed: bool = True) -> Layout:
    """Rows for these episode lengths; `packed=False` gives each its own row. Rows are counted, not yet padded."""
    length = np.asarray(lengths, np.int64)
    if packed:
        row, start, used = first_fit_decreasing(length, row_length)
        return Layout(row, start, length, used, row_length)
    kept = length > 0
    row = np.where(kept, np.cumsum(kept) - 1, -1)
    return Layout(row, np.zeros_like(length), length, int(kept.sum()), row_length)


def whole_groups(lengths: Sequence[int], group: Sequence[int], row_length: int, unit: int, *, packed: bool = True) -> Layout:
    """As `layout`, with every group inside one micro-batch of `unit` rows: groups in order, first fit, longest first inside.

    Raises ValueError for a group that no micro-batch can hold.
    """
    length, groups = np.asarray(lengths, np.int64), np.asarray(group)
    row, start = np.full(length.size, -1), np.zeros(length.size, np.int64)
    rooms: list[np.ndarray] = []  # of each micro-batch, what is left of its rows
    for g in dict.fromkeys(groups[length > 0].tolist()):
        members = np.flatnonzero((groups == g) & (length > 0))
        members = members[np.argsort(-length[members], kind="stable")]
        places = (_fit(length[members], room, row_length, packed) for room in [*rooms, np.full(unit, row_length)])
        micro, found = next(((m, found) for m, found in enumerate(places) if found), (-1, None))
        if found is None:
            raise ValueError(
                f"group {g}: its {len(members)} episodes ({int(length[members].sum())} tokens) do not fit one micro-batch of {unit} "
                f"rows of {row_length} tokens, and this method needs whole groups; raise train.micro_rows or train.row_lengths"
            )
        rows, starts, left = found
        rooms[micro : micro + 1] = [left]
        row[members], start[members] = micro * unit + rows, starts
    return Layout(row, start, length, len(rooms) * unit, row_length)


def _fit(
    lengths: np.ndarray, room: np.ndarray, row_length: int, packed: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Rows and starts of these lengths in rows with `room` left, and the room after; None when they do not fit."""
    room, rows, starts = room.copy(), [], []
    for length in lengths:
        fits = room >= length if packed else room == row_length
        if not fits.any():
            return None
        rows.append(int(np.argmax(fits)))
        starts.append(row_length - int(room[rows[-1]]))
        room[rows[-1]] = room[rows[-1]] - length if packed else 0
    return np.asarray(rows), np.asarray(starts), room


def padded(place: Layout, rows: int, unit: int) -> Layout:
    """The same episodes in `rows` rows, dealt to the micro-batches (see the top of the file)."""
    if rows % unit or rows < place.rows:
        raise ValueError(f"{place.rows} packed rows do not fit {rows} rows in micro-batches of {unit}")
    row = (place.row % unit) * (rows // unit) + place.row // unit
    return place._replace(row=np.where(place.row < 0, -1, row), rows=rows)


def ranks(place: Layout) -> np.ndarray:
    """1, 2, ...: the place of each episode among those of its row."""
    order = np.lexsort((place.start, place.row))
    ordered = place.row[order]
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered) + 1
    return rank


def fill(place: Layout, pieces: Sequence[np.ndarray], empty: Any, dtype: Any) -> np.ndarray:
    """One array an episode -> [rows, row_length], `empty` where no episode lies."""
    out = np.full((place.rows, place.row_length), empty, dtype)
    for row, start, length, piece in zip(place.row, place.start, place.length, pieces, strict=True):
        if row >= 0:
            out[row, start : start + length] = piece
    return out


def collect(place: Layout, values: np.ndarray) -> list[np.ndarray]:
    """The inverse of `fill`: one array an episode, empty for those left out."""
    values = np.asarray(values)
    return [
        values[row, start : start + length] if row >= 0 else values[0, :0]
        for row, start, length in zip(place.row, place.start, place.length, strict=True)
    ]
