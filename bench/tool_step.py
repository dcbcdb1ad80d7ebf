"""The project's own multi-turn tool step at given sizes: engine, state machine, parsing, simulator call, credit, packing, update.

Weights, prompts and tool results are random; every turn reads as one call of a tool that answers at once, and takes its whole budget,
so that the number of turns and tokens is the same for every contender and every run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from bench.single_turn import even, learner_config, make_optimizer
from slca.credit.algorithms import algorithm
from slca.learn.batch import pack
from slca.learn.forward import policy_forward
from slca.learn.update import init_state, make_update
from slca.policy import transformer
from slca.policy.config import ModelConfig
from slca.rollout.engine import rollout
from slca.rollout.sampler import Sampler
from slca.types import TOOL, Observation, Rollouts, Task, TrainState

SPEC = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}


class Shape(NamedTuple):
    """prompts x group episodes of `turns` turns: `length` tokens of prompt, `new` sampled a turn, `result` of each tool result."""

    prompts: int = 8
    group: int = 4
    turns: int = 4
    length: int = 128
    new: int = 24
    result: int = 48

    @property
    def response(self) -> int:
        """Tokens after the prompt."""
        return self.turns * self.new + (self.turns - 1) * self.result

    @property
    def row(self) -> int:
        return self.length + self.response


def tokens(seed: int, count: int, vocab: int) -> list[int]:
    return np.random.default_rng(seed).integers(2, vocab, count).tolist()


class Unstopped(Sampler):
    """Rows end at their budget. (The state machine takes any id for a turn's end, see `Template.stop_ids`.)"""

    def decode(self, *args: Any, stop_ids: Sequence[int] = (), **kwargs: Any) -> Any:
        return super().decode(*args, stop_ids=(), **kwargs)


class Tokenizer:
    """Every turn reads as a call of `ping`, with arguments of its own."""

    control: ClassVar[dict[str, int]] = {}

    def decode(self, ids: Sequence[int]) -> str:
        return f'<tool_call>{{"name": "ping", "arguments": {{"ids": {list(ids)[:4]}, "sum": {sum(ids)}}}}}</tool_call>'


class Template:
    """Prompts are numbers of a seed; a tool result is always as long."""

    environment_markers = ()

    def __init__(self, shape: Shape, vocab: int):
        self.shape, self.vocab, self.tokenizer, self.stop_ids = shape, vocab, Tokenizer(), range(vocab)

    def prompt(self, messages: list[dict[str, Any]], tools: Any) -> list[int]:
        return tokens(int(messages[0]["content"]), self.shape.length, self.vocab)

    def suffix(self, messages: Any, new: Sequence[Any]) -> list[int]:
        return tokens(7, self.shape.result, self.vocab)


class Simulator:
    deterministic = True

    def simulate(self, call: Any, toolset: Any, context: Any) -> Observation:
        return Observation("pong")


class ToolStep:
    """step(state, number) -> (state, seconds by phase, mean reward)."""

    def __init__(self, model: ModelConfig, shape: Shape, *, rate: float = 1e-3, micro_rows: int = 2):
        self.model, self.shape = model, shape
        self.config = learner_config(model, shape.row, rate, micro_rows)
        self.config.rollout.update(
            group=shape.group, max_turns=shape.turns, max_calls=10**6, max_repeats=10**6, max_turn_tokens=shape.new,
            max_prompt_tokens=shape.length, max_response_tokens=shape.response,
        )  # fmt: skip
        self.optimizer = make_optimizer(self.config, model)
        self.update, self.credit = make_update(*policy_forward(model), self.optimizer, self.config), algorithm("grpo").credit
        self.sampler = Unstopped(
            model, slots=shape.prompts * shape.group, cache_length=shape.row, prompt_buckets=(shape.length,),
            suffix_buckets=(shape.result,), decode_steps=min(32, shape.new),
        )  # fmt: skip
        self.template, self.simulator = Template(shape, model.vocab), Simulator()

    def init(self) -> TrainState:
        return init_state(transformer.init(self.model, jax.random.key(0)), self.optimizer, jax.random.key(0))

    def step(self, state: TrainState, number: int) -> tuple[TrainState, dict[str, float], float]:
        """One rollout and one update. Raises RuntimeError where an episode has not run through all its turns."""
        began, stats = time.perf_counter(), dict[str, float]()
        names = [str(number * self.shape.prompts + n) for n in range(self.shape.prompts)]
        tasks = [Task(name, [{"role": "user", "content": name}], [SPEC], [[]]) for name in names]
        episodes = rollout(
            state.params, tasks, self.sampler, self.template, self.simulator, self.config, seed=0, step=number, stats=stats
        )
        if bad := [episode.end for episode in episodes if len(episode.tokens) != self.shape.row]:
            raise RuntimeError(f"{len(bad)} of {len(episodes)} episodes ended early: {bad[0]}")
        sampled = time.perf_counter()
        rewards = np.array([even(episode.tokens[episode.turn >= 0]) for episode in episodes])
        kind = np.full((len(episodes), self.shape.turns), TOOL)
        channels = {"total": rewards, "tool": rewards, "summary": 0 * rewards}
        credit = self.credit(Rollouts(np.array([episode.group for episode in episodes]), kind, channels))
        for batch in pack(episodes, credit, None, self.config):
            state, _ = self.update(state, batch)
        jax.block_until_ready(state)
        ended = time.perf_counter()
        seconds = {"seconds": ended - began, "rollout": sampled - began, "update": ended - sampled}
        return state, seconds | {"prefilled": stats["tokens_prefilled"]}, float(rewards.mean())
