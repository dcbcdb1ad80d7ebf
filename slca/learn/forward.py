"""The policy as the learner calls it: (hidden_fn, unembed_fn), with activations placed on the mesh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Float, Int

from slca.learn.sharding import ROWS, partition_spec
from slca.learn.update import Hidden, Unembed
from slca.policy.config import ModelConfig
from slca.policy.transformer import Transformer, unembed


def policy_forward(config: ModelConfig, mesh: Mesh | None = None) -> tuple[Hidden, Unembed]:
    """hidden_fn(params, tokens, positions, episode, prefix=None) -> [B, T, D] and unembed_fn(params) -> [D, V] for `make_update` and probes.

    On a mesh, activations are split by rows and, over `tensor`, by length after the embedding and every block: that is what the
    backward pass keeps, and the axis would otherwise hold copies (a gather and a scatter take the place of one all-reduce).
    The embedding table is gathered over fsdp before it is indexed: a lookup in a table split by width made the compiler
    replicate whole activations.
    """
    model = Transformer(config)

    def hidden(
        params: Any,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B T"],
        episode: Int[Array, "B T"],
        prefix: Int[Array, "B T"] | None = None,
    ) -> Any:  # [B, T, D]
        if mesh is None:
            return model.apply({"params": params}, tokens, positions, episode, prefix)
        spec = partition_spec(params["embed"].shape, ("vocab", None), mesh, name="embed")
        params = params | {"embed": lax.with_sharding_constraint(params["embed"], NamedSharding(mesh, spec))}
        sizes = {"length": tokens.shape[1], "heads": config.heads, "kv_heads": config.kv_heads, "mlp": config.ff}
        split = [(axis, "tensor" if size % mesh.shape["tensor"] == 0 else None) for axis, size in sizes.items()]
        with nn.logical_axis_rules([("batch", ROWS), *split]), jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return model.apply({"params": params}, tokens, positions, episode, prefix)

    return hidden, lambda params: unembed(params, config)


def embedded_forward(config: ModelConfig, mesh: Mesh | None = None) -> Callable[..., Any]:
    """hidden(params, embeddings [B, T, D], positions, episode) -> [B, T, D]: the policy after its lookup, for input gradients.

    Every token gets a row of its own in a table of B x T rows, so the policy itself needs no second entry.
    """

    def hidden(params: Any, embeddings: Float[Array, "B T D"], positions: Int[Array, "B T"], episode: Int[Array, "B T"]) -> Any:
        B, T, D = embeddings.shape
        inner, _ = policy_forward(replace(config, vocab=B * T, tied=True), mesh)
        table = params | {"embed": embeddings.reshape(B * T, D)}
        return inner(table, jnp.arange(B * T).reshape(B, T), positions, episode)

    return hidden
