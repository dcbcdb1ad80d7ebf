"""Where rows sit when prompts are shared: a place holds one prompt, and its slots take that prompt's rows one after the other.

A prompt gets one place, where all its rows pass through; prompts that wait for their first place come before a second place for
one that has it. When no prompt waits any more, places that fall empty take the prompts with most rows left (on a mesh, of their
own shard), so that none idles while its neighbours have a queue.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from slca.rollout.sampler import Sampler


class Plan(NamedTuple):
    """What to do, in this order: load prompts (place -> prompt), copy prompts (place -> place), start rows (prompt, slot)."""

    loads: dict[int, int]
    copies: list[tuple[int, int]]
    seats: list[tuple[int, int]]


def plan(holds: Sequence[int | None], free: np.ndarray, waiting: Mapping[int, int], shards: int = 1) -> Plan:
    """holds: the prompt of each place; free [P, w]: its slots; waiting: prompt -> rows, in order of arrival."""
    left, found = dict(waiting), Plan({}, [], [])
    own, width = len(holds) // shards, free.shape[1]
    held: dict[int, list[int]] = {}
    idle: list[int] = []

    def seat(place: int, prompt: int) -> None:
        slots = (place * width + np.flatnonzero(free[place])[: left[prompt]]).tolist()
        found.seats.extend((prompt, slot) for slot in slots)
        left[prompt] -= len(slots)
        held.setdefault(prompt, []).append(place)

    for place, prompt in enumerate(holds):
        if prompt is not None and left.get(prompt):
            seat(place, prompt)
        elif free[place].all():
            idle.append(place)
    idle.sort(key=lambda place: (place % own, place // own))  # the shards in turn
    for prompt in left:
        if idle and left[prompt] and prompt not in held:
            place = idle.pop(0)
            found.loads[place] = prompt
            seat(place, prompt)
    fresh = set(found.loads.values())
    for place in idle:
        near = {prompt: [at for at in held[prompt] if at // own == place // own] for prompt in left if left[prompt]}
        near = {prompt: places for prompt, places in near.items() if places or prompt in fresh}
        if not near:
            continue
        prompt = max(near, key=left.__getitem__)
        if prompt in fresh:
            found.loads[place] = prompt
        else:
            found.copies.append((near[prompt][0], place))
        seat(place, prompt)
    return found


class Places:
    """Rows that wait for a place (`Item`s of the caller), and what each place of the sampler holds."""

    def __init__(self, sampler: Sampler):
        self.sampler = sampler
        self.prefilled = Counter[str]()  # prompts, and their tokens, so far
        self._holds: list[int | None] = [None] * sampler.places
        self._numbers: dict[tuple[int, ...], int] = {}
        self._waiting: dict[int, deque[Any]] = {}  # prompts in order of arrival

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, prompt: tuple[int, ...], item: Any) -> None:
        number = self._numbers.setdefault(prompt, len(self._numbers))
        self._waiting.setdefault(number, deque()).append(item)

    def discard(self, item: Any) -> None:
        """Forget a row that waits; one that does not is no error."""
        for items in self._waiting.values():
            if item in items:
                items.remove(item)
                break

    def open(self, free: np.ndarray) -> bool:
        """Whether `fill` would seat a row, where free [B] says which slots are."""
        return bool(self._plan(free).seats)

    def fill(self, weights: Any, state: Any, free: np.ndarray) -> tuple[Any, list[tuple[Any, int]]]:
        """(state, (item, slot) of the rows that start). Each program's prompts are loaded and let go before the next is run."""
        move = self._plan(free)
        texts = list(self._numbers)
        order = list(dict.fromkeys(move.loads.values()))
        lengths = [len(texts[number]) for number in order]
        for _, _, members in self.sampler.batches(lengths):
            chosen = [order[i] for i in members]
            targets = [(place, chosen.index(number)) for place, number in move.loads.items() if number in chosen]
            caches = self.sampler.prefill(weights, [list(texts[number]) for number in chosen])
            state = self.sampler.place(state, caches, [source for _, source in targets], [place for place, _ in targets])
        self.prefilled.update(prompts=len(order), tokens=sum(lengths))
        if move.copies:
            state = self.sampler.spread(state, move.copies)
        for place, number in [*move.loads.items(), *((to, self._holds[place]) for place, to in move.copies)]:
            self._holds[place] = number
        if not move.seats:
            return state, []
        state = self.sampler.start(state, [slot for _, slot in move.seats])
        seated = [(self._waiting[number].popleft(), slot) for number, slot in move.seats]
        self._waiting = {number: items for number, items in self._waiting.items() if items}
        return state, seated

    def _plan(self, free: np.ndarray) -> Plan:
        waiting = {number: len(items) for number, items in self._waiting.items()}
        return plan(self._holds, np.reshape(free, (self.sampler.places, -1)), waiting, self.sampler.shards)
