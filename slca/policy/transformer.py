"""One decoder for Qwen2/2.5, Qwen3, Llama 3.x and its kin, and Gemma 3: Flax Linen, parameters stacked over layers.

Training and prefill scan over the stack (`Transformer`); decoding walks a list of layers sliced once (`split_layers`,
`forward_cached`), which is faster by the copy of every weight that slicing inside a loop costs. Both run the same `Block`.

Parameters are a plain nested dict: `embed` [V, D], `final_norm` [D], `head` [D, V] (untied models) and `blocks`, whose
leaves carry a leading layer axis. Master weights keep their own dtype (float32); matmuls run in `config.dtype`; norms,
RoPE and logits in float32.
"""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from slca.policy import attention, cache, lora
from slca.policy.config import ModelConfig

Params = dict[str, Any]
placed = nn.with_logical_constraint  # (activation, its logical axes): to be split as the rules in force say, if any

# Logical axes of each parameter (the layer axis of `blocks` comes first); rules to mesh axes live with the learner.
_BLOCK_AXES: dict[str, tuple[str | None, ...]] = {
    "attn_norm": ("norm",),
    "q": ("embed", "heads", None),
    "k": ("embed", "kv_heads", None),
    "v": ("embed", "kv_heads", None),
    "o": ("heads", None, "embed"),
    "q_bias": ("heads", None),
    "k_bias": ("kv_heads", None),
    "v_bias": ("kv_heads", None),
    "q_norm": ("norm",),
    "k_norm": ("norm",),
    "attn_post_norm": ("norm",),
    "mlp_norm": ("norm",),
    "gate": ("embed", "mlp"),
    "up": ("embed", "mlp"),
    "down": ("mlp", "embed"),
    "mlp_post_norm": ("norm",),
}
_TOP_AXES: dict[str, tuple[str | None, ...]] = {
    "embed": ("vocab", "embed"),
    "final_norm": ("norm",),
    "head": ("embed", "vocab"),
}
_FUSED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}
# Logical axes of activations; without rules they say nothing. Every product of a half is named: where one was not, the compiler
# took the weight gradients apart by tokens and sent whole matrices.
_ACTIVATION = ("batch", "length", None)  # between blocks, and what each half adds
_WHOLE = ("batch", None, None)  # what a half reads: all tokens of its rows
_QUERIES, _KEYS, _INNER = ("batch", None, "heads", None), ("batch", None, "kv_heads", None), ("batch", None, "mlp")


def block_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of each parameter of one block."""
    D, H, K, h, F = config.width, config.heads, config.kv_heads, config.head_dim, config.ff
    shapes: dict[str, tuple[int, ...]] = {"attn_norm": (D,), "q": (D, H, h), "k": (D, K, h), "v": (D, K, h), "o": (H, h, D)}
    if config.qkv_bias:
        shapes |= {"q_bias": (H, h), "k_bias": (K, h), "v_bias": (K, h)}
    if config.qk_norm:
        shapes |= {"q_norm": (h,), "k_norm": (h,)}
    if config.gemma:
        shapes |= {"attn_post_norm": (D,), "mlp_post_norm": (D,)}
    shapes |= {"mlp_norm": (D,), "gate": (D, F), "up": (D, F), "down": (F, D)}
    return shapes | (lora.adapter_shapes(shapes, config.lora, config.lora.rank) if config.lora else {})


def fused_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """`block_shapes` with `_FUSED` joined along the axis behind the width: fewer, wider products when there are few tokens."""
    shapes = block_shapes(config)
    for name, parts in _FUSED.items():
        joined = [shapes.pop(part) for part in parts]
        shapes[name] = (joined[0][0], sum(shape[1] for shape in joined), *joined[0][2:])
    return shapes


def block_axes(config: ModelConfig) -> dict[str, tuple[str | None, ...]]:
    """Logical axis names of each parameter of one block of `split_layers`."""
    return {name: _BLOCK_AXES[name] for name in block_shapes(config) if name in _BLOCK_AXES}


def param_shapes(config: ModelConfig) -> Params:
    """Shape of every parameter, as a tree parallel to the parameters."""
    shapes: Params = {"embed": (config.vocab, config.width), "final_norm": (config.width,)}
    if not config.tied:
        shapes["head"] = (config.width, config.vocab)
    return shapes | {"blocks": {name: (config.layers, *shape) for name, shape in block_shapes(config).items()}}


def logical_axes(config: ModelConfig) -> Params:
    """Tuple of logical axis names of every parameter: embed, heads, kv_heads, mlp, vocab, norm, layers (None = never sharded)."""
    axes: Params = {name: _TOP_AXES[name] for name in param_shapes(config) if name != "blocks"}
    named = _BLOCK_AXES | lora.adapter_shapes(_BLOCK_AXES, config.lora)
    return axes | {"blocks": {name: ("layers", *named[name]) for name in block_shapes(config)}}


def init(config: ModelConfig, key: Any) -> Params:
    """Random float32 parameters: N(0, 1/fan_in), residual outputs shrunk by sqrt(2 L), norms neutral, biases 0.

    Each parameter has a key of its own name, so adding one changes no other. May run under jit with out_shardings.
    """
    norm = jnp.zeros if config.gemma else jnp.ones

    def leaf(name: str, shape: tuple[int, ...]) -> Array:
        if name.endswith("norm"):
            return norm(shape, jnp.float32)
        if name.endswith(("bias", lora.B)):
            return jnp.zeros(shape, jnp.float32)
        fan_in = {"o": config.heads * config.head_dim, "down": config.ff}.get(name.removesuffix(lora.A), config.width)
        depth = 2 * config.layers if name in ("o", "down") else 1
        own = jax.random.fold_in(key, zlib.crc32(name.encode()))
        return jax.random.normal(own, shape, jnp.float32) * (fan_in * depth) ** -0.5

    shapes = param_shapes(config)
    blocks = {name: leaf(name, shape) for name, shape in shapes.pop("blocks").items()}
    return {name: leaf(name, shape) for name, shape in shapes.items()} | {"blocks": blocks}


def rms_norm(x: Float[Array, "... D"], scale: Float[Array, " D"], config: ModelConfig) -> Float[Array, "... D"]:
    """RMS norm in float32; Gemma stores the distance of the scale from one."""
    wide = x.astype(jnp.float32)
    scale = scale.astype(jnp.float32) + (1.0 if config.gemma else 0.0)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + config.norm_eps)
    return (wide * jnp.expand_dims(scale, range(x.ndim - 1))).astype(x.dtype)


def inverse_frequencies(config: ModelConfig) -> np.ndarray:
    """[R, h/2] float32 RoPE frequencies: row 0 for layers that see everything, row 1 (if any) for sliding layers.

    llama3 scaling (Llama 3.1): wavelengths longer than original/low are divided by `factor`, those shorter than
    original/high stay, those between are blended.
    """
    exponent = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    wide = config.rope_theta**-exponent
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind == "linear":
        wide = wide / scaling.factor
    elif scaling is not None:
        turns = scaling.original * wide / (2 * np.pi)  # full turns inside the original context
        blend = np.clip((turns - scaling.low) / (scaling.high - scaling.low), 0.0, 1.0)
        wide = wide * (blend + (1 - blend) / scaling.factor)
    rows = [wide, config.local_rope_theta**-exponent] if config.sliding_window else [wide]
    return np.stack(rows).astype(np.float32)


def rope_tables(config: ModelConfig, positions: Int[Array, "B T"]) -> Float[Array, "R 2 B T h/2"]:
    """Cosines and sines in float32: an angle in bfloat16 would round position 257 to 256."""
    angles = positions.astype(jnp.float32)[None, :, :, None] * inverse_frequencies(config)[:, None, None, :]
    return jnp.stack([jnp.cos(angles), jnp.sin(angles)], 1)


def rope(x: Float[Array, "B T H h"], table: Float[Array, "2 B T h/2"]) -> Float[Array, "B T H h"]:
    """Rotate pairs (i, i + h/2) by their angles."""
    cos, sin = table[:, :, :, None, :]
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


@jax.custom_vjp
def widening(x: Float[Array, "B T D"], w: Float[Array, "D F"]) -> Float[Array, "B T F"]:
    """x @ w for an F well above D. JAX makes the gradient of `w` as [F, D] and turns it, for which the CPU first turns the whole
    [B T, F] gradient of the product, elementwise work fused into it; here it turns the narrow `x`."""
    return x @ w


def _widening_gradients(
    inputs: tuple[Float[Array, "B T D"], Float[Array, "D F"]], g: Float[Array, "B T F"]
) -> tuple[Float[Array, "B T D"], Float[Array, "D F"]]:
    x, w = inputs
    return jnp.einsum("btf,df->btd", g, w), jnp.einsum("btd,btf->df", x, g)


widening.defvjp(lambda x, w: (x @ w, (x, w)), _widening_gradients)


def sliding_layers(config: ModelConfig) -> np.ndarray:
    """[L] int32: 1 where a layer sees only `sliding_window` keys (and turns by row 1 of the RoPE tables), else 0."""
    return np.array([not wide for wide in config.global_layers] or [False] * config.layers, np.int32)


class Block(nn.Module):
    """Attention and MLP with their norms. Without a cache it attends inside the row, with one to the cache."""

    config: ModelConfig
    keep_kv: bool = True
    fused: bool = False  # q, k, v in one matrix, gate and up in another: `split_layers(..., fused=True)`

    @nn.compact
    def __call__(self, x, sliding, tables, positions, episode=None, prefix=None, layer_cache=None, slots=None, prompt=None):
        """Returns (x, (k, v) of the row or None), or (x, updated cache layer) when `layer_cache` is given.

        x [B, T, D]; sliding: 1 if this layer is (see `sliding_layers`); tables [R, 2, B, T, h/2]; positions, episode, slots [B, T];
        prefix: the episode each token's own goes on from [B, T], or None; prompt: `attention.Prompt` before the cache layer, or None.
        """
        c, dtype = self.config, jnp.dtype(self.config.dtype)
        shapes = fused_shapes(c) if self.fused else block_shapes(c)
        p = {name: self.param(name, nn.initializers.zeros, shape) for name, shape in shapes.items()}
        w = {name: value.astype(dtype) for name, value in p.items() if not name.endswith("norm")}

        h = placed(rms_norm(x, p["attn_norm"], c), _WHOLE)
        if self.fused:
            q, k, v = jnp.split(jnp.einsum("btd,dnh->btnh", h, w["qkv"]), (c.heads, c.heads + c.kv_heads), 2)
        else:
            q, k, v = (
                placed(lora.adapted(jnp.einsum("btd,dnh->btnh", h, w[n]), h, w, n, c.lora), at)
                for n, at in zip("qkv", (_QUERIES, _KEYS, _KEYS))
            )
        if c.qkv_bias:
            q, k, v = (y + w[f"{name}_bias"][None, None] for name, y in zip("qkv", (q, k, v)))
        if c.qk_norm:
            q, k = rms_norm(q, p["q_norm"], c), rms_norm(k, p["k_norm"], c)
        table = tables[sliding if c.sliding_window else 0]
        q, k = rope(q, table), rope(k, table)
        if layer_cache is None:
            kept = (k, v) if self.keep_kv else None
            window = (c.sliding_window, sliding) if c.sliding_window else None
            shared = None if prefix is None else attention.Prefix(prefix, positions)
            y = attention.attention(
                q, k, v, episode=episode, window=window, scale=c.scale, implementation=c.attention, prefix=shared
            )
        else:
            kept = cache.write(layer_cache, k, v, slots)
            reach = c.sliding_window if sliding else None
            y = attention.cached_attention(q, *kept, positions, window=reach, scale=c.scale, prompt=prompt).astype(dtype)
        y = placed(y, _QUERIES)
        y = placed(lora.adapted(jnp.einsum("btnh,nhd->btd", y, w["o"]), y, w, "o", c.lora), _ACTIVATION)
        x = x + (rms_norm(y, p["attn_post_norm"], c) if c.gemma else y)

        h = placed(rms_norm(x, p["mlp_norm"], c), _WHOLE)
        if self.fused:
            gate, up = jnp.split(h @ w["gate_up"], 2, -1)
        else:
            gate, up = (placed(lora.adapted(widening(h, w[n]), h, w, n, c.lora), _INNER) for n in ("gate", "up"))
        gate = jax.nn.gelu(gate, approximate=True) if c.gemma else jax.nn.silu(gate)
        y = gate * up
        y = placed(lora.adapted(y @ w["down"], y, w, "down", c.lora), _ACTIVATION)
        x = x + (rms_norm(y, p["mlp_post_norm"], c) if c.gemma else y)
        return placed(x, _ACTIVATION), kept


def embed_tokens(embed: Float[Array, "V D"], tokens: Int[Array, "B T"], config: ModelConfig) -> Float[Array, "B T D"]:
    """Rows of the embedding in the compute dtype; Gemma scales them by sqrt(D)."""
    x = embed[tokens].astype(config.dtype)
    return x * jnp.asarray(config.width**0.5, x.dtype) if config.gemma else x


class Transformer(nn.Module):
    """The decoder over whole rows. Apply as `Transformer(config).apply({"params": params}, tokens, positions, episode)`."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B T"],
        episode: Int[Array, "B T"] | None = None,
        prefix: Int[Array, "B T"] | None = None,
        *,
        keep_kv: bool = False,
    ) -> Any:
        """Hidden states [B, T, D] after the final norm; with `keep_kv` also (keys, values), each [L, B, T, K, h].

        Args:
            positions: restart at 0 in each episode, or go on from those of its prefix.
            episode: 0 = padding, else the id of the episode a token belongs to; None = every row is one episode.
            prefix: id of an episode earlier in the row that a token sees as well; its own where there is none. None = none anywhere.
        """
        c = self.config
        shapes = param_shapes(c)
        embed = self.param("embed", nn.initializers.zeros, shapes["embed"])
        scale = self.param("final_norm", nn.initializers.zeros, shapes["final_norm"])
        if not c.tied:
            self.param("head", nn.initializers.zeros, shapes["head"])
        x = placed(embed_tokens(embed, tokens, c), _ACTIVATION)

        stack = nn.scan(
            _remat(c.remat),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, *[nn.broadcast] * 4),
            length=c.layers,
        )
        of_all_layers = rope_tables(c, positions), positions, episode, prefix
        x, kv = stack(c, keep_kv, name="blocks")(x, sliding_layers(c), *of_all_layers)
        x = rms_norm(x, scale, c)
        return (x, kv) if keep_kv else x


def _remat(policy: str) -> Any:
    """The block whose backward pass recomputes nothing, everything, or all but the matmuls without batch axes."""
    if policy == "none":
        return Block
    saved = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if policy == "dots" else None
    return nn.remat(Block, prevent_cse=False, policy=saved)


def unembed(params: Params, config: ModelConfig) -> Float[Array, "D V"]:
    """The matrix from hidden states to logits, in the compute dtype."""
    return (params["embed"].T if config.tied else params["head"]).astype(config.dtype)


def logits(hidden: Float[Array, "... D"], head: Float[Array, "D V"]) -> Float[Array, "... V"]:
    """Float32 logits, whatever the compute dtype."""
    return jnp.einsum("...d,dv->...v", hidden, head, preferred_element_type=jnp.float32)


def computed(params: Params, config: ModelConfig) -> Params:
    """The parameters as a forward pass reads them: norms as they are, all else in the compute dtype. Any forward of these equals
    that of the masters, so they serve where nothing is trained."""

    def leaf(path: Any, value: Array) -> Array:
        return value if path[-1].key.endswith("norm") else value.astype(config.dtype)

    return jax.tree_util.tree_map_with_path(leaf, params)


def split_layers(params: Params, config: ModelConfig, fused: bool = False) -> list[Params]:
    """The stacked blocks as one dict a layer, matrices in the compute dtype, adapters merged. Do it once, before the
    loop over tokens.

    fused: see `fused_shapes`; not for parameters sharded over `tensor`, whose pieces would change places.
    """
    blocks = computed(lora.merged_blocks(params["blocks"], config.lora), config)
    for name, parts in _FUSED.items() if fused else ():
        blocks[name] = jnp.concatenate([blocks.pop(part) for part in parts], 2)
    return [{name: value[layer] for name, value in blocks.items()} for layer in range(config.layers)]


def forward_cached(
    params: Params,
    layers: list[Params],
    config: ModelConfig,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    slots: Int[Array, "B T"],
    kv_cache: cache.KVCache,
    prompts: cache.Prompts | None = None,
) -> tuple[Float[Array, "B T D"], cache.KVCache]:
    """Extend rows by T tokens: hidden states of the new tokens and the cache that holds them.

    Token t of row b is written at `slots[b, t]` (its position; anything >= S is dropped) and attends to all slots up to
    `positions[b, t]`. With `prompts` row b goes on from prompt b // (B / P): the cache holds what lies behind its end, and slots count
    from there. `layers` is `split_layers(params, config)`, fused or not; of `params` only embedding and final norm are read.
    """
    x = embed_tokens(params["embed"], tokens, config)
    plain = dataclasses.replace(config, lora=None)
    tables, block = rope_tables(config, positions), Block(plain, fused="qkv" in layers[0])
    new_cache: cache.KVCache = []
    shared = [None] * config.layers if prompts is None else [attention.Prompt(*kv, prompts.length) for kv in prompts.cache]
    for layer, sliding, old, prompt in zip(layers, sliding_layers(config), kv_cache, shared, strict=True):
        new: Any
        x, new = block.apply({"params": layer}, x, sliding, tables, positions, None, None, old, slots, prompt)
        new_cache.append(new)
    return rms_norm(x, params["final_norm"], config), new_cache
