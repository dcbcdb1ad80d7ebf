"""One jitted optimiser step: micro-batches by `lax.scan`, one division (already in the weights), one clip, one update.

    state, metrics = update(state, batch)

The state is donated: the caller's old state is gone, and nothing else may hold its buffers (copy a reference policy first).
Metrics are (sum, weight) pairs; a pair of weight 0 says nothing and is left out when printed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from slca.learn.logprob import chunk_tokens, token_logprob
from slca.learn.loss import Metrics, policy_loss, sft_loss
from slca.learn.sharding import ROWS, by_rows, replicated, row_shards
from slca.policy import lora
from slca.types import Batch, TrainState

Hidden = Callable[..., Array]  # (params, tokens, positions, episode[, prefix]) [B, T] -> hidden [B, T, D]
Unembed = Callable[[Any], Array]  # params -> [D, V]
Term = Callable[[Array, Batch], tuple[Array, Metrics]]  # a further summand of the loss
Update = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


def init_state(params: Any, optimizer: optax.GradientTransformation, key: Array) -> TrainState:
    """A fresh TrainState; pure, so that `jax.eval_shape` gives its shapes and `jax.jit(..., out_shardings=placement)` builds it
    in place on a mesh. Adapters, where there are any, are all that the optimizer knows of."""
    return TrainState(params, optimizer.init(lora.trainable(params)), jnp.zeros((), jnp.int32), key)


def make_update(
    hidden_fn: Hidden,
    unembed_fn: Unembed,
    optimizer: optax.GradientTransformation,
    config: Any,
    *,
    mesh: Mesh | None = None,
    placement: TrainState | None = None,
    terms: Sequence[Term] = (),
) -> Update:
    """The RL update for config (loss, optim.clip_norm, train, rollout.temperature).

    mesh, placement: the mesh and `state_shardings`, both or neither. terms: further losses added to the policy loss, each
    (logprob, batch) -> (loss, metrics), sums over loss_weight like it.
    batch: host or device arrays [B, T], B a multiple of train.micro_rows x `row_shards(mesh)`; micro-batch m of M is the rows m::M.
    """

    score = make_score(hidden_fn, unembed_fn, config, mesh, config.rollout.temperature)
    return _jit_update(score, make_loss(config, terms), optimizer, config, mesh, placement)


def make_loss(config: Any, terms: Sequence[Term] = ()) -> Any:
    """(logprob, batch, entropy) -> (policy loss plus terms, metrics)."""

    def loss_fn(logprob: Array, batch: Batch, entropy: Array) -> tuple[Array, Metrics]:
        loss, metrics = policy_loss(logprob, batch, config.loss, entropy)
        for term in terms:
            more, found = term(logprob, batch)
            loss, metrics = loss + more, metrics | found
        return loss, metrics

    return loss_fn


def make_sft_update(
    hidden_fn: Hidden,
    unembed_fn: Unembed,
    optimizer: optax.GradientTransformation,
    config: Any,
    *,
    mesh: Mesh | None = None,
    placement: TrainState | None = None,
) -> Update:
    """The cold-start update: negative log-likelihood at temperature 1, the rest as `make_update`."""
    score = make_score(hidden_fn, unembed_fn, config, mesh, 1.0)
    return _jit_update(score, sft_loss, optimizer, config, mesh, placement)


def make_score(hidden_fn: Hidden, unembed_fn: Unembed, config: Any, mesh: Mesh | None, temperature: float) -> Any:
    """(params, batch) -> (logprob, entropy), both [B, T]; the chunk is sized for the rows one device sees."""

    # Axes of size 1 are left out: the compiler (jax 0.10.2) fails on a manual axis it has nothing to do for.
    split = () if mesh is None else tuple(axis for axis in ROWS if mesh.shape[axis] > 1)

    def score(params: Any, batch: Batch) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
        shared = () if batch.prefix is None else (batch.prefix,)
        hidden = constrain(hidden_fn(params, batch.tokens, batch.positions, batch.episode, *shared), mesh)
        matrix = unembed_fn(params)
        rows = -(-batch.tokens.shape[0] // row_shards(mesh))
        chunk = chunk_tokens(config.train.logprob_bytes, rows, matrix.shape[1])
        if mesh is None or not split:
            return token_logprob(hidden, matrix, batch.tokens, temperature, chunk)
        # Each device scores its own rows. Left to the compiler, the matrix is gathered, and its gradient reduced over all
        # devices, once a chunk; so both happen once, outside the loop. The vocabulary stays split over `tensor`.
        vocab = "tensor" if matrix.shape[1] % mesh.shape["tensor"] == 0 else None
        matrix = constrain(matrix, mesh, PartitionSpec(None, vocab))

        def local(hidden: Array, matrix: Array, tokens: Array) -> tuple[Array, Array]:
            wide = matrix.astype(jnp.float32)  # its gradient is reduced over the devices in f32
            return token_logprob(hidden, lax.pcast(wide, split, to="varying"), tokens, temperature, chunk)

        rows_of = PartitionSpec(split)
        by_row = jax.shard_map(
            local, mesh=mesh, in_specs=(rows_of, PartitionSpec(), rows_of), out_specs=rows_of, axis_names=set(split)
        )
        return by_row(hidden, matrix, batch.tokens)

    return score


def micro_batches(batch: Any, rows: int, mesh: Mesh | None = None) -> Any:
    """A pytree of arrays [B, ...] -> [M, rows, ...] with micro-batch m = rows m::M, which moves no row between devices."""
    B = jax.tree.leaves(batch)[0].shape[0]
    if B % rows:
        raise ValueError(f"a batch of {B} rows is not a multiple of the {rows} rows of a micro-batch")

    def cut(x: Array) -> Array:
        return constrain(x.reshape(rows, B // rows, *x.shape[1:]).swapaxes(0, 1), mesh, PartitionSpec(None, ROWS))

    return jax.tree.map(cut, batch)


def accumulate(
    score: Any, loss_fn: Any, params: Any, batch: Batch, rows: int, mesh: Mesh | None, params_at: Any = None
) -> tuple[Any, Metrics]:
    """f32 gradients and metrics summed over micro-batches; one without a trained token is skipped at run time.

    The whole is one `lax.scan`: nothing of a micro-batch outlives it (verl#6699).
    """

    def objective(params: Any, micro: Batch) -> tuple[Array, Metrics]:
        logprob, entropy = score(params, micro)
        loss, metrics = loss_fn(logprob, micro, entropy)
        return loss, metrics | {"loss": (loss, jnp.ones(()))}

    def add(total: Any, micro: Batch) -> Any:
        (_, metrics), grads = jax.value_and_grad(objective, has_aux=True)(params, micro)
        grads = jax.tree.map(lambda t, g: t + g.astype(jnp.float32), total[0], grads)
        return _place(grads, params_at), jax.tree.map(jnp.add, total[1], metrics)

    def step(total: Any, micro: Batch) -> tuple[Any, None]:
        return lax.cond(jnp.any(micro.loss_weight > 0), add, lambda total, _: total, total, micro), None

    parts = micro_batches(batch, rows, mesh)
    first = jax.tree.map(lambda x: x[0], parts)
    empty = jax.eval_shape(lambda p, m: objective(p, m)[1], params, first)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), (params, empty))
    (grads, metrics), _ = lax.scan(step, (_place(zeros[0], params_at), zeros[1]), parts)
    return grads, metrics


def _jit_update(
    score: Any, loss_fn: Any, optimizer: Any, config: Any, mesh: Mesh | None, placement: TrainState | None
) -> Update:
    if (mesh is None) != (placement is None):
        raise ValueError("make_update needs both mesh and placement (sharding.state_shardings), or neither")
    rows = config.train.micro_rows * row_shards(mesh)

    def update(state: TrainState, batch: Batch, base: Any = None) -> tuple[TrainState, Metrics]:
        params_at = None if placement is None else lora.trainable(placement.params)
        own = score if base is None else lambda adapters, micro: score(lora.joined(base, adapters), micro)
        grads, metrics = accumulate(own, loss_fn, state.params, batch, rows, mesh, params_at)
        loss = metrics.pop("loss")[0]
        norm = optax.tree.norm(grads)
        trained, finite = jnp.any(batch.loss_weight > 0), jnp.isfinite(norm) & jnp.isfinite(loss)
        take = trained & finite
        if config.optim.clip_norm > 0:
            scale = jnp.minimum(1.0, config.optim.clip_norm / jnp.maximum(norm, 1e-12))
            grads = jax.tree.map(lambda g: g * scale, grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        # a skipped step leaves every bit as it was; dtypes are held so that a promotion cannot recompile (tunix:9a17c371)
        keep = partial(jax.tree.map, lambda new, old: jnp.where(take, new, old).astype(old.dtype))
        state = TrainState(keep(params, state.params), keep(opt_state, state.opt_state), state.step + take, state.key)
        one = trained.astype(jnp.float32)
        metrics |= {
            "loss": (loss, one),
            "grad_norm": (norm, one),
            "step/taken": (take.astype(jnp.float32), jnp.ones(())),
            "step/nonfinite": ((trained & ~finite).astype(jnp.float32), jnp.ones(())),
            "step/empty": (1.0 - one, jnp.ones(())),
        }
        return state, metrics

    adapters, jit = config.model.lora.rank > 0, partial(jax.jit, update, donate_argnums=0)
    if mesh is None or placement is None:
        return _over_adapters(jit()) if adapters else jit()
    at: Any = placement._replace(params=lora.trainable(placement.params))
    base_at = (lora.frozen(placement.params),) if adapters else ()
    jitted = jit(in_shardings=(at, by_rows(mesh), *base_at), out_shardings=(at, replicated(mesh)))
    return _over_adapters(jitted) if adapters else jitted


def _over_adapters(jitted: Any) -> Update:
    """An update whose state holds base and adapters. The base goes in and stays: neither copied, nor donated, nor differentiated."""

    def update(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        base = lora.frozen(state.params)
        new, metrics = jitted(state._replace(params=lora.trainable(state.params)), batch, base)
        return new._replace(params=lora.joined(base, new.params)), metrics

    return update


def constrain(x: Array, mesh: Mesh | None, spec: PartitionSpec | None = None) -> Array:
    """`x` placed by `spec` on the mesh, by rows unless told; as it is without a mesh."""
    return x if mesh is None else lax.with_sharding_constraint(x, NamedSharding(mesh, spec or PartitionSpec(ROWS)))


def _place(tree: Any, places: Any) -> Any:
    return tree if places is None else jax.tree.map(lax.with_sharding_constraint, tree, places)
