"""The TPU's splash attention kernel over a mesh: causal, inside one episode of a packed row, with a sliding window or without."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

# Tokens of a block of the kernel: the largest that divides the row; with blocks of 128 it waits for memory.
TILES = (512, 256, 128)


def attend(
    q: Array, k: Array, v: Array, episode: Array | None, window: tuple[int, Array] | None, scale: float, interpret: bool = False
) -> Array:
    """Arguments and result as in `slca.policy.attention.attention`; rows over (data, fsdp) and heads over tensor of the mesh that is set, if
    any. interpret: without a TPU, slowly."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    rows, length = q.shape[:2]
    if episode is None:
        episode = jnp.ones((rows, length), jnp.int32)
    tile = next((b for b in TILES if length % b == 0), length)
    sizes: Any = [tile] * 8
    tiles = kernel.BlockSizes(*sizes)

    def on_device(q, k, v, episode, sliding):
        heads = q.shape[1]

        def run(mask):
            run_row = kernel.make_splash_mha(
                masks.MultiHeadMask([mask] * heads), block_sizes=tiles, head_shards=1, q_seq_shards=1, interpret=interpret
            )
            return jax.vmap(lambda q, k, v, e: run_row(q, k, v, segment_ids=kernel.SegmentIds(e, e)))(q, k, v, episode)

        causal = masks.CausalMask((length, length))
        if window is None:
            return run(causal)
        local = masks.LocalMask((length, length), (window[0] - 1, 0), 0)
        return lax.cond(sliding > 0, lambda: run(local), lambda: run(causal))

    sliding = jnp.int32(0) if window is None else jnp.asarray(window[1], jnp.int32)
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty:
        heads, copies = head_split(q.shape[2], k.shape[2], mesh.shape.get("tensor", 1))
        k, v = (jnp.repeat(x, copies, axis=2) if copies > 1 else x for x in (k, v))
        batch = tuple(axis for axis in ("data", "fsdp") if axis in mesh.axis_names)
        row, head = jax.P(batch), jax.P(batch, heads)
        places = (head, head, head, row, jax.P())
        on_device = jax.shard_map(on_device, mesh=mesh, in_specs=places, out_specs=head, check_vma=False)
    q, k, v = ((x * f).transpose(0, 2, 1, 3) for x, f in ((q, scale), (k, 1), (v, 1)))
    return on_device(q, k, v, episode, sliding).transpose(0, 2, 1, 3)


def head_split(heads: int, kv_heads: int, devices: int) -> tuple[str | None, int]:
    """(mesh axis that splits the heads or None, copies of each KV head) on `devices` of the tensor axis.

    More devices than KV heads: each KV head is copied to the devices of its group, and no device holds more than it needs.
    Heads that the devices do not divide stay whole on every one, as `sharding.partition_spec` leaves their parameters.
    """
    if devices == 1 or heads % devices:
        return None, 1
    copies = devices // math.gcd(kv_heads, devices)
    return ("tensor", copies) if (heads // kv_heads) % copies == 0 else (None, 1)
