"""The KV cache: one pair of arrays a layer, laid out for one-query attention.

Keys are [B, K, h, S] and values [B, K, S, h], so that both products of decoding run along contiguous memory: 4-8 times
faster on CPU than `dot_product_attention` on [B, S, K, h]. A list of layers, not one stacked array, so that each layer is
written in place when the cache is donated.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from slca.policy.config import ModelConfig


class Layer(NamedTuple):
    """Keys and values of one layer."""

    keys: Float[Array, "B K h S"]
    values: Float[Array, "B K S h"]


KVCache = list[Layer]


class Prompts(NamedTuple):
    """Prompts that neighbouring rows share: their caches, how many tokens each holds, and the token that follows them."""

    cache: KVCache
    length: Int[Array, " P"]
    last: Int[Array, " P"]


def init(config: ModelConfig, rows: int, length: int, dtype: str) -> KVCache:
    """An empty cache of `rows` rows of `length` tokens. What lies beyond a row's length is never read."""
    keys = (rows, config.kv_heads, config.head_dim, length)
    values = (rows, config.kv_heads, length, config.head_dim)
    return [Layer(jnp.zeros(keys, dtype), jnp.zeros(values, dtype)) for _ in range(config.layers)]


def nbytes(config: ModelConfig, rows: int, length: int, dtype: str) -> int:
    """Bytes that `init` would allocate over all devices."""
    return 2 * config.layers * rows * config.kv_heads * config.head_dim * length * jnp.dtype(dtype).itemsize


def from_prefill(keys: Float[Array, "L B T K h"], values: Float[Array, "L B T K h"], dtype: str) -> KVCache:
    """Keys and values of a whole forward pass, in cache layout; the length is that of the pass."""
    keys, values = keys.astype(dtype).transpose(0, 1, 3, 4, 2), values.astype(dtype).transpose(0, 1, 3, 2, 4)
    return [Layer(k, v) for k, v in zip(keys, values)]


def write(layer: Layer, keys: Float[Array, "B T K h"], values: Float[Array, "B T K h"], slots: Int[Array, "B T"]) -> Layer:
    """Put token t of row b at `slots[b, t]`; a slot >= S is dropped (rows that do not take part).

    Heads are among the indices: with a head's vector alone as the window of the scatter it lies together in the cache as it is. With
    [K, h] for a window and more than one head on a chip, the TPU's compiler turned the whole cache around in every step.
    """
    head = jnp.arange(layer.keys.shape[1])[:, None]

    def row(k, v, new_k, new_v, slot):
        k = k.at[head, :, slot].set(new_k.transpose(1, 0, 2), mode="drop")
        return k, v.at[head, slot].set(new_v.transpose(1, 0, 2), mode="drop")

    dtype = layer.keys.dtype
    return Layer(*jax.vmap(row)(layer.keys, layer.values, keys.astype(dtype), values.astype(dtype), slots))


def gather(cache: KVCache, rows: Int[Array, " R"]) -> KVCache:
    """The cache of chosen rows, in that order (a row may appear more than once)."""
    return jax.tree.map(lambda x: x[rows], cache)
