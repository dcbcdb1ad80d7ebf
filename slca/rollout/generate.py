"""Continuations of prompts, any number of them, through the slots of one sampler."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from slca.rollout.places import Places
from slca.rollout.programs import RUNNING, STOP
from slca.types import Samples

if TYPE_CHECKING:
    from slca.rollout.sampler import Sampler


def generate(
    sampler: Sampler, params: Any, prompts: Sequence[Sequence[int]], *, keys: Any, max_new_tokens: int, temperature: Any,
    stop_ids: Sequence[int],
) -> Samples:  # fmt: skip
    """One continuation of each prompt: finished slots are refilled with the next prompts.

    keys: typed keys, one a prompt; equal prompts are prefilled once. Stops at a stop id, at `max_new_tokens`, or where the
    cache is full. Returns host arrays [N, max_new_tokens].
    """
    weights, state, total = sampler.prepare(params), sampler.init(), len(prompts)
    key_data, temperature = np.asarray(jax.random.key_data(keys)), np.broadcast_to(np.float32(temperature), total)
    shape: Any = (total, max_new_tokens)
    empty: list[Any] = [
        np.zeros(shape, np.int32),
        np.zeros(shape, np.float32),
        np.zeros(total, np.int32),
        np.zeros(total, bool),
    ]
    out = Samples(*empty)
    waiting = Places(sampler) if sampler.places else _Slots(sampler)
    for number, prompt in enumerate(prompts):
        waiting.add(tuple(prompt), number)
    owner = np.full(sampler.slots, -1)
    while len(waiting) or (owner >= 0).any():
        state, seated = waiting.fill(weights, state, owner < 0)
        for item, slot in seated:
            owner[slot] = item
        row, live = np.maximum(owner, 0), owner >= 0
        state, tokens, logprob, count, reason = sampler.decode(
            weights,
            state,
            keys=key_data[row],
            temperature=temperature[row],
            stop_ids=stop_ids,
            budgets=np.where(live, max_new_tokens - out.length[row], 0),
            active=live,
            wanted=max(1, int(live.sum()) // 8) if len(waiting) else 0,
        )
        tokens, logprob, count, reason = jax.device_get((tokens, logprob, count, reason))
        for slot in np.flatnonzero(live).tolist():
            i, n = int(owner[slot]), int(count[slot])
            place = slice(out.length[i], out.length[i] + n)
            out.tokens[i, place], out.logprob[i, place] = tokens[slot, :n], logprob[slot, :n]
            out.length[i] += n
            out.stopped[i] = reason[slot] == STOP
        owner[live & (reason != RUNNING)] = -1
    return out


class _Slots:
    """Rows that wait for any slot; their prompts are prefilled together, before the first gets one."""

    def __init__(self, sampler: Sampler):
        self.sampler, self.prompts, self.source = sampler, dict[tuple[int, ...], int](), list[int]()
        self.waiting = deque[int]()
        self.caches: Any = None

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, prompt: tuple[int, ...], item: int) -> None:
        self.source.append(self.prompts.setdefault(prompt, len(self.prompts)))
        self.waiting.append(item)

    def fill(self, weights: Any, state: Any, free: np.ndarray) -> tuple[Any, list[tuple[int, int]]]:
        """(state, (item, slot) of the rows that got one)"""
        self.caches = self.caches or self.sampler.prefill(weights, list(self.prompts))
        slots = np.flatnonzero(free)[: len(self.waiting)].tolist()
        rows = [self.waiting.popleft() for _ in slots]
        if rows:
            state = self.sampler.insert(state, self.caches, [self.source[row] for row in rows], slots)
        return state, list(zip(rows, slots))
