"""One step of reinforcement: rollout -> rewards -> credit -> packed updates, and the numbers that describe it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from slca.assemble import Parts
from slca.credit import diagnostics
from slca.evals.indomain import summarize
from slca.learn.batch import pack, padding_share
from slca.learn.probe import make_logprob
from slca.learn.sharding import put_batch, row_shards
from slca.learn.terms import make_terms
from slca.learn.update import make_update
from slca.probes import focus_of, make_probe
from slca.report.behaviour import behaviour
from slca.report.metrics import finalize, merge
from slca.rewards.annotate import annotate
from slca.rewards.annotate import metrics as reward_metrics
from slca.rewards.judge import graders
from slca.rollout.engine import rollout
from slca.types import Batch, Episode, Rollouts, Task, TrainState


class Outcome(NamedTuple):
    """What a step made, beside the new state. credit [N, S]; values: metrics by name."""

    episodes: list[Episode]
    rollouts: Rollouts
    credit: Float[np.ndarray, "N S"]
    values: dict[str, float]


Step = Callable[[TrainState, Sequence[Task], int], tuple[TrainState, Outcome]]


def make_step(config: Any, parts: Parts, optimizer: Any, placement: TrainState | None = None, reference: Any = None) -> Step:
    """step(state, tasks, number) -> (state, outcome); `number` seeds the draws, the old state is donated.

    placement: shardings of the TrainState, None on one device. reference: parameters of the frozen policy of the KL term, or None.
    """
    update = make_update(
        parts.hidden, parts.unembed, optimizer, config, mesh=parts.mesh, placement=placement, terms=make_terms(parts.algorithm.terms)
    )  # fmt: skip
    params_at = None if placement is None else placement.params
    score = make_logprob(parts.hidden, parts.unembed, config, mesh=parts.mesh, params_at=params_at)
    probe = make_probe(config, parts, params_at)
    judges = graders(config)
    shards = row_shards(parts.mesh)

    def learn(state: TrainState, batches: list[Batch]) -> tuple[TrainState, dict[str, float]]:
        """`mu` sweeps over the mini-batches. Old log-probs are taken once, before the first optimiser step, where they are needed."""
        if config.train.mu * len(batches) > 1:
            batches = [batch._replace(old_logprob=score(state.params, batch)) for batch in batches]
        if reference is not None:
            batches = [batch._replace(ref_logprob=score(reference, batch)) for batch in batches]
        found = []
        for _ in range(config.train.mu):
            for batch in batches:
                state, metrics = update(state, batch)
                found.append(metrics)
        return state, finalize(merge(*jax.device_get(found)))

    def step(state: TrainState, tasks: Sequence[Task], number: int) -> tuple[TrainState, Outcome]:
        clock = [time.monotonic()]
        stats: dict[str, float] = {}
        episodes = rollout(
            state.params, tasks, parts.sampler, parts.template, parts.simulator, config,
            seed=config.run.seed, step=number, stats=stats,
        )  # fmt: skip
        clock.append(time.monotonic())
        rollouts = annotate(episodes, config, **judges)
        measured = probe(state.params, episodes, rollouts, number) if probe else None
        rollouts.rewards.update(measured.channels if measured else {})
        credit = parts.algorithm.credit(rollouts)
        focus = focus_of(measured, episodes, credit, config) if measured else None
        clock.append(time.monotonic())
        batches = pack(episodes, credit, focus, config, data_size=shards, groups=parts.algorithm.whole_groups)
        padding = merge(*({"padding": padding_share(batch, config.train.micro_rows * shards)} for batch in batches))
        state, metrics = learn(state, [put(batch, parts.mesh) for batch in batches])
        clock.append(time.monotonic())
        values = named("rollout", describe(episodes, rollouts, credit, config, parts.algorithm.options))
        values |= named("engine", stats) | named("train", metrics | finalize(padding))
        values |= named("probe", measured.counts if measured else {})
        values |= named("sgls", parts.simulator.metrics(reset=True))
        values |= {f"time/{phase}": float(t) for phase, t in zip(("rollout", "reward", "update"), np.diff(clock))}
        return state, Outcome(episodes, rollouts, credit, values)

    return step


def describe(
    episodes: list[Episode], rollouts: Rollouts, credit: Float[np.ndarray, "N S"], config: Any, options: Any
) -> dict[str, float]:
    """Numbers of a rollout batch: scores, rewards by channel, how episodes went, contamination diagnostics."""
    scores = {name: mean for name, (mean, n) in summarize(episodes, config).items() if n}
    return scores | finalize(
        merge(reward_metrics(rollouts), behaviour(episodes), diagnostics.diagnose(rollouts, credit, options))
    )


def put(batch: Batch, mesh: Any) -> Batch:
    """The batch on the mesh; on one device the update takes it from the host itself."""
    return batch if mesh is None else put_batch(batch, mesh)


def named(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    """Metric names under `prefix`, clocks apart: `time/...` stays outside, since no two runs agree on it."""
    return {name if name.startswith("time/") else f"{prefix}/{name}": value for name, value in values.items()}
