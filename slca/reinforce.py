"""One step of reinforcement: rollout -> rewards -> credit -> packed updates, and the numbers that describe it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from slca import processes
from slca.assemble import Parts, own_parts
from slca.credit import diagnostics
from slca.credit.record import Algorithm
from slca.drift import drift_metrics, drift_shapes, make_drift, scored
from slca.evals.indomain import summarize
from slca.learn.batch import pack, padding_share
from slca.learn.pieces import shares_prompts
from slca.learn.probe import make_gradients, make_logprob
from slca.learn.shapes import batch_shapes, empty, widened
from slca.learn.sharding import put_batch, row_shards, shardings
from slca.learn.terms import make_terms
from slca.learn.update import make_update
from slca.policy import transformer
from slca.probes import focus_of, make_probe, make_segment_kl
from slca.report.behaviour import behaviour, spread
from slca.report.metrics import Metrics, finalize, merge
from slca.resampling import resample
from slca.rewards.annotate import annotate
from slca.rewards.annotate import metrics as reward_metrics
from slca.rewards.judge import graders, outcomes
from slca.rewards.kl import charge
from slca.rewards.noise import disturb
from slca.rollout.engine import occupancy, rollout
from slca.sgls.meter import rates
from slca.types import Batch, Episode, Rollouts, Task, TrainState

ATTEMPT_STRIDE = 1 << 20  # beyond the steps of any run: what a second attempt at a step adds to its number


class Outcome(NamedTuple):
    """What a step made in this process, beside the new state. credit [N, S]; values: metrics by name, of all processes;
    series: name -> one number a token for each episode (`gap`: trainer minus sampler log-prob; `focus`), for the viewer."""

    episodes: list[Episode]
    rollouts: Rollouts
    credit: Float[np.ndarray, "N S"]
    values: dict[str, float]
    series: dict[str, list[np.ndarray]]


Spare = Callable[[int], Task]  # position in a stream of tasks of its own -> task
Step = Callable[[TrainState, Sequence[Task], int], tuple[TrainState, Outcome]]


@contextmanager
def silent(name: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """A phase that nobody is told of."""
    yield lambda n: None


def make_step(
    config: Any, parts: Parts, optimizer: Any, placement: TrainState | None = None, reference: Any = None, phase: Any = silent,
    watch: Callable[[Callable[[], Any]], None] | None = None, spare: Spare | None = None,
) -> Step:  # fmt: skip
    """step(state, tasks, number) -> (state, outcome); `number` seeds the draws, the old state is donated.

    tasks: those of all processes; each rolls out its own, on its own devices. placement: shardings of the TrainState, None on one
    device. reference: parameters of the frozen policy of the KL term, or None. phase(name, total): the context of a phase, which
    gives advance(n). watch: takes functions whose changing result is a sign of life. spare: tasks for groups without credit, where
    `rollout.resample_fresh` asks for other prompts; None: the same prompts once more.
    """
    record, shards = parts.algorithm, row_shards(parts.mesh)
    own, fetch = own_parts(parts)
    params_at = None if own.mesh is None else _places(own)
    own_reference = fetch(reference) if reference is not None and config.reward.kl_coef > 0 else None  # the reward's alone
    collect = make_collect(config, own, params_at, own_reference, phase, watch, spare)
    score = make_logprob(own.hidden, own.unembed, config, mesh=own.mesh, params_at=params_at)
    probe, drift = make_probe(config, own, params_at), make_drift(config, own, score)
    learn = make_learn(config, parts, optimizer, placement, reference)
    size, groups = shards // processes.count(), record.whole_groups
    shared = shares_prompts(config.train, groups)
    unit, shapes, compiled = config.train.micro_rows * size, update_shapes(config, parts), False

    def compile_all(state: TrainState) -> TrainState:
        """Every program over packed batches, before the first step: batches without an episode leave the state as it is."""
        params = fetch(state.params)
        drifts = drift_shapes(config, own) if config.report.episodes_every else {}
        for length, rows in drifts.items():
            score(params, put(scored(empty(rows, length)), own.mesh))
        del params
        for length, rows in shapes.items():
            state, _ = learn(state, [put(empty(rows, length, groups, shared), parts.mesh)] * config.train.mini_batches, 0)
        return state

    def step(state: TrainState, tasks: Sequence[Task], number: int) -> tuple[TrainState, Outcome]:
        nonlocal compiled
        if not compiled:
            with phase("compile"):
                state, compiled = compile_all(state), True
        began, params = time.monotonic(), fetch(state.params)
        episodes, rollouts, values = collect(params, tasks, number)
        with phase("credit"):
            measured = probe(params, episodes, rollouts, number) if probe else None
            rollouts.rewards.update(measured.channels if measured else {})
            credit = record.credit(rollouts)
            focus = focus_of(measured, episodes, credit, config) if measured else None
            series = {"focus": focus} if focus is not None else {}
            if is_stored(config, number):
                series["gap"] = drift(params, episodes)
        del params
        values["time/reward"] = time.monotonic() - began - values["time/rollout"]
        began = time.monotonic()
        with phase("update"):
            batches = pack(episodes, credit, focus, config, data_size=size, gather=processes.gather, groups=groups)
            batches = [widened(batch, shapes, unit) for batch in batches]
            padding = [{"train/padding": padding_share(batch, unit)} for batch in batches]
            values["train/tokens"] = float(config.train.mu * sum(int((batch.episode > 0).sum()) for batch in batches))
            state, metrics = learn(state, [put(batch, parts.mesh) for batch in batches], number)
        values["time/update"] = time.monotonic() - began
        values |= named("probe", measured.counts if measured else {}) | named("sgls", parts.simulator.metrics(reset=True))
        described = describe(episodes, rollouts, credit, config, record)
        drifted = {f"train/{name}": value for name, value in drift_metrics(series.get("gap", ())).items()}
        pairs = merge({f"rollout/{name}": value for name, value in described.items()}, *padding, drifted)
        return state, Outcome(episodes, rollouts, credit, everywhere(values, pairs) | named("train", metrics), series)

    return step


def update_shapes(config: Any, parts: Parts) -> dict[int, int]:
    """Row length -> rows of this process in every mini-batch of the run."""
    n = processes.count()
    prompts, shards = config.rollout.prompts // (config.train.mini_batches * n), row_shards(parts.mesh) // n
    return batch_shapes(config, prompts, shards, groups=parts.algorithm.whole_groups)


def is_stored(config: Any, number: int) -> bool:
    """Whether the episodes of this step are kept: every `report.episodes_every` steps, and the last."""
    every = config.report.episodes_every
    return bool(every) and (number % every == 0 or number + 1 == config.train.steps)


def everywhere(values: dict[str, float], pairs: Metrics) -> dict[str, float]:
    """Metrics of this process -> of all: pairs are merged, counts added and rates made of the sums; seconds and rounds of new rollouts
    are those of the slowest."""
    found = processes.gather_json([values, pairs])
    out = finalize(merge(*(pairs for _, pairs in found)))
    for name in dict.fromkeys(name for values, _ in found for name in values):
        each = [values[name] for values, _ in found if name in values]
        slowest = name.startswith("time/") or name == "resample/rounds"
        out[name] = max(each) if slowest else sum(each)
    engine, sgls = (
        {name.removeprefix(prefix): value for name, value in out.items() if name.startswith(prefix)}
        for prefix in ("engine/", "sgls/")
    )
    return out | {"engine/occupancy": occupancy(engine)} | named("sgls", rates(sgls))
    return out


def own_groups(tasks: int, mini_batches: int) -> list[int]:
    """Which of a step's prompts this process rolls out: its part of every mini-batch, so that those are the same for any number."""
    parts = np.array_split(np.arange(tasks), mini_batches)
    return [int(g) for part in parts for g in processes.own(part.tolist())]


def make_collect(
    config: Any, parts: Parts, params_at: Any, reference: Any, phase: Any = silent,
    watch: Callable[[Callable[[], Any]], None] | None = None, spare: Spare | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """collect(params, tasks, number) -> (episodes, rewarded rollouts, metrics by name); resamples groups where the config asks."""
    judges = graders(config)
    segment_kl = make_segment_kl(config, parts, params_at)
    if watch and judges:
        watch(lambda: sum(outcomes(judges).values()))

    def reward(params: Any, episodes: list[Episode], step: int) -> Rollouts:
        rollouts, w = annotate(episodes, config, **judges), config.reward
        if w.summary_noise > 0:
            seed = (config.run.seed, step, *([processes.index()] if processes.index() else []))
            rollouts = disturb(rollouts, w.summary_noise, w.summary_noise_rho, seed=seed, summary_weight=w.summary_weight)
        if config.reward.kl_coef > 0:
            rollouts = charge(rollouts, segment_kl(params, reference, episodes, rollouts.kind.shape[1]), config.reward.kl_coef)
        return rollouts

    def collect(params: Any, tasks: Sequence[Task], number: int) -> tuple[list[Episode], Rollouts, dict[str, float]]:
        stats, asked = Counter[str](), outcomes(judges)  # of all rollouts of the step, those of groups without credit too

        def roll(wanted: dict[int, Task], step: int) -> list[Episode]:
            groups, began, told = list(wanted), time.monotonic(), dict[str, float]()
            with phase("rollout", len(groups) * config.rollout.group) as advance:
                episodes = rollout(
                    params, list(wanted.values()), parts.sampler, parts.template, parts.simulator, config,
                    seed=config.run.seed, step=step, stats=told, progress=follow(advance),
                )  # fmt: skip
            for episode in episodes:
                episode.group = groups[episode.group]
            stats.update(told | {"time/rollout": time.monotonic() - began})
            return episodes

        def attempt(groups: list[int], again: int) -> tuple[list[Episode], Rollouts]:
            # A position for every group of every round of every step: a continued run, or one of more processes, asks for the same.
            first = (number * config.rollout.resample + again - 1) * len(tasks)
            step = number + again * ATTEMPT_STRIDE
            episodes = roll({g: spare(first + g) if spare else tasks[g] for g in groups}, step)
            return episodes, reward(params, episodes, step)

        episodes = roll({g: tasks[g] for g in own_groups(len(tasks), config.train.mini_batches)}, number)
        with phase("reward"):
            rollouts = reward(params, episodes, number)
        values: dict[str, float] = {}
        if config.rollout.resample:
            credit_of = parts.algorithm.credit
            episodes, rollouts, counts = resample(episodes, rollouts, attempt, credit_of, config.rollout.resample)
            values |= named("resample", counts)
        values["sys/compiles_rollout"] = stats.pop("compiles", 0.0)  # of this process: a resumed run compiles again
        values |= named("engine", stats)
        values |= named("judge", {kind: count - asked.get(kind, 0.0) for kind, count in outcomes(judges).items()})
        return episodes, rollouts, values

    return collect


def follow(advance: Callable[[float], None]) -> Callable[[int, int], None]:
    """progress(ended, total) of a rollout -> advances by what ended since the last call."""
    before = 0

    def progress(ended: int, total: int) -> None:
        nonlocal before
        advance(ended - before)
        before = ended

    return progress


def _places(parts: Parts) -> Any:
    shapes = jax.eval_shape(lambda: transformer.init(parts.model, jax.random.key(0)))
    return shardings(shapes, transformer.logical_axes(parts.model), parts.mesh)  # type: ignore[arg-type]


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
) -> Metrics:
    """(sum, weight) of a rollout batch: scores, rewards by channel (as credit saw them), how episodes went, contamination diagnostics."""
    w = config.reward
    found = diagnostics.diagnose(rollouts, credit, record.options, record.credit, w.process_weight, w.summary_weight)
    rewards = {
        name: value for name, value in reward_metrics(rollouts).items() if not name.startswith("score/")
    }  # told by scores
    return merge(summarize(episodes, config) | behaviour(episodes), rewards, found, spread(rollouts, credit))


def put(batch: Batch, mesh: Any) -> Batch:
    """The batch on the mesh; on one device the update takes it from the host itself."""
    return batch if mesh is None else put_batch(batch, mesh)


def named(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    """Metric names under `prefix`, clocks apart: `time/...` stays outside, since no two runs agree on it."""
    return {name if name.startswith("time/") else f"{prefix}/{name}": value for name, value in values.items()}
