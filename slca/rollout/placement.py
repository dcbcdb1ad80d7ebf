"""Where the sampler's arrays lie on a mesh: slots over `data` and `fsdp`, KV heads over `tensor`, prompt caches everywhere."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax

from slca.policy import cache
from slca.policy.config import ModelConfig
from slca.rollout.programs import State


class Placements(NamedTuple):
    """Number of slot ranges, and shardings of the state, of a prompt cache, of rows and of what is replicated (None: no mesh)."""

    shards: int
    state: Any
    prompt: Any
    rows: Any
    replicated: Any


def placements(config: ModelConfig, mesh: jax.sharding.Mesh | None, slots: int) -> Placements:
    """Placements of a pool of `slots` rows. A prompt's cache is copied to every shard, so that any slot can be filled from it.

    Raises ValueError when the slots do not divide over the mesh.
    """
    if mesh is None:
        return Placements(1, None, None, None, None)
    axes = tuple(axis for axis in ("data", "fsdp") if axis in mesh.axis_names)
    shards = math.prod(mesh.shape[axis] for axis in axes)
    if slots % shards:
        raise ValueError(f"sampler: {slots} slots do not divide over {shards} devices of mesh axes {axes}")
    tensor = mesh.shape.get("tensor", 1)
    heads = "tensor" if tensor > 1 and config.kv_heads % tensor == 0 else None
    rows: Any = jax.NamedSharding(mesh, jax.P(axes))

    def caches(first: Any) -> Any:
        layer: Any = jax.NamedSharding(mesh, jax.P(first, heads))
        return [cache.Layer(layer, layer)] * config.layers

    return Placements(shards, State(caches(axes), rows, rows), caches(None), rows, jax.NamedSharding(mesh, jax.P()))
