"""The project's own single-turn GRPO step as a run makes it: sampler, credit, packing and update over random weights and prompts."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from configs import default
from slca.credit.algorithms import algorithm
from slca.learn.batch import pack
from slca.learn.forward import policy_forward
from slca.learn.optim import optimizer, schedule
from slca.learn.update import init_state, make_update
from slca.policy import transformer
from slca.policy.config import ModelConfig
from slca.rollout.sampler import Sampler, row_keys
from slca.rollout.scheduler import Scheduler
from slca.types import POLICY, PROMPT, SUMMARY, Batch, Episode, Parsed, Rollouts, Samples, Task, TrainState

FOREVER = 10**6  # steps of the schedule


def even(ids: Any) -> float:
    """The reward of all contenders: share of even ids."""
    return float(np.mean([int(i) % 2 == 0 for i in ids])) if len(ids) else 0.0


class SingleTurn:
    """`prompts` x `group` completions of `new` tokens after prompts of `length`, then one update.

    model: architecture, dtype included; its adapters, if it has any, are all that is trained. micro_rows: packed rows a
    forward and backward pass. cache: dtype of the sampler's cache.
    """

    def __init__(
        self, model: ModelConfig, *, prompts: int, group: int, length: int, new: int, rate: float, micro_rows: int,
        cache: str = "float32", decode_steps: int = 32,
    ):  # fmt: skip
        self.model, self.prompts, self.group, self.length, self.new = model, prompts, group, length, new
        self.config = learner_config(model, length + new, rate, micro_rows, answer=new)
        self.optimizer = make_optimizer(self.config, model)
        self.update = make_update(*policy_forward(model), self.optimizer, self.config)
        self.credit = algorithm("grpo").credit
        self.rows = prompts * group
        self.prompt_of, self.sample_of = np.repeat(np.arange(prompts), group), np.tile(np.arange(group), prompts)
        self.sampler = Sampler(
            model, slots=self.rows, cache_length=length + new, prompt_buckets=(length,), suffix_buckets=(16,),
            decode_steps=decode_steps, cache_dtype=cache,
        )  # fmt: skip
        self.draw = np.random.default_rng(0)

    def init(self) -> TrainState:
        return init_state(transformer.init(self.model, jax.random.key(0)), self.optimizer, jax.random.key(0))

    def sample(self, params: Any, step: int) -> tuple[np.ndarray, Any]:
        """(prompts [P, length], what was sampled after each of them `group` times)."""
        prompts = self.draw.integers(2, self.model.vocab, (self.prompts, self.length))
        keys = row_keys(0, step, self.prompt_of, self.sample_of, np.zeros(self.rows, int))
        repeated = prompts[self.prompt_of].tolist()
        return prompts, self.sampler.generate(params, repeated, keys=keys, max_new_tokens=self.new, temperature=1.0)

    def sample_varied(self, params: Any, step: int, mean: int) -> tuple[np.ndarray, Any]:
        """As `sample`, with completions of geometric length: `mean` tokens, at most `new`, as if one id in `mean` ended a row."""
        prompts = self.draw.integers(2, self.model.vocab, (self.prompts, self.length))
        budgets = np.minimum(self.draw.geometric(1 / mean, self.rows), self.new)
        scheduler = Scheduler(self.sampler, params, seed=0, step=step, temperature=1.0, stop_ids=())
        for n, (p, g) in enumerate(zip(self.prompt_of.tolist(), self.sample_of.tolist())):
            scheduler.submit(prompts[p].tolist(), prompt_key=p, sample=g, budget=int(budgets[n]), tag=n)
        shape = (self.rows, self.new)
        out = Samples(np.zeros(shape, np.int32), np.zeros(shape, np.float32), budgets, np.ones(self.rows, bool))
        while scheduler.busy:
            for row in scheduler.step():
                out.tokens[row.tag, : len(row.tokens)], out.logprob[row.tag, : len(row.tokens)] = row.tokens, row.logprob
                scheduler.cancel(row)
        return prompts, out

    def pack(self, prompts: np.ndarray, found: Any) -> tuple[list[Batch], float]:
        """Rewards, credit and packed rows: (batches, mean reward)."""
        rewards = np.array([even(found.tokens[n, : found.length[n]]) for n in range(self.rows)])
        channels = {"total": rewards, "tool": 0 * rewards, "summary": rewards}
        credit = self.credit(Rollouts(self.prompt_of, np.full((self.rows, 1), SUMMARY), channels))
        episodes, task = [], Task("bench", [], [], [])
        for n in range(self.rows):
            length = int(found.length[n])
            writer = np.array([PROMPT] * self.length + [POLICY] * length, np.int8)
            turn = np.where(writer == POLICY, 0, -1).astype(np.int16)
            tokens = np.concatenate([prompts[self.prompt_of[n]], found.tokens[n, :length]]).astype(np.int32)
            logprob = np.concatenate([np.zeros(self.length, np.float32), found.logprob[n, :length]])
            place, said = (int(self.prompt_of[n]), int(self.sample_of[n])), [Parsed(text="x")]
            episodes.append(Episode(task, *place, tokens, writer, turn, logprob, said, [[]], [0], end="answered"))
        return pack(episodes, credit, None, self.config), float(rewards.mean())

    def learn(self, state: TrainState, batches: list[Batch]) -> TrainState:
        """The update; waits for it. Donates `state`."""
        for batch in batches:
            state, _ = self.update(state, batch)
        return jax.block_until_ready(state)


def learner_config(model: ModelConfig, row: int, rate: float, micro_rows: int, answer: int = 0) -> Any:
    """The default config as the update reads it, for rows of `row` tokens. answer: tokens behind the prompt; with them, rows that hold
    one more rollout share the prompt."""
    config = default.get_config("grpo")
    config.optim.lr, config.train.micro_rows, config.train.row_lengths = rate, micro_rows, (row,)
    if answer:
        config.train.update(share_prompts=True, row_lengths=(row, row + answer + 1))
    if model.lora:
        config.model.lora.rank = model.lora.rank
    return config


def make_optimizer(config: Any, model: ModelConfig) -> Any:
    return optimizer(config.optim, schedule("constant", config.optim.lr, FOREVER), transformer.logical_axes(model))
