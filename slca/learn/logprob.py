"""Log-prob of the row's own tokens, and entropy, from hidden states: in chunks of T with recompute, never [B, T, V]."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int


def chunk_tokens(logits_bytes: int, rows: int, vocab: int) -> int:
    """Tokens of T per chunk so that one f32 [rows, C, V] block of logits takes at most `logits_bytes` (at least 1 token)."""
    return max(logits_bytes // (4 * rows * vocab), 1)


def token_logprob(
    hidden: Float[Array, "B T D"],
    unembed: Float[Array, "D V"],
    tokens: Int[Array, "B T"],
    temperature: float | Float[Array, ""] = 1.0,
    chunk: int = 512,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """(log-prob, entropy) in nats, f32 [B, T]: entry t scores tokens[:, t] from hidden[:, t-1]; entry 0 is 0.

    The distribution is softmax(logits / temperature) over the full vocabulary, as the sampler's (contract 10; dividing
    log-probs by the temperature instead is wrong: prime-rl#697). Matrix products take the dtype of `hidden` and
    accumulate in f32; everything after them is f32. Where there are several chunks, the backward pass recomputes the logits of
    each, so the largest array is [B, chunk, V] (TRL#2773, tunix:592666c5).
    """
    B, T, D = hidden.shape
    if T < 2:
        return jnp.zeros((B, T), jnp.float32), jnp.zeros((B, T), jnp.float32)
    count = -(-(T - 1) // chunk)
    size = -(-(T - 1) // count)  # equal chunks: the last one is short by less than `count` tokens
    missing = count * size - (T - 1)
    states = jnp.pad(hidden[:, :-1], ((0, 0), (0, missing), (0, 0))).reshape(B, count, size, D).swapaxes(0, 1)
    targets = jnp.pad(tokens[:, 1:], ((0, 0), (0, missing))).reshape(B, count, size).swapaxes(0, 1)
    matrix = unembed.astype(jnp.float32)  # so that its gradient adds up over the chunks in f32

    def score(matrix: Array, states: Array, targets: Array) -> tuple[Array, Array]:
        logits = (
            jnp.einsum("bcd,dv->bcv", states, matrix.astype(states.dtype), preferred_element_type=jnp.float32) / temperature
        )
        total = jax.nn.logsumexp(logits, axis=-1)
        chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        shifted = logits - total[..., None]
        return chosen - total, -jnp.sum(jnp.exp(shifted) * shifted, axis=-1)

    scored = jax.checkpoint(score) if count > 1 else score  # a single chunk is small enough to be kept

    def step(_: None, part: tuple[Array, Array]) -> tuple[None, tuple[Array, Array]]:
        return None, scored(matrix, *part)

    _, (logprob, entropy) = lax.scan(step, None, (states, targets))

    def whole(values: Float[Array, "N B C"]) -> Float[Array, "B T"]:
        return jnp.pad(values.swapaxes(0, 1).reshape(B, -1)[:, : T - 1], ((0, 0), (1, 0)))

    return whole(logprob), whole(entropy)


class Divergence(NamedTuple):
    """Two distributions at each of K places, nats: kl = KL(teacher || student), log-probs of the target token under both, and
    the student's entropy."""

    kl: Float[Array, "B K"]
    logprob: Float[Array, "B K"]
    teacher_logprob: Float[Array, "B K"]
    entropy: Float[Array, "B K"]


def token_divergence(
    student: Float[Array, "B K D"],
    teacher: Float[Array, "B K D"],
    unembed: tuple[Float[Array, "D V"], Float[Array, "D V"]],
    targets: Int[Array, "B K"],
    temperature: float | Float[Array, ""] = 1.0,
    chunk: int = 512,
) -> Divergence:
    """`Divergence` of softmax(logits / temperature) over the full vocabulary between aligned hidden states, f32.

    unembed: the student's matrix and the teacher's. As in `token_logprob`, logits exist for `chunk` places at a time and are
    recomputed in the backward pass. A sampled-token estimate would be cheaper, but it has another expectation.
    """
    B, K = targets.shape
    size = min(chunk, K)
    count = -(-K // size)

    def cut(x: Array) -> Array:
        padded = jnp.pad(x, ((0, 0), (0, count * size - K), *[(0, 0)] * (x.ndim - 2)))
        return padded.reshape(B, count, size, *x.shape[2:]).swapaxes(0, 1)

    def table(states: Array, matrix: Array) -> Array:
        logits = jnp.einsum("bcd,dv->bcv", states, matrix.astype(states.dtype), preferred_element_type=jnp.float32)
        return jax.nn.log_softmax(logits / temperature, axis=-1)

    @jax.checkpoint
    def compare(ours: Array, theirs: Array, targets: Array) -> Divergence:
        s, t = table(ours, unembed[0]), table(theirs, unembed[1])
        own, other = (jnp.take_along_axis(x, targets[..., None], -1)[..., 0] for x in (s, t))
        return Divergence(jnp.sum(jnp.exp(t) * (t - s), -1), own, other, -jnp.sum(jnp.exp(s) * s, -1))

    _, found = lax.scan(lambda _, part: (None, compare(*part)), None, (cut(student), cut(teacher), cut(targets)))
    return Divergence(*(x.swapaxes(0, 1).reshape(B, -1)[:, :K] for x in found))
