"""Attention: one function for packed rows with several kernels, one for queries against a cache.

`attention` is causal, stays inside one episode of a packed row, and may see only the last `window` keys. Everything is
decided by position in the row: inside an episode that equals distance in tokens. Episodes that go on from a shared prefix
(`Prefix`) see it as well, and there distance is that of the tokens' own positions.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from slca.policy import dense, splash
from slca.policy.dense import NEGATIVE

BLOCK = 512  # tokens of a query or key block of the blockwise form
DENSE = 2048  # tokens of a row up to which `auto` holds all scores at once
CACHED_BLOCK = 256  # queries of a piece that meet the cache together


class Prompt(NamedTuple):
    """Keys and values of prompts that neighbouring rows share, and how many tokens of each there are."""

    keys: Float[Array, "P K h S"]
    values: Float[Array, "P K S h"]
    length: Int[Array, " P"]


class Prefix(NamedTuple):
    """Packed episodes that go on from one earlier in their row: of each token the id of that episode (its own where there is none)
    and its position, counted from the start of the prefix."""

    episode: Int[Array, "B T"]
    positions: Int[Array, "B T"]


def attention(
    q: Float[Array, "B T H h"],
    k: Float[Array, "B T K h"],
    v: Float[Array, "B T K h"],
    *,
    episode: Int[Array, "B T"] | None,
    window: tuple[int, Int[Array, ""]] | None,
    scale: float,
    implementation: str,
    prefix: Prefix | None = None,
) -> Float[Array, "B T H h"]:
    """Causal self-attention within episodes; softmax in float32.

    Args:
        episode: id of the episode of each token, 0 = padding; None = the row is one episode.
        prefix: episodes whose prefix, an episode before them in the row, they see too; needs `episode`.
        window: (size, sliding): where `sliding` (a scanned fact of the layer) is 1, a query sees itself and size - 1 keys
            before it; None = no layer slides.
        implementation: `xla` (dense scores), `blockwise` (portable, memory linear in T), `cudnn` (GPU, bfloat16), `splash` (TPU);
            `auto`: splash where it can run and no prefix is shared, else xla for rows of up to 2,048 tokens and blockwise for
            longer ones.

    Raises:
        ValueError: the implementation cannot run here; the message names what it needs.
    """
    if implementation == "auto":
        implementation = _choice(q.shape[1], q.shape[3], prefix is not None)
    if implementation == "splash" and prefix is not None:
        raise ValueError(
            "attention='splash' keeps episodes apart and knows no shared prefix: use model.attention='xla' or 'blockwise', "
            "or train.share_prompts=False"
        )
    if reason := refusal(implementation, _platform(), q.dtype, q.shape[1], q.shape[3]):
        raise ValueError(reason)
    if implementation == "splash":
        return splash.attend(q, k, v, episode, window, scale)
    reach = None if window is None else jnp.where(window[1], window[0], q.shape[1] + 1)
    if implementation == "blockwise":
        return _blockwise(q, k, v, episode, reach, scale, prefix)
    mask = _mask(q.shape[1], episode, reach, prefix)
    if implementation == "xla":
        return dense.attend(q, k, v, jnp.tri(q.shape[1], dtype=bool)[None, None] if mask is None else mask, scale)
    kernel: Any = implementation
    return jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=mask is None, scale=scale, implementation=kernel)


def refusal(implementation: str, platform: str, dtype: Any, length: int, size: int) -> str:
    """Why this implementation cannot attend over rows of `length` tokens with heads of `size` there, and what can; "" = it can."""
    remedy = "use model.attention='auto', 'xla' or 'blockwise'"
    if implementation == "cudnn" and (platform != "gpu" or dtype != jnp.bfloat16):
        return f"attention='cudnn' needs an NVIDIA GPU and dtype bfloat16; here: {platform}, {jnp.dtype(dtype).name}; {remedy}"
    if implementation == "splash" and (platform != "tpu" or length % 128 or size % 64):
        return (
            f"attention='splash' needs a TPU, rows of a multiple of 128 tokens and heads of a multiple of 64; here: {platform}, "
            f"{length} tokens, head_dim {size}; {remedy}"
        )
    return ""


def _choice(length: int, size: int, shared: bool = False) -> str:
    """The implementation for rows of `length` tokens and heads of `size`, prefixes shared or not, where the program will run."""
    if not shared and _platform() == "tpu" and length % 128 == 0 and size % 64 == 0:
        return "splash"
    return "xla" if length <= DENSE else "blockwise"


def _platform() -> str:
    """Where the program will run: on the devices of the mesh in use (they may be a topology only), else the default ones."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def _mask(length: int, episode: Array | None, reach: Array | None, prefix: Prefix | None) -> Array | None:
    """[B or 1, 1, T, T], or None where plain causality says it all."""
    if episode is None and reach is None:
        return None
    t = jnp.arange(length)
    seen = (t[None, :] <= t[:, None])[None, None]
    if reach is not None:
        at = t[None] if prefix is None else prefix.positions
        seen &= (at[:, :, None] - at[:, None, :] < reach)[:, None]
    if episode is not None:
        seen = seen & _together(episode, episode, None if prefix is None else prefix.episode)[:, None]
    return seen


def _together(query: Array, key: Array, prefix: Array | None) -> Array:
    """[B, Q, K]: keys of the query's episode or of its prefix, from the ids [B, Q] and [B, K]."""
    same = query[:, :, None] == key[:, None, :]
    return same if prefix is None else same | (prefix[:, :, None] == key[:, None, :])


def _blockwise(
    q: Array, k: Array, v: Array, episode: Array | None, reach: Array | None, scale: float, prefix: Prefix | None = None
) -> Array:
    """Online softmax over key blocks for one block of queries at a time (Rabe & Staats 2021; Dao et al. 2022).

    Blocks are recomputed in the backward pass, so memory grows with T, not T squared. Key blocks that no query can see
    (later ones, and those before the window where no prefix is shared) are skipped.
    """
    rows, length, heads, size = q.shape
    block = min(BLOCK, length)
    count = -(-length // block)
    if episode is None:
        episode = jnp.ones((rows, length), jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(length), (rows, length)) if prefix is None else prefix.positions
    groups = heads // k.shape[2]

    def blocks(x):  # [B, T, ...] -> [count, B, block, ...]; added tokens come last, where causality hides them
        x = jnp.pad(x, ((0, 0), (0, count * block - length)) + ((0, 0),) * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(rows, count, block, *x.shape[2:]), 1, 0)

    q = blocks(q.reshape(rows, length, k.shape[2], groups, size))
    k, v, episode, positions = blocks(k), blocks(v), blocks(episode), blocks(positions)
    shared = None if prefix is None else blocks(prefix.episode)
    offset = jnp.arange(block)

    def visit(carry, query, key):
        q_i, e_i, p_i, shared_i, i = query
        k_j, v_j, e_j, p_j, j = key
        top, total, out = carry
        seen = ((i - j) * block + offset[:, None] - offset[None, :] >= 0)[None]
        if reach is not None:
            seen &= p_i[:, :, None] - p_j[:, None, :] < reach
        seen = seen & _together(e_i, e_j, shared_i)
        scores = jnp.einsum("btkgh,bskh->bkgts", q_i, k_j, preferred_element_type=jnp.float32) * scale
        scores = jnp.where(seen[:, None, None], scores, NEGATIVE)
        new_top = jnp.maximum(top, scores.max(-1))
        weights = jnp.exp(scores - new_top[..., None])
        shrink = jnp.exp(top - new_top)
        total = total * shrink + weights.sum(-1)
        part = jnp.einsum("bkgts,bskh->bkgth", weights.astype(v_j.dtype), v_j, preferred_element_type=jnp.float32)
        return new_top, total, out * shrink[..., None] + part

    @jax.checkpoint
    def query_block(query):
        i = query[-1]

        @jax.checkpoint
        def step(carry, key):
            j = key[-1]
            needed = j <= i
            if reach is not None and prefix is None:
                needed &= (i - j) * block - (block - 1) < reach
            return lax.cond(needed, functools.partial(visit, query=query, key=key), lambda c: c, carry), None

        shape = (rows, k.shape[3], groups, block)
        start = (jnp.full(shape, NEGATIVE), jnp.zeros(shape), jnp.zeros((*shape, size)))
        (_, total, out), _ = lax.scan(step, start, (k, v, episode, positions, jnp.arange(count)))
        return (out / total[..., None]).astype(q.dtype)

    out = lax.map(query_block, (q, episode, positions, shared, jnp.arange(count)))  # [count, B, K, G, block, h]
    out = out.transpose(1, 0, 4, 2, 3, 5).reshape(rows, count * block, heads, size)
    return out[:, :length]


def cached_attention(
    q: Float[Array, "B T H h"],
    keys: Float[Array, "B K h S"],
    values: Float[Array, "B K S h"],
    positions: Int[Array, "B T"],
    *,
    window: int | None,
    scale: float,
    prompt: Prompt | None = None,
) -> Float[Array, "B T H h"]:
    """Queries at `positions` against a cache whose slot s holds position s (the query's own key included).

    With `prompt` the first tokens of a row lie in the prompt that w = B / P neighbouring rows share, and slot s holds the position
    s behind its end. The result is that of the two caches in a row.

    Long pieces go a block of queries at a time: the scores of 2,048 tokens against 32,768 slots would take gigabytes a row.
    """
    block, length = CACHED_BLOCK, q.shape[1]
    if prompt is None:
        attend = functools.partial(_cached, keys=keys, values=values, window=window, scale=scale)
    else:
        attend = functools.partial(_shared, own=(keys, values), prompt=prompt, window=window, scale=scale)
    if length <= block:
        return attend(q, positions=positions)
    missing = -length % block

    def blocks(x: Array) -> Array:  # [B, T, ...] -> [count, B, block, ...]
        x = jnp.pad(x, ((0, 0), (0, missing)) + ((0, 0),) * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(x.shape[0], -1, block, *x.shape[2:]), 1, 0)

    out = lax.map(lambda part: attend(part[0], positions=part[1]), (blocks(q), blocks(positions)))
    return jnp.moveaxis(out, 0, 1).reshape(q.shape[0], -1, *q.shape[2:])[:, :length]


def _cached(q: Array, keys: Array, values: Array, positions: Array, window: int | None, scale: float) -> Array:
    """The mask is added rather than chosen (it is the same for all layers, so XLA makes it once a step) and the sum divides the output
    rather than the weights: each saves a pass over [B, H, T, S].
    """
    rows, length, heads, size = q.shape
    kv_heads, slots = keys.shape[1], jnp.arange(keys.shape[3])
    q = q.reshape(rows, length, kv_heads, heads // kv_heads, size).transpose(0, 2, 3, 1, 4)
    q = q.reshape(rows, kv_heads, -1, size).astype(keys.dtype)
    scores = jnp.einsum("bkmh,bkhs->bkms", q, keys, preferred_element_type=jnp.float32)
    distance = positions[:, :, None] - slots[None, None]
    seen = distance >= 0
    if window is not None:
        seen &= distance < window
    bias = jnp.where(seen, 0.0, NEGATIVE)[:, None, None]
    scores = scores.reshape(rows, kv_heads, -1, length, slots.size) * scale + bias
    weights = jnp.exp(scores - scores.max(-1, keepdims=True)).reshape(rows, kv_heads, -1, slots.size)
    out = jnp.einsum("bkms,bksh->bkmh", weights.astype(values.dtype), values, preferred_element_type=jnp.float32)
    out = out / weights.sum(-1, keepdims=True)
    out = out.reshape(rows, kv_heads, -1, length, size).transpose(0, 3, 1, 2, 4)
    return out.reshape(rows, length, heads, size)


def _shared(q: Array, positions: Array, own: tuple[Array, Array], prompt: Prompt, window: int | None, scale: float) -> Array:
    """One softmax over a row's prompt and its own tokens.

    The rows of a prompt meet its keys in one product, so a step reads them once for all. Queries are [P, K, w, m, T, h] there
    (m = H / K), and [B, K, 1, m, T, h] before the rows' own keys.
    """
    rows, length, heads, size = q.shape
    places, kv_heads = prompt.keys.shape[:2]
    width = rows // places

    def together(x: Array) -> Array:
        """[B, K, 1, ...] -> [P, K, w, ...]"""
        return jnp.moveaxis(x.reshape(places, width, kv_heads, *x.shape[3:]), 1, 2)

    def apart(x: Array) -> Array:
        """[P, K, w, ...] -> [B, K, 1, ...]"""
        return jnp.moveaxis(x, 2, 1).reshape(rows, kv_heads, 1, *x.shape[3:])

    def scores(q: Array, keys: Array, seen: Array) -> Array:
        """[N, K, w, m, T, S] of queries [N, K, w, m, T, h], keys [N, K, h, S] and what may be seen [N, w, T, S]."""
        flat = q.reshape(*q.shape[:2], -1, size).astype(keys.dtype)
        product = jnp.einsum("bkmh,bkhs->bkms", flat, keys, preferred_element_type=jnp.float32)
        return product.reshape(*q.shape[:-1], -1) * scale + jnp.where(seen, 0.0, NEGATIVE)[:, None, :, None]

    def summed(weights: Array, values: Array) -> Array:
        """[N, K, w, m, T, h] of weights [N, K, w, m, T, S] and values [N, K, S, h]."""
        flat = weights.reshape(*weights.shape[:2], -1, weights.shape[-1]).astype(values.dtype)
        product = jnp.einsum("bkms,bksh->bkmh", flat, values, preferred_element_type=jnp.float32)
        return product.reshape(*weights.shape[:-1], size)

    q = q.reshape(rows, length, kv_heads, 1, heads // kv_heads, size).transpose(0, 2, 3, 4, 1, 5)
    keys, values = own
    slot = jnp.arange(keys.shape[3])
    behind = (positions - jnp.repeat(prompt.length, width)[:, None])[:, None, :, None] - slot[None, None, None]
    own_seen = behind >= 0
    slot = jnp.arange(prompt.keys.shape[3])
    seen = (slot[None] < prompt.length[:, None])[:, None, None]
    if window is not None:
        own_seen &= behind < window
        seen = seen & (positions.reshape(places, width, length, 1) - slot[None, None, None] < window)
    ours, shared = scores(q, keys, own_seen), scores(together(q), prompt.keys, seen)
    top = jnp.maximum(ours.max(-1), apart(shared.max(-1)))
    ours, shared = jnp.exp(ours - top[..., None]), jnp.exp(shared - together(top)[..., None])
    total = ours.sum(-1) + apart(shared.sum(-1))
    out = (summed(ours, values) + apart(summed(shared, prompt.values))) / total[..., None]
    return out[:, :, 0].transpose(0, 3, 1, 2, 4).reshape(rows, length, heads, size)
