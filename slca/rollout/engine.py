"""Multi-turn rollouts: many episodes over one scheduler, their tool calls overlapping with other rows' decoding.

One loop: decode a round, hand finished turns to their state machine, start the tool calls it asks for, join the results that
have come in, go on. A group's prompt is prefilled once; a turn appends its suffix to a live cache; nothing is computed twice.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from slca.rollout import episode as machine
from slca.rollout.pool import Job, Pool
from slca.rollout.scheduler import Row, Scheduler
from slca.tasks.schema import ToolSet
from slca.types import END_REASONS, Context, Episode, Observation, Task, ToolCall

COUNTS = (
    "rows_inserted",
    "prompts_prefilled",
    "tokens_prefilled",
    "tokens_appended",
    "tokens_decoded",
    "tokens_reused",
    "slot_steps",
    "rounds",
    "compactions",
)

log = logging.getLogger(__name__)


def occupancy(counts: Mapping[str, float]) -> float:
    """Share of the slots that decoded, over all steps of one rollout or of the sums over several."""
    return counts["tokens_decoded"] / max(1, counts["slot_steps"])


@dataclass(eq=False)
class _Live:
    """An episode in progress, its row of the scheduler and the results it waits for (None = not there yet).

    contexts: what each call of the turn is handed, a copy of its own: a call that was given up on may still write into it.
    """

    index: int
    state: machine.State
    prompt_key: int
    toolset: ToolSet | None = None
    row: Row | None = None
    calls: list[ToolCall] = field(default_factory=list)
    results: list[Observation | None] = field(default_factory=list)
    contexts: list[Context] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)


def rollout(
    params: Any, tasks: Sequence[Task], sampler: Any, template: Any, simulator: Any, config: Any, *, seed: int, step: int,
    temperature: float | None = None, group: int | None = None, progress: Callable[[int, int], None] | None = None,
    stats: dict[str, float] | None = None,
) -> list[Episode]:  # fmt: skip
    """Run `group` episodes of every task and return them group-major: task 0's rows, task 1's rows, ...

    config is the whole config; temperature and group default to its rollout section (0 = greedy). A row draws from (seed, step,
    task id, sample, turn, position), so neither the order of the tasks nor their number changes a row. An exception that
    concerns one row makes that row `dead`; every group has exactly `group` rows (contract 13). progress(ended, total) is called
    in every round, before and after tools are waited for; `stats` is filled with counts (tokens, rounds, ends) and, under `time/`, seconds.
    """
    engine = _Engine(params, sampler, template, simulator, config, seed, step, temperature, progress)
    try:
        episodes = engine.run(tasks, config.rollout.group if group is None else group)
    finally:
        engine.pool.shutdown()
    if stats is not None:
        stats.update(engine.report(episodes))
    return episodes


class _Engine:
    def __init__(
        self, params: Any, sampler: Any, template: Any, simulator: Any, config: Any, seed: int, step: int,
        temperature: float | None, progress: Callable[[int, int], None] | None,
    ) -> None:  # fmt: skip
        self.simulator, self.template, self.seed, self.step = simulator, template, seed, step
        self.temperature = float(config.rollout.temperature if temperature is None else temperature)
        self.rules = machine.Rules.of(
            config, template, capacity=sampler.capacity, longest_prompt=sampler.prompt_buckets[-1], own=sampler.own_length
        )
        stops = self.rules.sampling_stops
        self.sampler, self.compiled = sampler, sampler.compiles()
        self.scheduler = Scheduler(sampler, params, seed=seed, step=step, temperature=self.temperature, stop_ids=stops)
        self.pool = Pool(config.rollout.tool_threads, config.rollout.tool_timeout)
        # A simulator that answers at once and always alike is waited for, so that rounds (and metrics) repeat bit for bit.
        self.fixed_order = getattr(simulator, "deterministic", False)
        # Calls that write to a shared state run one after the other, in call order.
        self.parallel = config.sgls.state != "kv"
        self.progress = progress
        self.ended, self.total, self.died = 0, 0, False
        self.times = dict.fromkeys(("rollout", "decode", "tool", "tool_exposed"), 0.0)  # seconds

    def run(self, tasks: Sequence[Task], group: int) -> list[Episode]:
        start = time.monotonic()
        lives = self._lives(tasks, group)
        self.total = len(lives)
        self._begin(lives)
        while self.ended < self.total:
            if not self.scheduler.busy and not len(self.pool):
                raise RuntimeError(f"rollout: {self.total - self.ended} episodes wait for nothing; a bug, please report it")
            before = time.monotonic()
            finished = self.scheduler.step() if self.scheduler.busy else []
            self.times["decode"] += time.monotonic() - before
            for row in finished:
                self._advance(row.tag, partial(machine.sampled, row.tag.state, row.tokens, row.logprob, self.rules))
            self._tell()  # before the wait for tools, so that what has ended is known during it
            self._join()
            self._tell()
        self.times["rollout"] = time.monotonic() - start
        return [machine.episode(live.state, self.temperature, **live.info) for live in lives]

    def _tell(self) -> None:
        if self.progress is not None:
            self.progress(self.ended, self.total)

    def report(self, episodes: list[Episode]) -> dict[str, float]:
        """Counts of the rollout; seconds under `time/`.

        tool: seconds of all calls together; tool_exposed: seconds in which the loop waited for one and had nothing to decode;
        tool_hidden: the rest. slot_steps: steps times slots. occupancy: share of them that decoded. compiles: programs made on the way.
        """
        count, ends = self.scheduler.stats, Counter(episode.end for episode in episodes)
        out: dict[str, float] = {name: count[name] for name in COUNTS}
        out["compiles"] = self.sampler.compiles() - self.compiled
        out["occupancy"] = occupancy(count)
        out |= {f"end/{reason}": ends[reason] for reason in END_REASONS}
        out |= {f"time/{name}": seconds for name, seconds in self.times.items()}
        out["time/tool_hidden"] = max(0.0, self.times["tool"] - self.times["tool_exposed"])
        return out

    def _lives(self, tasks: Sequence[Task], group: int) -> list[_Live]:
        lives: list[_Live] = []
        seen: Counter[str] = Counter()
        for g, task in enumerate(tasks):
            copy = seen[task.id]
            key = zlib.crc32(f"{task.id}#{copy}".encode()) & 0x7FFFFFFF  # a task that comes twice draws afresh
            seen[task.id] += 1
            for sample in range(group):
                context = Context(group=task.id, sample=sample, seed=self.seed, step=self.step, copy=copy)
                lives.append(_Live(len(lives), machine.new(task, g, sample, context), key))
        return lives

    def _begin(self, lives: list[_Live]) -> None:
        prepared: dict[int, tuple[ToolSet, list[int]]] = {}

        def begin(live: _Live) -> machine.Generate | machine.End:
            task, g = live.state.task, live.state.group
            if g not in prepared:
                prepared[g] = ToolSet.load(task.tools), self.template.prompt(task.messages, task.tools)
            live.toolset, prompt = prepared[g]
            return machine.begin(live.state, prompt, self.rules)

        for live in lives:
            self._advance(live, partial(begin, live))

    def _advance(self, live: _Live, transition: Callable[[], Any]) -> None:
        """Make one transition of one episode and carry out what it asks for; a failure ends that episode alone."""
        try:
            action = transition()
        except Exception as error:
            action = self._dead(live, error)
        match action:
            case machine.Generate(suffix, budget):
                if live.row is None:
                    key, sample = live.prompt_key, live.state.sample
                    live.row = self.scheduler.submit(suffix, prompt_key=key, sample=sample, budget=budget, tag=live)
                else:
                    self.scheduler.append(live.row, suffix, budget)
            case machine.Act(calls):
                live.calls, live.results, live.contexts = calls, [None] * len(calls), []
                for i in range(len(calls) if self.parallel else 1):
                    self._call(live, i)
            case machine.End():
                self._end(live)

    def _dead(self, live: _Live, error: BaseException) -> machine.End:
        if not self.died:
            log.warning("a row died (%s, sample %d)", live.state.task.id, live.state.sample, exc_info=error)
        self.died = True
        live.info["error"] = f"{type(error).__name__}: {error}"
        return machine.close(live.state, "dead")

    def _end(self, live: _Live) -> None:
        if live.row is not None:
            self.scheduler.cancel(live.row)
        self.ended += 1

    def _call(self, live: _Live, i: int) -> None:
        known = live.state.context
        context = replace(known, call=i, transcript=list(known.transcript), state=dict(known.state))
        live.contexts.append(context)
        work = partial(self.simulator.simulate, live.calls[i], live.toolset, context)
        self.pool.submit((live, i), work)

    def _join(self) -> None:
        """Take the tool results that are there; wait for them only when no row can decode (or when order must be fixed)."""
        before = time.monotonic()
        jobs = self.pool.ready(wait=self.fixed_order or not self.scheduler.busy)
        while self.fixed_order and len(self.pool):
            jobs += self.pool.ready(wait=True)
        self.times["tool_exposed"] += time.monotonic() - before
        for job in sorted(jobs, key=lambda job: (job.tag[0].index, job.tag[1])):
            self._result(job)

    def _result(self, job: Job) -> None:
        live, i = job.tag
        self.times["tool"] += job.seconds
        if live.state.end is not None:  # another call of the turn has killed the row
            return
        result = job.result
        if not self.parallel and isinstance(result, Observation):
            live.state.context.state = live.contexts[i].state
        if isinstance(result, TimeoutError):
            result = Observation(f"error: timeout: {result}", status="timeout", cost={"seconds": job.seconds})
        if not isinstance(result, Observation):
            error = result if isinstance(result, BaseException) else TypeError(f"simulate returned {type(result).__name__}")
            self._advance(live, partial(self._dead, live, error))
            return
        live.results[i] = result
        if not self.parallel and i + 1 < len(live.calls):
            self._call(live, i + 1)
        elif all(live.results):
            self._advance(live, partial(machine.observed, live.state, live.results, self.rules))
