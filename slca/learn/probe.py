"""Passes beside the update: log-probs of old and reference policies, divergence from a teacher, saliency.

All are jitted over micro-batches of `train.micro_rows` rows a device; none holds a [B, T, V] array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from slca.learn.forward import embedded_forward
from slca.learn.logprob import Divergence, chunk_tokens, token_divergence
from slca.learn.sharding import by_rows, replicated, row_shards
from slca.learn.update import Hidden, Term, Unembed, accumulate, constrain, make_loss, make_score, micro_batches
from slca.policy import lora
from slca.policy.config import ModelConfig
from slca.types import SUMMARY, TOOL, Batch

NOISE = 1e-3  # standard deviation of the noise on embeddings (OAR-G)
DRAWS = 4  # noise draws averaged; at one draw the importance is as random as the draw


def make_logprob(
    hidden_fn: Hidden, unembed_fn: Unembed, config: Any, *, mesh: Mesh | None = None, params_at: Any = None
) -> Callable[[Any, Batch], Float[Array, "B T"]]:
    """Jitted (params, batch) -> log-probs [B, T] at the sampling temperature, NaN where nothing is trained.

    Same forward, micro-batches and chunks as the update, so that log-probs of unchanged parameters agree with it.
    Old log-probs are taken once, before the first optimiser step of a rollout batch (contract 10):

        batches = [b._replace(old_logprob=logprob(state.params, b)) for b in batches]
    """
    score = make_score(hidden_fn, unembed_fn, config, mesh, config.rollout.temperature)

    def logprob(params: Any, micro: Batch) -> Float[Array, "B T"]:
        trained = micro.loss_weight > 0
        nothing = jnp.full(trained.shape, jnp.nan, jnp.float32)
        values = lax.cond(jnp.any(trained), lambda: score(params, micro)[0], lambda: nothing)
        return jnp.where(trained, values, jnp.nan)

    return _jit_rows(logprob, config, mesh, (params_at,))


def make_gradients(
    hidden_fn: Hidden,
    unembed_fn: Unembed,
    config: Any,
    *,
    terms: Sequence[Term] = (),
    mesh: Mesh | None = None,
    params_at: Any = None,
) -> Callable[[Any, Batch], dict[str, Array]]:
    """Jitted (params, batch) -> norms of the loss gradient of tool tokens and of summary tokens, and their cosine.

    Two forward and backward passes over the whole mini-batch, each with the other kind's loss weights at 0. The cosine is that of
    algorithms-core 1.14 (the authors find it near 0 for SLCA and GRPO alike); 0 where one of the gradients is 0.
    """
    score, loss = make_score(hidden_fn, unembed_fn, config, mesh, config.rollout.temperature), make_loss(config, terms)
    rows = config.train.micro_rows * row_shards(mesh)

    def gradients(params: Any, batch: Batch) -> dict[str, Array]:
        trained, at = lora.trainable(params), None if params_at is None else lora.trainable(params_at)
        scored = score if trained is params else lambda adapters, micro: score(lora.joined(params, adapters), micro)

        def of(kind: int) -> Any:
            own = batch._replace(loss_weight=jnp.where(batch.kind == kind, batch.loss_weight, 0.0))
            return accumulate(scored, loss, trained, own, rows, mesh, at)[0]

        tool, summary = of(TOOL), of(SUMMARY)
        a, b = optax.tree.norm(tool), optax.tree.norm(summary)
        dot = optax.tree.vdot(tool, summary)
        return {"tool": a, "summary": b, "cosine": jnp.where(a * b > 0, dot / jnp.where(a * b > 0, a * b, 1.0), 0.0)}

    if mesh is None:
        return jax.jit(gradients)
    return jax.jit(gradients, in_shardings=(params_at, by_rows(mesh)), out_shardings=replicated(mesh))


class Rows(NamedTuple):
    """One text a row, right-padded. episode: 1 inside, 0 = padding; start: index of the first token of the response, >= 1."""

    tokens: Int[Array, "B T"]
    episode: Int[Array, "B T"]
    start: Int[Array, "B"]


class Pair(NamedTuple):
    """The same responses [B, K] behind two contexts; the rows of the two differ in length."""

    student: Rows
    teacher: Rows
    response: Int[Array, "B K"]


def make_divergence(
    hidden_fn: Hidden, unembed_fn: Unembed, config: Any, *, mesh: Mesh | None = None, params_at: Any = None
) -> Callable[[Any, Any, Pair], Divergence]:
    """Jitted (student params, teacher params, pair) -> `Divergence` [B, K] of every response token at the sampling temperature.

    Entry k compares what the two say before token k of the response. Nothing has a gradient. Places past a row's end hold
    numbers without meaning.
    """

    def states(params: Any, rows: Rows, width: int) -> Array:
        hidden = constrain(hidden_fn(params, rows.tokens, _positions(rows.tokens), rows.episode), mesh)
        at = rows.start[:, None] - 1 + jnp.arange(width)[None]
        return jnp.take_along_axis(hidden, jnp.minimum(at, rows.tokens.shape[1] - 1)[..., None], 1)

    def divergence(student: Any, teacher: Any, pair: Pair) -> Divergence:
        width = pair.response.shape[1]
        ours, theirs = states(student, pair.student, width), states(teacher, pair.teacher, width)
        matrices = _matrix(unembed_fn(student), mesh), _matrix(unembed_fn(teacher), mesh)
        chunk = _chunk(config, mesh, pair.response.shape[0], matrices[0])
        return token_divergence(ours, theirs, matrices, pair.response, config.rollout.temperature, chunk)

    return _jit_rows(divergence, config, mesh, (params_at, params_at))


class Answers(NamedTuple):
    """One text a row: which tokens are the reasoning whose importance is asked, and which are the answer."""

    tokens: Int[Array, "B T"]
    episode: Int[Array, "B T"]
    reasoning: Bool[Array, "B T"]
    answer: Bool[Array, "B T"]


def make_saliency(
    model: ModelConfig, unembed_fn: Unembed, config: Any, *, mesh: Mesh | None = None, params_at: Any = None
) -> Callable[[Any, Answers, Array], Float[Array, "B T"]]:
    """OAR-G (2601.07408): jitted (params, answers, key) -> importance [B, T] of reasoning tokens, NaN elsewhere.

    J = mean over answer tokens of KL(clean || noisy), the noise N(0, 1e-3) on the embeddings e of the reasoning tokens; importance
    |sum over width of dJ/de e|, averaged over DRAWS. Gradients reach inputs only. At zero noise J has no gradient, so the
    values are first order in the noise; a token that the answer cannot attend to has exactly 0. Computed in float32 with exact products
    whatever `model.dtype`: rounding to bfloat16 is larger than the noise, and the importance would be that of the rounding.
    """
    kernel = "auto" if model.attention == "cudnn" else model.attention  # cudnn computes in bfloat16 alone
    forward = embedded_forward(replace(model, dtype="float32", attention=kernel), mesh)

    def saliency(params: Any, key: Array, rows: Answers) -> Float[Array, "B T"]:
        embeddings = params["embed"][rows.tokens].astype(jnp.float32)
        spread = jnp.where(rows.reasoning, NOISE, 0.0)[..., None]
        compare = _answer_divergence(unembed_fn(params), rows, config, mesh)

        def hidden(e: Array) -> Array:
            return constrain(forward(params, e, _positions(rows.tokens), rows.episode), mesh)

        clean = hidden(embeddings)

        def draw(total: Array, key: Array) -> tuple[Array, None]:
            noisy = embeddings + spread * jax.random.normal(key, embeddings.shape)
            slope = jax.grad(lambda e: jnp.sum(compare(clean, hidden(e))))(noisy)
            return total + jnp.abs(jnp.sum(slope * embeddings, -1)), None

        total, _ = lax.scan(draw, jnp.zeros(rows.tokens.shape), jax.random.split(key, DRAWS))
        return jnp.where(rows.reasoning, total / DRAWS, jnp.nan)

    def exact(params: Any, key: Array, rows: Answers) -> Float[Array, "B T"]:
        with jax.default_matmul_precision("highest"):  # accelerators round the operands of float32 products as well
            return saliency(params, key, rows)

    run = _jit_rows(exact, config, mesh, (params_at, None))
    return lambda params, rows, key: run(params, key, rows)


def make_ablation(
    hidden_fn: Hidden, unembed_fn: Unembed, config: Any, *, mesh: Mesh | None = None, params_at: Any = None
) -> Callable[[Any, Answers], Float[Array, "B T"]]:
    """OAR-P (2601.07408): jitted (params, answers) -> importance [B, T], NaN elsewhere; one forward a column: toy models only.

    Importance of a token: mean over answer tokens of KL(as it was || with the token hidden). The official code writes the pad id
    there and leaves it visible; here attention does not see the place at all.
    """

    def ablation(params: Any, rows: Answers) -> Float[Array, "B T"]:
        compare = _answer_divergence(unembed_fn(params), rows, config, mesh)

        def hidden(episode: Array) -> Array:
            return constrain(hidden_fn(params, rows.tokens, _positions(rows.tokens), episode), mesh)

        clean = hidden(rows.episode)

        def column(t: Array) -> Float[Array, "B"]:
            asked = rows.reasoning[:, t]
            without = rows.episode.at[:, t].set(jnp.where(asked, 0, rows.episode[:, t]))
            values = lax.cond(jnp.any(asked), lambda: compare(clean, hidden(without)), lambda: jnp.zeros(asked.shape))
            return jnp.where(asked, values, jnp.nan)

        return lax.map(column, jnp.arange(rows.tokens.shape[1])).T

    return _jit_rows(ablation, config, mesh, (params_at,))


def _answer_divergence(matrix: Array, rows: Answers, config: Any, mesh: Mesh | None) -> Callable[[Array, Array], Array]:
    """(hidden states before, after) -> [B] mean KL over the row's answer tokens."""
    matrix = _matrix(matrix, mesh)
    chunk = _chunk(config, mesh, rows.tokens.shape[0], matrix)
    weight = rows.answer / jnp.maximum(rows.answer.sum(1, keepdims=True), 1)

    def compare(before: Array, after: Array) -> Float[Array, "B"]:
        kl = token_divergence(
            after[:, :-1], before[:, :-1], (matrix, matrix), rows.tokens[:, 1:], config.rollout.temperature, chunk
        ).kl
        return jnp.sum(weight[:, 1:] * kl, 1)

    return compare


def _positions(tokens: Int[Array, "B T"]) -> Int[Array, "B T"]:
    return jnp.broadcast_to(jnp.arange(tokens.shape[1])[None], tokens.shape)


def _matrix(matrix: Float[Array, "D V"], mesh: Mesh | None) -> Float[Array, "D V"]:
    """The unembedding as the chunks read it: gathered once, split by vocabulary where it divides."""
    if mesh is None:
        return matrix
    return constrain(matrix, mesh, PartitionSpec(None, "tensor" if matrix.shape[1] % mesh.shape["tensor"] == 0 else None))


def _chunk(config: Any, mesh: Mesh | None, rows: int, matrix: Array) -> int:
    """Places of a chunk: two tables of logits must fit into `train.logprob_bytes`."""
    return chunk_tokens(config.train.logprob_bytes // 2, -(-rows // row_shards(mesh)), matrix.shape[1])


def _jit_rows(f: Callable[..., Any], config: Any, mesh: Mesh | None, at: tuple[Any, ...]) -> Callable[..., Any]:
    """Jit f(*others, rows) -> [B, ...] over micro-batches of its last argument; at: placement of the other arguments."""
    size = config.train.micro_rows * row_shards(mesh)

    def run(*args: Any) -> Any:
        *others, rows = args
        _, found = lax.scan(lambda _, micro: (None, f(*others, micro)), None, micro_batches(rows, size, mesh))
        return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), found)

    if mesh is None:
        return jax.jit(run)
    places = tuple(replicated(mesh) if place is None else place for place in at)
    return jax.jit(run, in_shardings=(*places, by_rows(mesh)), out_shardings=by_rows(mesh))
