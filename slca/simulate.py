"""The simulator of a run, from its config. With `sgls.backend=jax` its replies are sampled by a frozen model of ours, here.

That model lies on one device and its programs have no collectives. They are started by a thread of their own while the policy
decodes; two programs with collectives, enqueued by two threads, may each hold the devices that the other waits for, one without
cannot. A model too large for a device belongs behind a server (`slca.serve`, vLLM) and `sgls.backend=openai`.

A reply is a function of the model, the prompt and the seed that names its draws, not of what is sampled beside it. When it comes
is not: the order in which results join a rollout, and with it the round counts of a step, differ from run to run. Contract 14
(a resumed run equals a straight one) is therefore promised for the scripted backend alone.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from slca.policy import transformer
from slca.policy.config import ModelConfig
from slca.rollout.sampler import Sampler
from slca.rollout.scheduler import DEAD_END, Row, Scheduler
from slca.rollout.warm import compile_all
from slca.sgls import grammar
from slca.sgls.backends import BackendError
from slca.sgls.local import Generated
from slca.sgls.simulator import Simulator

if TYPE_CHECKING:
    from slca.chat.template import Template

OWN_SHARE = 0.95  # of rollout.tool_timeout, which the simulator may use

log = logging.getLogger("slca")


def make_simulator(config: Any, model: ModelConfig, template: Template) -> Simulator:
    """The simulator of the config's `sgls` section; for backend `jax` its model is loaded and its programs are compiled.

    model, template: the policy's, for `sgls.model=""`. Raises ValueError where the model cannot be loaded or is too short.
    """
    section, timeout = config.sgls, seconds_a_call(config)
    if section.backend != "jax":
        return Simulator.from_config(section, timeout=timeout)
    name, model, params, template = _frozen(config, model, template)
    capacity = section.max_prompt_tokens + section.max_tokens
    if capacity > model.max_length:
        raise ValueError(
            f"sgls.max_prompt_tokens + sgls.max_tokens = {capacity} is beyond the {model.max_length} positions of {name}; lower them"
        )
    sampler = Sampler(
        model, slots=section.slots, cache_length=capacity, prompt_buckets=_buckets(section.max_prompt_tokens),
        decode_steps=config.rollout.decode_steps, cache_dtype=config.rollout.cache_dtype, constrained=section.mode != "paper",
    )  # fmt: skip
    frozen = Frozen(sampler, params, template)
    log.info(
        "simulator: %s · cache of %d slots %.0f MiB · programs: %s", name, sampler.slots, sampler.nbytes() / 2**20,
        ", ".join(f"{function}{list(shape)}" for function, shape in frozen.programs),
    )  # fmt: skip
    # A compilation inside a call would count against the call's deadline.
    compile_all(sampler, frozen.weights, template.stop_ids)
    simulator = Simulator.from_config(section, generate=frozen, model=name, timeout=timeout)
    # A thread inside XLA must not outlive the interpreter; but one that is closed before is let go, and its model with it.
    atexit.register(_close, weakref.ref(simulator))
    return simulator


def _close(simulator: weakref.ref[Simulator]) -> None:
    if (found := simulator()) is not None:
        found.close()


def seconds_a_call(config: Any) -> float:
    """The simulator's deadline: so far before that of the rollout that it answers, lets go of its request and counts the timeout."""
    return min(config.sgls.timeout, OWN_SHARE * config.rollout.tool_timeout)


class Frozen:
    """`generate` of `slca.sgls.local` over the slot scheduler: prompts and grammars in, texts out. Thread-safe, one batch at a time.

    sampler: on one device, with masks where grammars will come; params: the frozen model's.
    """

    def __init__(self, sampler: Sampler, params: Any, template: Template):
        self.sampler, self.template = sampler, template
        self.weights = sampler.prepare(params)
        self._vocabulary = grammar.vocabulary(template.tokenizer) if sampler.constrained else None
        self._scheduler: Scheduler | None = None
        self._lock = threading.Lock()
        self._closing = False

    @property
    def programs(self) -> list[tuple[str, tuple[int, ...]]]:
        """(function, bucket) of every program that is compiled; there are no others."""
        return [program for program in self.sampler.programs if program[0] != "append"]

    @property
    def counts(self) -> dict[str, float]:
        return {"compiles": float(self.sampler.compiles())}

    def __call__(
        self, prompts: Sequence[list[dict[str, str]]], grammars: Sequence[str | None], max_tokens: int, temperature: float,
        seeds: Sequence[int],
    ) -> list[Generated | BackendError]:  # fmt: skip
        """See `slca.sgls.local.Generate`. Raises RuntimeError once it is closed, and whatever the device raises."""
        replies: list[Any] = [None] * len(prompts)
        with self._lock:
            if self._scheduler is None:
                stops = self.template.stop_ids
                self._scheduler = Scheduler(self.sampler, self.weights, seed=0, step=0, temperature=1.0, stop_ids=stops)
            waiting: dict[Row, int] = {}
            try:
                for i, asked in enumerate(zip(prompts, grammars, seeds)):
                    try:
                        waiting[self._submit(self._scheduler, *asked, max_tokens, temperature)] = i
                    except BackendError as error:
                        replies[i] = error
                while waiting:
                    if self._closing:
                        raise RuntimeError("closed")
                    for row in self._scheduler.step():
                        replies[waiting.pop(row)] = self._reply(row)
                        self._scheduler.cancel(row)
            except BaseException:
                self._scheduler = None  # its slots hold rows of a broken batch, its state may be lost
                raise
        return replies

    def close(self) -> None:
        """The batch that is being sampled fails at its next token."""
        self._closing = True

    def _submit(
        self, scheduler: Scheduler, messages: list[dict[str, str]], text: str | None, seed: int, max_tokens: int, temperature: float
    ) -> Row:  # fmt: skip
        """Raises BackendError where this prompt cannot be asked."""
        try:
            ids = self.template.prompt(messages)  # type: ignore[arg-type]
            constraint = None if text is None or self._vocabulary is None else grammar.Constraint(self._vocabulary, text)
        except ValueError as error:
            raise BackendError(f"generate/{type(error).__name__}") from error
        if len(ids) > min(self.sampler.prompt_buckets[-1], self.sampler.capacity - max_tokens):
            raise BackendError("prompt_too_long")
        key = zlib.crc32(np.asarray(ids, "<i4").tobytes()) & 0x7FFFFFFF  # a regeneration reads another prompt: it draws afresh
        return scheduler.submit(
            ids, prompt_key=key, sample=0, budget=max_tokens, temperature=temperature, seed=seed, constraint=constraint
        )

    def _reply(self, row: Row) -> Generated | BackendError:
        if row.reason == DEAD_END:
            return BackendError("dead_end")
        ids = row.tokens[:-1] if row.tokens and row.tokens[-1] in self.template.stop_ids else row.tokens
        return Generated(self.template.tokenizer.decode(ids), len(row.tokens), len(row.prompt))


def _frozen(config: Any, model: ModelConfig, template: Template) -> tuple[str, ModelConfig, Any, Template]:
    """(name, architecture, parameters on one device, template) of `sgls.model`; "" = the policy that the run starts from."""
    from slca.restore import policy_of  # assembles runs, as this module's caller does

    name = config.sgls.model or config.checkpoint.init or config.model.source
    if name == "random":
        key, name = jax.random.key(config.run.seed), f"random weights {zlib.crc32(repr((model, config.run.seed)).encode()):08x}"
        params = jax.jit(lambda key: transformer.init(model, key))(key)
    else:
        policy = policy_of(name)
        model, params, name = policy.model, policy.params, f"{name}@{policy.step}" if policy.step >= 0 else name
        template = policy.template if config.sgls.model else template
    model = model.run_as(config.model)
    return name, model, jax.tree.map(lambda x: _unpinned(x.astype(model.dtype)), params), template


def _unpinned(x: jax.Array) -> jax.Array:
    """`x` on the default device, as free to move as the sampler's empty state is: else each program compiles once for either."""
    return jnp.asarray(np.asarray(x)) if x.committed else x


def _buckets(longest: int) -> tuple[int, ...]:
    """Padded prompt lengths: a prompt of the simulator is a tool's schema and a call, mostly far from the longest."""
    return tuple(sorted({-(-longest // 4), -(-longest // 2), longest}))
