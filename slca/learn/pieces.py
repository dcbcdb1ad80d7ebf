"""Rollouts of one prompt in packed rows that hold the prompt once. NumPy only.

A group's rollouts begin with the same tokens. Where `train.share_prompts` is set, a row holds them once, as a piece of its own, and
behind it, for each rollout of the group in that row, a piece with the rest, which attends to the first as well
(`slca.policy.attention.Prefix`). Every hidden state is that of the whole rollout, so are log-probs, and gradients but for the order
of additions; what falls away is work: G prompts of P tokens and answers of A become P + G A tokens. The last prompt token stays
with each rollout, since it predicts the first sampled one. (The idea is that of Prefix Grouper, arXiv 2506.05433, in packed rows.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from slca.learn.rows import Layout


class Pieces(NamedTuple):
    """Piece n is tokens [start[n], stop[n]) of episode[n]; prompt[n]: the piece it goes on from, itself where there is none."""

    episode: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    prompt: np.ndarray

    def cut(self, arrays: Sequence[Any]) -> list[Any]:
        """One array an episode -> one a piece."""
        return [arrays[n][a:b] for n, a, b in zip(self.episode, self.start, self.stop, strict=True)]


def shares_prompts(train: Any, groups: bool) -> bool:
    """Whether a run's rows hold a group's prompt once. groups: each is kept inside a micro-batch (records with `whole_groups`), and shares
    nothing."""
    return bool(train.share_prompts and not groups)


def whole(lengths: Sequence[int] | np.ndarray) -> Pieces:
    """Every episode one piece."""
    each = np.arange(len(lengths))
    return Pieces(each, np.zeros(len(lengths), np.int64), np.asarray(lengths, np.int64), each)


def common_prefix(tokens: Sequence[np.ndarray], first: Sequence[int], group: Sequence[int]) -> np.ndarray:
    """[N] tokens that an episode's whole group begins with, at most first[n] - 1 of episode n; 0 for a group of one.

    first: place of the first sampled token of each; tokens before it are the prompt.
    """
    groups, out = np.asarray(group), np.zeros(len(tokens), np.int64)
    for g in np.unique(groups):
        members = np.flatnonzero(groups == g).tolist()
        if len(members) > 1:
            limit = min(first[n] - 1 for n in members)
            heads = np.stack([np.asarray(tokens[n])[:limit] for n in members])
            differs = np.flatnonzero((heads != heads[0]).any(0))
            out[members] = differs[0] if len(differs) else limit
    return out


def shared_layout(
    lengths: Sequence[int], prefix: Sequence[int] | np.ndarray, group: Sequence[int], row_length: int
) -> tuple[Layout, Pieces]:
    """Rows and pieces: group by group, largest first, longest rollout first, each into the first row that holds its prompt and has room
    for the rest, else into the first with room for both, else into a new one.

    Raises ValueError when an episode is longer than a row.
    """
    length, common, groups = np.asarray(lengths, np.int64), np.asarray(prefix, np.int64), np.asarray(group)
    if length.size and length.max() > row_length:
        raise ValueError(f"episode {length.argmax()} has {length.max()} tokens, a packed row holds {row_length}")
    room: list[int] = []
    pieces: list[tuple[int, int, int, int]] = []
    places: list[tuple[int, int]] = []

    def add(row: int, episode: int, start: int, stop: int, prompt: int | None = None) -> int:
        places.append((row, row_length - room[row]))
        room[row] -= stop - start
        pieces.append((episode, start, stop, len(pieces) if prompt is None else prompt))
        return len(pieces) - 1

    def fitting(rows: Any, size: int) -> int | None:
        return next((row for row in rows if room[row] >= size), None)

    for g in sorted(np.unique(groups[length > 0]).tolist(), key=lambda g: (-int(length[groups == g].sum()), g)):
        members = np.flatnonzero((groups == g) & (length > 0))
        prompt_of: dict[int, int] = {}  # row -> the piece that holds the prompt there
        for n in members[np.argsort(-length[members], kind="stable")].tolist():
            p, total = int(common[n]), int(length[n])
            row = fitting(prompt_of, total - p) if p else None
            if row is None:
                row = fitting(range(len(room)), total)
                if row is None:
                    row = len(room)
                    room.append(row_length)
                if p:
                    prompt_of[row] = add(row, n, 0, p)
            add(row, n, p, total, prompt_of.get(row))
    table = np.asarray(pieces, np.int64).reshape(-1, 4)
    at = np.asarray(places, np.int64).reshape(-1, 2)
    found = Pieces(*table.T)
    return Layout(at[:, 0], at[:, 1], found.stop - found.start, len(room), row_length), found
