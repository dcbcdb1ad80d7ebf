"""Episodes of many turns: what continuous batching, kept caches and overlapped tool calls are worth. Ours against ours.

    python -m bench.rollout_engine [refill] [turns] [linear] [latency] [wake] [--size small] [--slots 64] [--rounds 5]
    python -m bench.rollout_engine shared [--prompts 512,2048] [--group 8] [--new 64] [--varied] [--steps-only]

refill   rows of log-normal lengths (16 to 192 tokens): slots refilled as rows end, against batches that wait for their longest row
turns    4 turns, G = 8, 400-token prompts, 60-token results, turns of log-normal length: the cache kept over turns and the prompt
         prefilled once a group, against every row's whole text prefilled again at each turn (same sampler and scheduler), and with
         the prompt's cache stored once a group (`shared_slots`)
linear   the same, 2 to 16 turns: seconds should grow by the turn
latency  the engine over a simulator of 200 +- 100 ms a call, and one whose calls hang to their deadline once in a hundred
wake     which WAKE_SHARE is best on those workloads
shared   groups over long prompts: each slot with its prompt, against places that hold it once (`shared_slots`): cache bytes, one decode
         step, and a whole rollout of twice the slots' rows. Before it runs it says what bytes alone make of the step

Random weights, random tokens, lengths set by budgets: only costs are measured. Variants are interleaved; medians (least to most).
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from bench.arguments import numbers, positive, unknown_names
from bench.rollout import SIZES
from slca.policy import transformer
from slca.policy.config import ModelConfig
from slca.rollout import scheduler as scheduling
from slca.rollout.engine import rollout
from slca.rollout.sampler import Sampler
from slca.rollout.scheduler import Row, Scheduler
from slca.types import Observation, Task

GROUP, PROMPT, RESULT = 8, 400, 60


class Bench:
    """A model and the options of the command line."""

    def __init__(self, size: str, slots: int, rounds: int):
        self.config = ModelConfig("qwen3", **SIZES[size], max_length=2048)  # type: ignore[arg-type]
        self.params = transformer.init(self.config, jax.random.key(0))
        self.size, self.slots, self.rounds = size, slots, rounds
        self.prompts, self.group, self.new, self.varied = (512, 2048), GROUP, 64, False
        self.steps_only = False

    def sampler(self, length: int, prompts: Sequence[int], **options: Any) -> Sampler:
        config = dataclasses.replace(self.config, max_length=max(length, self.config.max_length))
        sizes: Any = dict(slots=self.slots, cache_length=length, prompt_buckets=prompts, suffix_buckets=(16, 64, 256))
        return Sampler(config, **sizes, **options)

    def scheduler(self, sampler: Sampler) -> Scheduler:
        return Scheduler(sampler, self.params, seed=0, step=0, temperature=1.0, stop_ids=())

    def compare(self, variants: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
        """Seconds of each variant, warmed up, interleaved."""
        for run in variants.values():
            run()
        seconds: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(self.rounds):
            for name, run in variants.items():
                start = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - start)
        return seconds


def spread(values: Sequence[float], form: str = ".2f") -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def ratios(slow: Sequence[float], fast: Sequence[float]) -> str:
    return spread([a / b for a, b in zip(slow, fast)])


def lengths(count: int, median: float, sigma: float, low: int, high: int, seed: int = 0) -> list[int]:
    """Log-normal token counts, clipped."""
    drawn = np.random.default_rng(seed).lognormal(np.log(median), sigma, count)
    return np.clip(drawn, low, high).astype(int).tolist()


def prompt_of(vocab: int, length: int, number: int) -> list[int]:
    return np.random.default_rng(number).integers(1, vocab, length).tolist()


def drain(scheduler: Scheduler, over: Callable[[Row], None]) -> None:
    while scheduler.busy:
        for row in scheduler.step():
            over(row)


def refill(bench: Bench) -> None:
    rows = 8 * bench.slots
    budgets = lengths(rows, 50, 0.7, 16, 192)
    sampler, whole = bench.sampler(256, (64,)), bench.sampler(256, (64,), compact=False)
    prompts = [prompt_of(bench.config.vocab, 64, n) for n in range(rows)]

    def run(batch: int, compact: bool = True) -> Scheduler:
        scheduler = bench.scheduler(sampler if compact else whole)
        for start in range(0, rows, batch):
            for n in range(start, start + batch):
                scheduler.submit(prompts[n], prompt_key=n, sample=0, budget=budgets[n])
            drain(scheduler, scheduler.cancel)
        return scheduler

    seconds = bench.compare(
        {
            "refilled": lambda: run(rows),
            "lock-step": lambda: run(bench.slots, compact=False),
            "lock-step, compacted": lambda: run(bench.slots),
        }
    )
    stats = run(rows).stats
    print(
        f"refill: {rows} rows of {statistics.mean(budgets):.0f} tokens on average, the longest {max(budgets)}; slots busy "
        f"{stats['tokens_decoded'] / stats['slot_steps']:.0%}: "
        + "; ".join(f"{name} {spread(s)} s, {ratios(s, seconds['refilled'])}" for name, s in seconds.items())
    )


class Conversation:
    """Rows of `turns` turns: GROUP samples of each prompt, budgets and results fixed beforehand."""

    def __init__(self, bench: Bench, groups: int, turns: int):
        self.bench, self.groups, self.turns = bench, groups, turns
        self.rows = groups * GROUP
        drawn = lengths(self.rows * turns, 24, 0.6, 8, 64)
        self.budgets = [drawn[i * turns : (i + 1) * turns] for i in range(self.rows)]
        vocab = bench.config.vocab
        self.prompts = [prompt_of(vocab, PROMPT, n) for n in range(groups)]
        self.results = [[prompt_of(vocab, RESULT, 1000 + i * turns + t) for t in range(turns)] for i in range(self.rows)]
        whole = PROMPT + turns * (RESULT + 64)
        top = -(-whole // 128) * 128
        self.sampler = bench.sampler(top, sorted({448, 640, 832, top} if turns <= 4 else {448}))
        self.places = bench.sampler(top, (448,), shared_slots=GROUP)

    def shared(self) -> Scheduler:
        """`kept`, with one cache of its prompt for each group."""
        return self.kept(self.places)

    def kept(self, sampler: Sampler | None = None) -> Scheduler:
        """The scheduler's way: prefill a prompt once, append results to live caches."""
        scheduler = self.bench.scheduler(sampler or self.sampler)
        for i in range(self.rows):
            prompt = self.prompts[i // GROUP]
            scheduler.submit(prompt, prompt_key=i // GROUP, sample=i % GROUP, budget=self.budgets[i][0], tag=i)

        def over(row: Row) -> None:
            if row.turn + 1 == self.turns:
                scheduler.cancel(row)
            else:
                scheduler.append(row, self.results[row.tag][row.turn], self.budgets[row.tag][row.turn + 1])

        drain(scheduler, over)
        return scheduler

    def again(self) -> Scheduler:
        """Each turn of each row is a new prompt. A first token of its own keeps the scheduler from sharing the group's prompt."""
        scheduler = self.bench.scheduler(self.sampler)

        def submit(i: int, turn: int, text: list[int]) -> None:
            scheduler.submit(text, prompt_key=i, sample=turn, budget=self.budgets[i][turn], tag=(i, turn, text))

        def over(row: Row) -> None:
            scheduler.cancel(row)
            i, turn, text = row.tag
            if turn + 1 < self.turns:
                submit(i, turn + 1, text + row.tokens + self.results[i][turn])

        for i in range(self.rows):
            submit(i, 0, [1 + i % 900, *self.prompts[i // GROUP][1:]])
        drain(scheduler, over)
        return scheduler


def turns(bench: Bench) -> None:
    talk = Conversation(bench, bench.slots // GROUP * 2, 4)
    seconds = bench.compare({"again": talk.again, "kept": talk.kept, "shared": talk.shared})
    stats, naive = talk.kept().stats, talk.again().stats
    computed, other = (s["tokens_prefilled"] + s["tokens_appended"] + s["tokens_decoded"] for s in (stats, naive))
    unique = talk.groups * PROMPT + talk.rows * (talk.turns - 1) * RESULT + sum(map(sum, talk.budgets))
    print(
        f"turns: {talk.rows} rows, {talk.groups} prompts, {statistics.mean(map(statistics.mean, talk.budgets)):.0f} sampled tokens a "
        f"turn: prefilled again {spread(seconds['again'])} s; kept {spread(seconds['kept'])} s, {ratios(seconds['again'], seconds['kept'])} times "
        f"as fast; with the prompt stored once a group {spread(seconds['shared'])} s, {ratios(seconds['again'], seconds['shared'])} times as fast; "
        f"tokens computed / unique {computed / unique:.3f} (again: {other / unique:.2f})"
    )


def linear(bench: Bench) -> None:
    talks = {f"{n} turns": Conversation(bench, bench.slots // GROUP, n) for n in (2, 4, 8, 16)}
    seconds = bench.compare({name: talk.kept for name, talk in talks.items()})
    for name, talk in talks.items():
        tokens = sum(map(sum, talk.budgets))
        per = [1e3 * s / talk.turns for s in seconds[name]]
        print(f"linear: {name}: {spread(seconds[name])} s, {spread(per, '.0f')} ms a turn, {tokens} sampled tokens")


class Tokenizer:
    """Every turn reads as a call of `ping`; the last turn of an episode is one by the limit on turns."""

    control: ClassVar[dict[str, int]] = {}
    stop_ids = tuple(range(16))
    size = 1024

    def decode(self, ids: Sequence[int]) -> str:
        return f'<tool_call>{{"name": "ping", "arguments": {{"n": {hash(tuple(ids)) % 10**9}}}}}</tool_call>'


class Template:
    tokenizer, stop_ids, environment_markers = Tokenizer(), Tokenizer.stop_ids, ()

    def prompt(self, messages: list[dict[str, Any]], tools: Any) -> list[int]:
        return prompt_of(1024, 200, int(messages[0]["content"]))

    def suffix(self, messages: Any, new: Sequence[Any]) -> list[int]:
        return prompt_of(1024, RESULT, 7)


class Slow:
    """Answers after 200 +- 100 ms; one call in `hang` never does."""

    def __init__(self, seconds: float, hang: int = 0):
        self.seconds, self.hang, self.lock, self.draw = seconds, hang, threading.Lock(), random.Random(0)
        self.never = threading.Event()

    def simulate(self, call: Any, toolset: Any, context: Any) -> Observation:
        with self.lock:
            pause, hangs = self.draw.uniform(0.5, 1.5) * self.seconds, self.hang and self.draw.randrange(self.hang) == 0
        self.never.wait(3600 if hangs else pause)
        return Observation("pong")


def latency(bench: Bench) -> None:
    from configs.default import get_config

    config = get_config()
    config.rollout.update(
        {"group": GROUP, "max_turns": 4, "max_calls": 99, "max_repeats": 99, "max_turn_tokens": 160, "max_prompt_tokens": 200,
         "max_response_tokens": 820, "tool_threads": 2 * bench.slots, "tool_timeout": 3.0}
    )  # fmt: skip
    spec = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}
    groups = 2 * bench.slots // GROUP
    tasks = [Task(str(n), [{"role": "user", "content": str(n)}], [spec], [[]]) for n in range(groups)]
    sampler = bench.sampler(1024, (256,))
    kinds = {"at once": (0.0, 0), "200 +- 100 ms": (0.2, 0), "200 +- 100 ms, 1 % hang": (0.2, 100)}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}

    def run(name: str) -> None:
        simulator, stats = Slow(*kinds[name]), {}
        rollout(bench.params, tasks, sampler, Template(), simulator, config, seed=0, step=0, stats=stats)
        simulator.never.set()
        found[name].append(stats)

    seconds = bench.compare({name: lambda name=name: run(name) for name in kinds})  # type: ignore[misc]
    for name, stats in found.items():
        stats = stats[1:]
        rate = [s["tokens_decoded"] / took for s, took in zip(stats, seconds[name])]
        hidden = [s["time/tool_hidden"] / s["time/tool"] for s in stats]
        print(
            f"latency: {name}: {spread(rate, ',.0f')} tokens/s, {spread(seconds[name])} s; tools {stats[0]['time/tool']:.0f} s of "
            f"calls, hidden {spread(hidden, '.1%')}; slots busy {spread([s['occupancy'] for s in stats], '.0%')}"
        )
    lost = [1 - a / b for a, b in zip(seconds["200 +- 100 ms"], seconds["200 +- 100 ms, 1 % hang"])]
    print(f"latency: hanging calls cost {spread(lost, '.1%')} of the throughput")


def wake(bench: Bench) -> None:
    shares = (0.05, 0.125, 0.25, 0.5)
    rows = 4 * bench.slots
    budgets, sampler = lengths(rows, 50, 0.7, 16, 192), bench.sampler(256, (64,))
    talk = Conversation(bench, bench.slots // GROUP * 2, 4)

    def run(share: float, what: str) -> None:
        scheduling.WAKE_SHARE = share
        if what == "turns":
            talk.kept()
            return
        scheduler = bench.scheduler(sampler)
        for n in range(rows):
            scheduler.submit(prompt_of(bench.config.vocab, 64, n), prompt_key=n, sample=0, budget=budgets[n])
        drain(scheduler, scheduler.cancel)

    for what in ("refill", "turns"):
        seconds = bench.compare({str(share): lambda share=share, what=what: run(share, what) for share in shares})  # type: ignore[misc]
        print(f"wake: {what}: " + ", ".join(f"{share} {spread(found)} s" for share, found in seconds.items()))


def main() -> None:
    from bench.rollout_shared import shared

    every = {"refill": refill, "turns": turns, "linear": linear, "latency": latency, "wake": wake, "shared": shared}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=[name for name in every if name != "shared"])
    parser.add_argument("--size", default="small", choices=list(SIZES))
    parser.add_argument("--slots", type=positive, default=64)
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--prompts", type=numbers, default="512,2048", help="shared: prompt lengths, tokens")
    parser.add_argument("--group", type=positive, default=GROUP, help="shared: rows of a prompt")
    parser.add_argument("--new", type=positive, default=64, help="shared: sampled tokens a row")
    parser.add_argument("--varied", action="store_true", help="shared: lengths of a log-normal around --new")
    parser.add_argument("--steps-only", action="store_true", help="shared: no whole rollouts")
    args = parser.parse_args()
    if unknown := sorted(set(args.what) - set(every)):
        parser.error(unknown_names(unknown, every))
    if "shared" in args.what and (args.group % 2 or args.slots % args.group):
        parser.error(f"--slots={args.slots} --group={args.group}: shared needs an even group that divides the slots")
    bench = Bench(args.size, args.slots, args.rounds)
    bench.prompts, bench.group = tuple(args.prompts), args.group
    bench.new, bench.varied, bench.steps_only = args.new, args.varied, args.steps_only
    print(f"{args.size}, {args.slots} slots, {args.rounds} rounds")
    for name in args.what:
        every[name](bench)


if __name__ == "__main__":
    main()
