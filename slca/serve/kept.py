"""Rows whose answer is out and whose slot nobody needs yet: the next turn of their conversation goes on from their cache.

A request whose prompt begins with all the ids of such a row (its prompt and what it sampled) takes the row's slot and appends only
what is new. Rows are given up oldest first, and only for requests that have no slot, so keeping them costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from slca.rollout.scheduler import Row


class Kept:
    """share: a row is taken where the whole prompt is at least `share` times as long as what it adds to the row: appending works
    on several rows at once, so a short prompt is computed anew in the same time. None: nothing is ever kept."""

    def __init__(self, share: float | None):
        self.share = share
        self._rows: dict[Row, tuple[int, ...]] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._rows)

    def keep(self, row: Row, ids: Sequence[int]) -> bool:
        """Take over a row whose turn is over. ids: all that its slot holds, the pending token included. False = not wanted."""
        if self.share is None:
            return False
        self._rows[row] = tuple(ids)
        return True

    def take(self, prompt: tuple[int, ...]) -> tuple[Row, list[int]] | None:
        """The row that `prompt` goes on from, the longest one if there are several, and the ids it adds (at least one)."""
        best, longest = None, 0
        for row, ids in self._rows.items():
            n = len(ids)
            if longest < n < len(prompt) and prompt[n - 1] == ids[-1] and prompt[:n] == ids:
                best, longest = row, n
        if best is None or self.share is None or (len(prompt) - longest) * self.share > len(prompt):
            return None
        del self._rows[best]
        return best, list(prompt[longest:])

    def clear(self) -> None:
        """Forget all: their slots are gone."""
        self._rows.clear()

    def oldest(self) -> Row:
        """Give up the row that has waited longest."""
        row = next(iter(self._rows))
        del self._rows[row]
        return row
