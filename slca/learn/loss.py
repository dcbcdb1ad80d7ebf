"""Policy losses on packed rows: pure functions of log-probs and a `Batch`, summed with the weights the host has folded.

Every function returns (loss, metrics); metrics are (sum, weight) pairs over trained tokens, so that micro-batches,
devices and processes merge exactly (TRL#6380). Positions with loss_weight 0 are replaced *before* any arithmetic: their
log-probs, references and advantages may be NaN or inf (contract 9; a `where` on the result alone leaves 0 x NaN in the
gradient: SkyRL#1633).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from slca.types import KIND_NAMES, Batch

Pair = tuple[Float[Array, ""], Float[Array, ""]]
Metrics = dict[str, Pair]

MAX_LOG_RATIO = 20.0  # exp() of more is inf for a sampled token the policy has abandoned (prime-rl#2085, verl)


def masked(mask: Bool[Array, "B T"], values: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """`values` where trained, else 0, without a gradient to the others whatever they hold."""
    return jnp.where(mask, values, 0.0)


def pair(values: Float[Array, "B T"], mask: Bool[Array, "B T"]) -> Pair:
    """(sum, weight) of values over the mask."""
    return jnp.sum(masked(mask, values)), jnp.sum(mask.astype(jnp.float32))


def span_ids(batch: Batch, level: str) -> Int[Array, "B T"]:
    """Ids, per row, of the spans that share a ratio: `segment` of an episode, or the whole episode for `sequence`.

    Runs are numbered along the row, so a packed row's episodes never mix; ids are below T.
    """
    key = batch.episode if level == "sequence" else batch.episode * (batch.tokens.shape[1] + 1) + batch.segment
    order = jnp.argsort(key, axis=1, stable=True)  # a segment's tokens may lie on both sides of a tool result
    ordered = jnp.take_along_axis(key, order, axis=1)
    new = jnp.diff(ordered, axis=1, prepend=ordered[:, :1]) != 0
    ids = jnp.cumsum(new.astype(jnp.int32), axis=1)
    return jnp.zeros_like(ids).at[jnp.arange(ids.shape[0])[:, None], order].set(ids)


def span_sum(values: Float[Array, "B T"], ids: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """At every position, the sum of `values` over the positions of its row with the same id."""

    def row(v: Float[Array, " T"], i: Int[Array, " T"]) -> Float[Array, " T"]:
        return jax.ops.segment_sum(v, i, v.shape[0])[i]

    return jax.vmap(row)(values, ids)


def log_ratio(
    logprob: Float[Array, "B T"], old: Float[Array, "B T"], batch: Batch, mask: Bool[Array, "B T"], level: str
) -> Float[Array, "B T"]:
    """log(pi / pi_old) of the ratio each token uses, 0 outside the mask.

    `token`: its own. `segment`, `sequence`: the mean over its span, with GSPO's token form sg[s] * pi / sg[pi]
    (arXiv 2507.18071, eq. 14), whose value is the span's and whose gradient stays with the token.
    """
    delta = masked(mask, logprob) - masked(mask, old)
    if level == "token":
        return delta
    ids = span_ids(batch, level)
    count = span_sum(mask.astype(delta.dtype), ids)
    mean = span_sum(delta, ids) / jnp.maximum(count, 1.0)
    own = masked(mask, logprob)
    return masked(mask, lax.stop_gradient(mean) + own - lax.stop_gradient(own))


def kl_penalty(logprob: Float[Array, "B T"], reference: Float[Array, "B T"], kind: str) -> Float[Array, "B T"]:
    """Estimate of KL(pi || reference) per sampled token, nats (Schulman 2020): k1 = -d, k2 = d^2/2, k3 = e^d - d - 1 with
    d = log reference - log pi, clamped to +-20 as in verl.

    As losses only k2 has the gradient of the reverse KL on-policy. `k1+` and `k3+` have the value of k1 and k3 and the gradient of
    k2 (straight-through, verl).
    """
    d = jnp.clip(reference - logprob, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    value = {"k1": -d, "k2": 0.5 * jnp.square(d), "k3": jnp.expm1(d) - d}
    if kind.endswith("+"):
        return value["k2"] + lax.stop_gradient(value[kind[:-1]] - value["k2"])
    return value[kind]


def sequence_k2(
    logprob: Float[Array, "B T"], reference: Float[Array, "B T"], batch: Batch, mask: Bool[Array, "B T"]
) -> Float[Array, "B T"]:
    """ESPO's KL (2512.03759): 1/2 (sum of log pi - log reference over the rollout's trained tokens)^2 / their number, nats.

    The value stands at each of those tokens, so that a mean over a rollout's tokens (`seq_mean_token_mean`) gives it once.
    """
    d = jnp.clip(masked(mask, logprob) - masked(mask, reference), -MAX_LOG_RATIO, MAX_LOG_RATIO)
    ids = span_ids(batch, "sequence")
    length = jnp.maximum(span_sum(mask.astype(d.dtype), ids), 1.0)
    return masked(mask, 0.5 * jnp.square(span_sum(d, ids)) / length)


def sampler_weight(
    old: Float[Array, "B T"], sampler: Float[Array, "B T"], mask: Bool[Array, "B T"], loss: Any
) -> Float[Array, "B T"]:
    """Importance weight for tokens drawn by a sampler whose log-probs differ from the trainer's, without gradient.

    w = pi_old / pi_sampler per token. `tis` caps it at C = loss.correction_cap; `mis` (IcePop) zeroes it outside [1/C, C].
    A token whose sampler log-prob is missing (NaN) weighs 1.
    """
    known = mask & jnp.isfinite(sampler)
    gap = jnp.where(known, old, 0.0) - jnp.where(known, sampler, 0.0)
    weight = jnp.exp(jnp.clip(gap, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    if loss.correction == "tis":
        weight = jnp.minimum(weight, loss.correction_cap)
    else:
        weight = jnp.where((weight <= loss.correction_cap) & (weight >= 1.0 / loss.correction_cap), weight, 0.0)
    return lax.stop_gradient(weight)


def surrogate(
    log_ratios: Float[Array, "B T"], logprob: Float[Array, "B T"], advantage: Float[Array, "B T"], loss: Any
) -> tuple[Float[Array, "B T"], Bool[Array, "B T"], Bool[Array, "B T"]]:
    """(token loss, clipped from below, clipped from above).

    `clip`: PPO's min(r A, clip(r) A), clip-higher as in DAPO (2503.14476), and for A < 0 the dual clip -c A (1912.09729).
    `cispo` (2506.13585, eq. 4): -sg[min(r, 1 + clip_high)] A log pi; every token keeps a gradient.
    `terms`: 0, the record's loss terms stand alone (REBEL).
    """
    if loss.policy == "terms":
        return jnp.zeros_like(logprob), jnp.zeros_like(logprob, bool), jnp.zeros_like(logprob, bool)
    ratio = jnp.exp(jnp.clip(log_ratios, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    low, high = 1.0 - loss.clip_low, 1.0 + loss.clip_high
    if loss.policy == "cispo":
        capped = lax.stop_gradient(jnp.minimum(ratio, high))
        return -capped * advantage * logprob, jnp.zeros_like(ratio, bool), ratio > high
    below, above = (ratio < low) & (advantage < 0), (ratio > high) & (advantage > 0)
    # A choice and no maximum: at a tie (a bound of exactly 1, on policy) JAX splits the gradient.
    token_loss = -jnp.where(below, low, jnp.where(above, high, ratio)) * advantage
    if loss.dual_clip > 0:
        token_loss = jnp.where(advantage < 0, jnp.minimum(token_loss, -loss.dual_clip * advantage), token_loss)
    return token_loss, below, above


def policy_loss(
    logprob: Float[Array, "B T"], batch: Batch, loss: Any, entropy: Float[Array, "B T"] | None = None
) -> tuple[Float[Array, ""], Metrics]:
    """sum(loss_weight * (surrogate * sampler weight + kl_coef * KL - entropy_coef * entropy)) over trained tokens.

    logprob: of the current policy at the sampling temperature. loss: the config's `loss` section.
    Where `batch.old_logprob` is NaN the step is on-policy: old = stop_gradient(logprob) and the ratio is exactly 1 (contract 10).
    A NaN `ref_logprob` at a trained token makes the loss NaN when `kl_coef` > 0: a missing reference is never 0.
    """
    mask = batch.loss_weight > 0
    weight, advantage = masked(mask, batch.loss_weight), masked(mask, batch.advantage)
    new = masked(mask, logprob)
    old = masked(mask, jnp.where(jnp.isnan(batch.old_logprob), lax.stop_gradient(logprob), batch.old_logprob))
    log_ratios = log_ratio(new, old, batch, mask, loss.ratio)
    token_loss, below, above = surrogate(log_ratios, new, advantage, loss)
    metrics: Metrics = {}
    if loss.correction != "none":
        correction = sampler_weight(old, batch.sampler_logprob, mask, loss)
        token_loss = token_loss * correction
        metrics["correction"] = pair(correction, mask)
    if loss.kl_coef > 0:
        reference = masked(mask, batch.ref_logprob)
        whole = loss.kl == "k2_sequence"
        divergence = sequence_k2(new, reference, batch, mask) if whole else kl_penalty(new, reference, loss.kl)
        token_loss = token_loss + loss.kl_coef * divergence
        metrics["kl/reference"] = pair(divergence, mask)
    if entropy is not None:
        metrics["entropy"] = pair(entropy, mask)
        if loss.entropy_coef > 0:
            token_loss = token_loss - loss.entropy_coef * masked(mask, entropy)
    metrics |= _ratio_metrics(log_ratios, new - old, below, above, mask)
    metrics |= _token_metrics(new, old, advantage, batch, mask)
    return jnp.sum(weight * masked(mask, token_loss)), metrics


def _ratio_metrics(log_ratios: Array, delta: Array, below: Array, above: Array, mask: Array) -> Metrics:
    ratio = jnp.exp(jnp.clip(log_ratios, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    outside = (ratio < 0.9) | (ratio > 1.1)
    return {
        "ratio": pair(ratio, mask),
        "ratio_outside_10pc": pair(outside.astype(jnp.float32), mask),
        "clip_low": pair(below.astype(jnp.float32), mask),
        "clip_high": pair(above.astype(jnp.float32), mask),
        "kl/old": pair(jnp.expm1(jnp.clip(delta, -MAX_LOG_RATIO, MAX_LOG_RATIO)) - delta, mask),
    }


def _token_metrics(new: Array, old: Array, advantage: Array, batch: Batch, mask: Array) -> Metrics:
    known = mask & jnp.isfinite(batch.sampler_logprob)
    gap = jnp.abs(jnp.where(known, old, 0.0) - jnp.where(known, batch.sampler_logprob, 0.0))
    metrics = {"logprob": pair(new, mask), "sampler_gap": pair(gap, known)}
    for kind, name in enumerate(KIND_NAMES):
        inside = mask & (batch.kind == kind)
        metrics[f"advantage/{name}"] = pair(advantage, inside)
        metrics[f"advantage_abs/{name}"] = pair(jnp.abs(advantage), inside)
        metrics[f"sampler_gap/{name}"] = pair(gap, known & inside)
    return {name: (lax.stop_gradient(value), count) for name, (value, count) in metrics.items()}


def sft_loss(
    logprob: Float[Array, "B T"], batch: Batch, entropy: Float[Array, "B T"] | None = None
) -> tuple[Float[Array, ""], Metrics]:
    """Negative log-likelihood, nats: sum(loss_weight * -logprob), the mean over the batch's learnt tokens (see pack_sft)."""
    mask = batch.loss_weight > 0
    metrics = {"logprob": pair(lax.stop_gradient(logprob), mask)}
    if entropy is not None:
        metrics["entropy"] = pair(lax.stop_gradient(entropy), mask)
    return -jnp.sum(masked(mask, batch.loss_weight) * masked(mask, logprob)), metrics
