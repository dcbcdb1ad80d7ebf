"""Tiny models of every family for tests: two layers, width 32, float32."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from slca.policy import transformer
from slca.policy.config import ModelConfig, RopeScaling

_TINY = ModelConfig("qwen3", vocab=61, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, ff=48, max_length=64)
FAMILIES = {
    "qwen2": dataclasses.replace(_TINY, family="qwen2"),
    "qwen3": _TINY,
    "llama": dataclasses.replace(_TINY, family="llama", tied=False, rope_scaling=RopeScaling("llama3", 8.0, original=16)),
    "smollm2": dataclasses.replace(_TINY, family="llama", width=24, heads=3, kv_heads=1, norm_eps=1e-5),
    "gemma3": dataclasses.replace(
        _TINY, family="gemma3_text", sliding_window=5, global_layers=(False, True), query_scale=9**-0.5
    ),
}


@functools.cache
def params(family: str) -> Any:
    """Random parameters, biases and norms included: neutral ones would hide a norm or bias that is not applied."""
    config = FAMILIES[family]

    def leaf(path: Any, shape: tuple[int, ...]) -> jax.Array:
        name = path[-1].key
        noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)
        if name.endswith("norm"):
            return jnp.asarray(0.3 * noise + (0.0 if config.gemma else 1.0))
        return jnp.asarray(noise * (0.3 if name.endswith("bias") else 0.18))

    shapes = transformer.param_shapes(config)
    return jax.tree_util.tree_map_with_path(leaf, shapes, is_leaf=lambda x: isinstance(x, tuple))


@functools.partial(jax.jit, static_argnames="config")
def logits(config: ModelConfig, weights: Any, tokens: Any, positions: Any, episode: Any = None) -> jax.Array:
    hidden = transformer.Transformer(config).apply({"params": weights}, tokens, positions, episode)
    return transformer.logits(hidden, transformer.unembed(weights, config))


def row_logits(config: ModelConfig, weights: Any, tokens: Any) -> jax.Array:
    """Logits [T, V] of one plain row, computed at a multiple of 32 tokens (what follows a row cannot change it)."""
    row = np.zeros(-(-len(tokens) // 32) * 32, np.int32)
    row[: len(tokens)] = tokens
    return logits(config, weights, row[None], np.arange(len(row))[None])[0, : len(tokens)]
