"""Forward passes without a gradient: old and reference log-probs of the tokens a batch trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from slca.learn.sharding import by_rows, row_shards
from slca.learn.update import Hidden, Unembed, make_score, micro_batches
from slca.types import Batch


def make_logprob(
    hidden_fn: Hidden, unembed_fn: Unembed, config: Any, *, mesh: Mesh | None = None, params_at: Any = None
) -> Callable[[Any, Batch], Float[Array, "B T"]]:
    """Jitted (params, batch) -> log-probs [B, T] at the sampling temperature, NaN where nothing is trained.

    Same forward, micro-batches and chunks as the update, so that log-probs of unchanged parameters agree with it.
    Old log-probs are taken once, before the first optimiser step of a rollout batch (contract 10):

        batches = [b._replace(old_logprob=logprob(state.params, b)) for b in batches]
    """
    score = make_score(hidden_fn, unembed_fn, config, mesh, config.rollout.temperature)
    rows = config.train.micro_rows * row_shards(mesh)

    def logprob(params: Any, batch: Batch) -> Float[Array, "B T"]:
        def step(_: None, micro: Batch) -> tuple[None, Array]:
            trained = micro.loss_weight > 0
            nothing = jnp.full(trained.shape, jnp.nan, jnp.float32)
            values = lax.cond(jnp.any(trained), lambda: score(params, micro)[0], lambda: nothing)
            return None, jnp.where(trained, values, jnp.nan)

        _, values = lax.scan(step, None, micro_batches(batch, rows, mesh))
        return values.swapaxes(0, 1).reshape(batch.tokens.shape)

    if mesh is None:
        return jax.jit(logprob)
    return jax.jit(logprob, in_shardings=(params_at, by_rows(mesh)), out_shardings=by_rows(mesh))
