"""Where a run stands, and what its phases `sft` and `rl` differ in: their optimizer, and with it the shape of their TrainState."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from slca.assemble import Parts
from slca.learn.optim import optimizer, schedule
from slca.learn.sharding import first_device, settled, state_shardings
from slca.learn.update import init_state
from slca.policy import lora, transformer
from slca.policy.config import ModelConfig
from slca.tasks.datasets import Stream, stream
from slca.types import TrainState


@dataclass
class Position:
    """Where a run stands. step counts within the phase; number counts steps and phase changes since the run began and names
    its checkpoints; stream is the state of the phase's task stream."""

    phase: str = "sft"  # sft | sft_done: the end of a run without RL | rl | done: the end of one with it
    step: int = 0
    number: int = 0
    stream: dict[str, Any] = field(default_factory=dict)
    results: list[dict[str, Any]] = field(default_factory=list)

    def ended(self, config: Any) -> bool:
        """Whether nothing is left to train."""
        return self.phase == "done" or (self.phase == "sft_done" and not config.train.steps)

    def extend(self, config: Any) -> None:
        """A finished run whose config now asks for more RL steps goes on from its end."""
        if self.phase == "done" and self.step < config.train.steps:
            self.phase = "rl"
            for row in self.results:
                if row["name"] == "after RL":
                    row["name"] = f"RL step {self.step}"


def phase_optimizer(config: Any, model: ModelConfig, phase: str) -> Any:
    """The optimizer of a phase, its schedule sized in the phase's own optimiser steps."""
    c, axes = config, lora.trainable(transformer.logical_axes(model))
    if phase in ("sft", "sft_done"):
        with (section := c.optim.copy_and_resolve_references()).unlocked():
            section.update(name=c.sft.optimizer, weight_decay=c.sft.weight_decay)
        return optimizer(section, schedule(c.sft.schedule, c.sft.lr, max(1, c.sft.steps), c.sft.warmup), axes)
    steps = max(1, c.train.steps * c.train.mu * c.train.mini_batches)
    return optimizer(c.optim, schedule(c.optim.schedule, c.optim.lr, steps, c.optim.warmup), axes)


def phase_like(config: Any, parts: Parts, phase: str) -> TrainState:
    """Shapes and placement (ShapeDtypeStructs with shardings) of the phase's TrainState."""
    tx = phase_optimizer(config, parts.model, phase)
    shapes = jax.eval_shape(lambda: transformer.init(parts.model, jax.random.key(0)))
    state = jax.eval_shape(lambda p: init_state(p, tx, jax.random.key(0)), shapes)
    if parts.mesh is None:
        place = first_device()
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), state)
    places = state_shardings(state, transformer.logical_axes(parts.model), parts.mesh)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, places)


def phase_placement(config: Any, parts: Parts, phase: str) -> TrainState | None:
    """The shardings of `phase_like`, None on one device."""
    return None if parts.mesh is None else jax.tree.map(lambda x: x.sharding, phase_like(config, parts, phase))


def phase_state(config: Any, parts: Parts, phase: str, params: Any) -> TrainState:
    """The TrainState that a phase starts with; it holds `params` themselves."""
    seed, tx = config.run.seed, phase_optimizer(config, parts.model, phase)
    places = phase_placement(config, parts, phase)
    if places is None:
        return settled(init_state(params, tx, jax.random.key(seed)))
    opt_state = jax.jit(tx.init, out_shardings=places.opt_state)(lora.trainable(params))
    rest = jax.jit(lambda: (jnp.zeros((), jnp.int32), jax.random.key(seed)), out_shardings=(places.step, places.key))
    return TrainState(params, opt_state, *rest())


def phase_tasks(config: Any, position: Position) -> Stream:
    """The training tasks of the phase `sft` or `rl` that a run is in, from where it stands. Raises ValueError when the run began with others."""
    tasks = stream(config.tasks, "train", config.run.seed + (position.phase == "rl"))
    if position.stream:
        tasks.restore(position.stream)
    return tasks


def reference_needed(config: Any) -> bool:
    """Whether RL keeps the parameters it starts from: for the KL in the loss, the KL in the reward, or on request."""
    return config.loss.kl_coef > 0 or config.reward.kl_coef > 0 or config.train.keep_reference
