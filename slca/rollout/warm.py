"""Compile every program a sampler needs for whole prompts before the first request waits for one: a server's, or a simulator's call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from slca.rollout.constraint import words
from slca.rollout.sampler import PREFILL_ROWS, Sampler, row_keys


def compile_all(sampler: Sampler, weights: Any, stop_ids: Sequence[int], *, appends: bool = False) -> None:
    """Run prefill, insert and decode once in each shape that rows of one turn meet, on a state of its own; waits for the last.

    appends: those of further turns as well, which makes it every program of `sampler.programs`.
    """
    state, slots = sampler.init(), sampler.slots
    for bucket in sampler.prompt_buckets:
        for rows in PREFILL_ROWS:
            caches = sampler.prefill(weights, [[0] * bucket] * rows)
            used = range(min(rows, slots))
            state = sampler.insert(state, caches, [0] * len(used), used)
    if appends and sampler.places > sampler.shards:
        state = sampler.spread(state, [(0, 1)])
    for bucket in sampler.suffix_buckets if appends else ():
        state = sampler.append(weights, state, {0: [0] * bucket})
    none = np.zeros(slots, np.int32)
    every = np.full((slots, words(sampler.config.vocab)), -1, np.int32)
    for live in sorted({1, slots}):  # few rows decode a quarter of the slots
        for masks in (None, every) if sampler.constrained else (None,):
            state, *_ = sampler.decode(
                weights, state, keys=row_keys(none, 0, none, none, none), temperature=0.0, stop_ids=stop_ids, budgets=none + 1,
                active=np.arange(slots) < live, allowed=masks,
            )  # fmt: skip
    jax.block_until_ready(state)
