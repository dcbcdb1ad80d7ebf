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
from slca.credit.record import Algorithm
from slca.evals.indomain import summarize
from slca.learn.batch import pack, padding_share
from slca.learn.probe import make_gradients, make_logprob
from slca.learn.sharding import put_batch, row_shards
from slca.learn.terms import make_terms
from slca.learn.update import make_update
from slca.probes import focus_of, make_probe, make_segment_kl
from slca.report.behaviour import behaviour
from slca.report.metrics import finalize, merge
from slca.resampling import resample
from slca.rewards.annotate import annotate
from slca.rewards.annotate import metrics as reward_metrics
from slca.rewards.judge import graders
from slca.rewards.kl import charge
from slca.rewards.noise import disturb
from slca.rollout.engine import rollout
from slca.types import Batch, Episode, Rollouts, Task, TrainState

ATTEMPT_STRIDE = 1 << 20  # beyond the steps of any run: what a second attempt at a step adds to its number


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
    record, shards = parts.algorithm, row_shards(parts.mesh)
    params_at = None if placement is None else placement.params
    collect = make_collect(config, parts, params_at, reference)
    probe = make_probe(config, parts, params_at)
    learn = make_learn(config, parts, optimizer, placement, reference)

    def step(state: TrainState, tasks: Sequence[Task], number: int) -> tuple[TrainState, Outcome]:
        began = time.monotonic()
        episodes, rollouts, values = collect(state.params, tasks, number)
        measured = probe(state.params, episodes, rollouts, number) if probe else None
        rollouts.rewards.update(measured.channels if measured else {})
        credit = record.credit(rollouts)
        focus = focus_of(measured, episodes, credit, config) if measured else None
        rewarded = time.monotonic()
        batches = pack(episodes, credit, focus, config, data_size=shards, groups=record.whole_groups)
        padding = merge(*({"padding": padding_share(batch, config.train.micro_rows * shards)} for batch in batches))
        state, metrics = learn(state, [put(batch, parts.mesh) for batch in batches], number)
        values["time/reward"] = rewarded - began - values["time/rollout"]
        values["time/update"] = time.monotonic() - rewarded
        values |= named("rollout", describe(episodes, rollouts, credit, config, record))
        values |= named("train", metrics | finalize(padding)) | named("probe", measured.counts if measured else {})
        values |= named("sgls", parts.simulator.metrics(reset=True))
        return state, Outcome(episodes, rollouts, credit, values)

    return step


def make_collect(config: Any, parts: Parts, params_at: Any, reference: Any) -> Callable[..., Any]:
    """collect(params, tasks, number) -> (episodes, rewarded rollouts, metrics by name); resamples groups where the config asks."""
    judges = graders(config)
    segment_kl = make_segment_kl(config, parts, params_at)

    def reward(params: Any, episodes: list[Episode], step: int) -> Rollouts:
        rollouts, w = annotate(episodes, config, **judges), config.reward
        if w.summary_noise > 0:
            seed = (config.run.seed, step)
            rollouts = disturb(rollouts, w.summary_noise, w.summary_noise_rho, seed=seed, summary_weight=w.summary_weight)
        if config.reward.kl_coef > 0:
            rollouts = charge(rollouts, segment_kl(params, reference, episodes, rollouts.kind.shape[1]), config.reward.kl_coef)
        return rollouts

    def collect(params: Any, tasks: Sequence[Task], number: int) -> tuple[list[Episode], Rollouts, dict[str, float]]:
        def roll(groups: list[int], step: int, stats: dict[str, float] | None = None) -> list[Episode]:
            episodes = rollout(
                params, [tasks[g] for g in groups], parts.sampler, parts.template, parts.simulator, config,
                seed=config.run.seed, step=step, stats=stats,
            )  # fmt: skip
            for episode in episodes:
                episode.group = groups[episode.group]
            return episodes

        def attempt(groups: list[int], again: int) -> tuple[list[Episode], Rollouts]:
            step = number + again * ATTEMPT_STRIDE
            episodes = roll(groups, step)
            return episodes, reward(params, episodes, step)

        began, stats = time.monotonic(), dict[str, float]()
        episodes = roll(list(range(len(tasks))), number, stats)
        seconds = time.monotonic() - began
        rollouts = reward(params, episodes, number)
        values = named("engine", stats) | {"time/rollout": seconds}
        if config.rollout.resample:
            credit_of = parts.algorithm.credit
            episodes, rollouts, counts = resample(episodes, rollouts, attempt, credit_of, config.rollout.resample)
            values |= named("resample", counts)
        return episodes, rollouts, values

    return collect


def make_learn(
    config: Any, parts: Parts, optimizer: Any, placement: TrainState | None, reference: Any
) -> Callable[..., tuple[TrainState, dict[str, float]]]:
    """learn(state, batches, number) -> (state, metrics): `train.mu` sweeps over the mini-batches of a step."""
    terms, every = make_terms(parts.algorithm.terms), config.report.gradient_every
    update = make_update(parts.hidden, parts.unembed, optimizer, config, mesh=parts.mesh, placement=placement, terms=terms)
    params_at = None if placement is None else placement.params
    score = make_logprob(parts.hidden, parts.unembed, config, mesh=parts.mesh, params_at=params_at)
    gradients = make_gradients(parts.hidden, parts.unembed, config, terms=terms, mesh=parts.mesh, params_at=params_at)

    def learn(state: TrainState, batches: list[Batch], number: int) -> tuple[TrainState, dict[str, float]]:
        # Old log-probs are taken once, before the first optimiser step, and only where they can differ from the new ones.
        if config.train.mu * len(batches) > 1:
            batches = [batch._replace(old_logprob=score(state.params, batch)) for batch in batches]
        if reference is not None:
            batches = [batch._replace(ref_logprob=score(reference, batch)) for batch in batches]
        norms = jax.device_get(gradients(state.params, batches[0])) if every and number % every == 0 else {}
        found = []
        for _ in range(config.train.mu):
            for batch in batches:
                state, metrics = update(state, batch)
                found.append(metrics)
        return state, finalize(merge(*jax.device_get(found))) | {f"gradient/{name}": float(x) for name, x in norms.items()}

    return learn


def describe(
    episodes: list[Episode], rollouts: Rollouts, credit: Float[np.ndarray, "N S"], config: Any, record: Algorithm
) -> dict[str, float]:
    """Numbers of a rollout batch: scores, rewards by channel (as credit saw them), how episodes went, contamination diagnostics."""
    scores = {name: mean for name, (mean, n) in summarize(episodes, config).items() if n}
    found = diagnostics.diagnose(rollouts, credit, record.options, record.credit, config.reward.summary_weight)
    rewards = {
        name: value for name, value in reward_metrics(rollouts).items() if not name.startswith("score/")
    }  # told by scores
    return scores | finalize(merge(rewards, behaviour(episodes), found))


def put(batch: Batch, mesh: Any) -> Batch:
    """The batch on the mesh; on one device the update takes it from the host itself."""
    return batch if mesh is None else put_batch(batch, mesh)


def named(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    """Metric names under `prefix`, clocks apart: `time/...` stays outside, since no two runs agree on it."""
    return {name if name.startswith("time/") else f"{prefix}/{name}": value for name, value in values.items()}
