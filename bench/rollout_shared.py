"""`python -m bench.rollout_engine shared`: groups over long prompts, stored once a place against once a slot."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import jax
import numpy as np

from bench.rollout_engine import Bench, drain, lengths, prompt_of, ratios, spread
from slca.rollout.sampler import Sampler, row_keys
from slca.rollout.scheduler import Scheduler


def step_seconds(bench: Bench, sampler: Sampler, length: int) -> float:
    """Seconds of one decode step with every slot busy."""
    slots, steps = sampler.slots, sampler.decode_steps
    weights = sampler.prepare(bench.params)
    prompt = sampler.prefill(weights, [prompt_of(bench.config.vocab, length, 0)])  # what it says costs nothing
    state = sampler.insert(sampler.init(), prompt, [0] * slots, range(slots))
    none = np.zeros(slots, np.int32)
    call: dict[str, Any] = dict(keys=row_keys(none, 0, none, none, none), temperature=1.0, stop_ids=(), budgets=none + 4096)
    seconds = []
    for _ in range(bench.rounds):
        state = sampler.start(state, range(slots)) if sampler.places else state._replace(length=none + length - 1)
        jax.block_until_ready(state)
        start = time.perf_counter()
        state, *_ = sampler.decode(weights, state, **call)
        jax.block_until_ready(state)
        seconds.append((time.perf_counter() - start) / steps)
    return statistics.median(seconds[1:])


def shared(bench: Bench) -> None:
    """Prompts stored once a place against once a slot, a length at a time."""
    group, slots = bench.group, bench.slots
    rows = 2 * slots
    most = 2 * bench.new if bench.varied else bench.new
    budgets = lengths(rows, bench.new, 0.6, 8, most) if bench.varied else [bench.new] * rows
    small = sum(x.nbytes for x in jax.tree.leaves(bench.params))
    for length in bench.prompts:
        prompts = [prompt_of(bench.config.vocab, length, n) for n in range(rows // group)]
        make = partial(bench.sampler, length + most, (length,))
        pools = {"own": make()} | {f"{w} a place": make(shared_slots=w, own_length=most) for w in (group, group // 2)}
        read = {name: small + pool.nbytes() for name, pool in pools.items()}
        print(f"shared: prompts of {length}: cache and, by bytes alone, a step: " + "; ".join(
            f"{name} {pool.nbytes() / 2**20:,.0f} MiB, {read['own'] / read[name]:.2f}x" for name, pool in pools.items()
        ), flush=True)  # fmt: skip
        steps = {name: [step_seconds(bench, pool, length)] for name, pool in pools.items()}
        for name, pool in pools.items():
            steps[name].append(step_seconds(bench, pool, length))
        print("shared: a step of all slots: " + "; ".join(
            f"{name} {1e3 * min(s):.1f} ms, {min(steps['own']) / min(s):.2f}x" for name, s in steps.items()
        ), flush=True)  # fmt: skip
        if bench.steps_only:
            continue

        def run(pool: Sampler, prompts: list[list[int]] = prompts) -> Scheduler:
            scheduler = bench.scheduler(pool)
            for i in range(rows):
                scheduler.submit(prompts[i // group], prompt_key=i // group, sample=i % group, budget=budgets[i])
            drain(scheduler, scheduler.cancel)
            return scheduler

        seconds = bench.compare({name: partial(run, pool) for name, pool in pools.items()})
        busy = {name: (s := run(pool).stats)["tokens_decoded"] / s["slot_steps"] for name, pool in pools.items()}
        print(f"shared: {rows} rows of {statistics.mean(budgets):.0f} tokens, groups of {group}, {slots} slots: " + "; ".join(
            f"{name} {spread(s)} s, {ratios(seconds['own'], s)}x, slots busy {busy[name]:.0%}" for name, s in seconds.items()
        ), flush=True)  # fmt: skip
