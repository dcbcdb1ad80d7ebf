"""Where the sampler's arrays lie on a mesh: slots over `data` and `fsdp`, KV heads over `tensor`, prompt caches everywhere."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
from jax.experimental.layout import Format, Layout

from slca.learn.sharding import RULES, partition_spec
from slca.policy import cache
from slca.policy.config import ModelConfig
from slca.policy.transformer import block_axes, block_shapes
from slca.rollout.programs import State


class Placements(NamedTuple):
    """Number of slot ranges, and shardings of the state, of a prompt cache, of the layers sliced for decoding, of rows and of what
    is replicated (None: no mesh)."""

    shards: int
    state: Any
    prompt: Any
    layers: Any
    rows: Any
    replicated: Any


def placements(config: ModelConfig, mesh: jax.sharding.Mesh | None, slots: int, places: int = 0) -> Placements:
    """Placements of a pool of `slots` rows, in `places` that share prompts (0: none do). A prompt's cache is copied to every shard, so that any slot can be filled from it.

    The layers are split over `tensor` alone: a decode step reads every weight once, and over fsdp it would first have to fetch it.

    Raises ValueError when the slots do not divide over the mesh.
    """
    if mesh is None:
        return Placements(1, None, None, None, None, None)
    axes = tuple(axis for axis in ("data", "fsdp") if axis in mesh.axis_names)
    shards = math.prod(mesh.shape[axis] for axis in axes)
    if slots % shards:
        raise ValueError(f"sampler: {slots} slots do not divide over {shards} devices of mesh axes {axes}")
    tensor = mesh.shape.get("tensor", 1)
    heads = "tensor" if tensor > 1 and config.kv_heads % tensor == 0 else None
    rows: Any = jax.NamedSharding(mesh, jax.P(axes))

    def caches(first: Any) -> Any:
        values: Any = jax.NamedSharding(mesh, jax.P(first, heads))
        return [cache.Layer(_keys(values, config.head_dim), values)] * config.layers

    rules = {**RULES, "embed": None}
    shapes = block_shapes(config)
    layer = {
        n: jax.NamedSharding(mesh, partition_spec(shapes[n], names, mesh, rules)) for n, names in block_axes(config).items()
    }
    prompts = cache.Prompts(caches(axes), rows, rows) if places else None
    state, whole = State(caches(axes), rows, rows, prompts), jax.NamedSharding(mesh, jax.P())
    return Placements(shards, state, caches(None), [layer] * config.layers, rows, whole)


def _keys(place: jax.NamedSharding, head_dim: int) -> Any:
    """Keys [B, K, h, S] on a TPU: h innermost in memory, as in the values. Left to its default, the compiler copied all keys to
    that order and back in every call of `decode`: half the cache in room and time. Heads that do not fill its 128 lanes would be
    padded to them, so they stay."""
    if place.mesh.devices.flat[0].platform != "tpu" or head_dim % 128:
        return place
    return Format(Layout(major_to_minor=(0, 1, 3, 2)), place)
