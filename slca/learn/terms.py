"""Loss terms that some records of slca.credit.algorithms add to the policy loss, by the names they use.

    terms = make_terms(record.terms)             # e.g. {"llds": {"weight": 0.2}}
    make_update(..., terms=terms)

Each is (logprob, batch) -> (loss, metrics), a sum over `batch.loss_weight` like the policy loss, so that the aggregation mode and
micro-batches mean the same for both. LLDS and SAPO are silent on-policy: they need several updates a rollout batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from slca.learn.loss import Metrics, masked, pair, span_ids, span_sum
from slca.types import Batch

Term = Callable[[Float[Array, "B T"], Batch], tuple[Float[Array, ""], Metrics]]


def llds(weight: float) -> Term:
    """LLDS (2512.04220): weight * mean of max(0, log pi_old - log pi) over tokens with A >= 0 of segments whose likelihood fell.

    The gate (action gate) is the sign of the summed drop over the segment's tokens with A >= 0 and carries no gradient. The mean runs
    over all trained tokens as in the official code; dividing by the active ones would make the term much larger.
    """

    def term(logprob: Float[Array, "B T"], batch: Batch) -> tuple[Float[Array, ""], Metrics]:
        drop, good = _drop(logprob, batch)
        fell = span_sum(lax.stop_gradient(masked(good, drop)), span_ids(batch, "segment")) > 0
        return _weighted(weight, jnp.maximum(drop, 0.0), good & fell, batch, "llds")

    return term


def search_sapo(weight: float, threshold: float) -> Term:
    """Search-agent SAPO (2603.10069): weight * mean of log pi_old - log pi over tokens with A >= 0 whose ratio is <= threshold.

    The paper's mean runs over the tokens of positive rows, here over all trained tokens.
    """

    def term(logprob: Float[Array, "B T"], batch: Batch) -> tuple[Float[Array, ""], Metrics]:
        drop, good = _drop(logprob, batch)
        return _weighted(weight, drop, good & (lax.stop_gradient(drop) >= -math.log(threshold)), batch, "search_sapo")

    return term


def rebel(eta: float) -> Term:
    """REBEL (2404.16767): mean over pairs of a group of ((d - d') - eta (r - r'))^2, d = log pi - log pi_old of the whole rollout.

    With e = d - eta r that mean is 2 Var(e) = 2 / (n - 1) sum (e - mean e)^2, so no pair is ever formed. r - mean r is the rollout's
    credit (token mean of its advantages: the record's credit is centred). The group means are weighted by their rollouts: each rollout
    has weight 1 / N with `loss.aggregation=seq_mean_token_sum`, which the record sets. A lone rollout has no pair and costs 0.
    On-policy d is 0 with a gradient: the first step is centred REINFORCE.
    """

    def term(logprob: Float[Array, "B T"], batch: Batch) -> tuple[Float[Array, ""], Metrics]:
        if batch.group is None:
            raise ValueError("rebel needs Batch.group: pack with groups=True")
        mask = batch.loss_weight > 0
        old = jnp.where(jnp.isnan(batch.old_logprob), lax.stop_gradient(logprob), batch.old_logprob)
        rollout, one = span_ids(batch, "sequence"), mask.astype(jnp.float32)
        tokens = jnp.maximum(span_sum(one, rollout), 1.0)
        d = span_sum(masked(mask, logprob) - masked(mask, old), rollout)
        residual = d - eta * span_sum(masked(mask, batch.advantage), rollout) / tokens
        _, group = jnp.unique(batch.group, return_inverse=True, size=batch.group.size)
        share = masked(mask, 1.0 / tokens)  # a rollout's tokens share its one vote

        def over_group(values: Float[Array, "B T"]) -> Float[Array, "B T"]:
            return jax.ops.segment_sum((share * values).ravel(), group.ravel(), group.size)[group.reshape(values.shape)]

        n = over_group(one)
        centred = residual - over_group(residual) / jnp.maximum(n, 1.0)
        value = masked(mask & (n > 1.5), 2.0 * jnp.square(centred) * n / jnp.maximum(n - 1.0, 1.0))
        found = {"term/rebel": value, "term/rebel_drift": jnp.abs(d)}
        metrics = {name: (lax.stop_gradient(jnp.sum(share * values)), jnp.sum(share)) for name, values in found.items()}
        return jnp.sum(share * masked(mask, batch.loss_weight) * value), metrics

    return term


TERMS: dict[str, Callable[..., Term]] = {"llds": llds, "search_sapo": search_sapo, "rebel": rebel}


def make_terms(named: Mapping[str, Mapping[str, float]]) -> tuple[Term, ...]:
    """The terms of a record. Raises ValueError for an unknown one, naming those there are."""
    unknown = sorted(set(named) - set(TERMS))
    if unknown:
        raise ValueError(f"unknown loss term {', '.join(unknown)}; there are {', '.join(TERMS)}")
    return tuple(TERMS[name](**constants) for name, constants in named.items())


def _drop(logprob: Float[Array, "B T"], batch: Batch) -> tuple[Float[Array, "B T"], Array]:
    """(log pi_old - log pi, trained tokens with A >= 0); 0 where the step is on-policy (old log-prob NaN)."""
    mask = batch.loss_weight > 0
    known = mask & ~jnp.isnan(batch.old_logprob)
    drop = masked(known, batch.old_logprob) - masked(known, logprob)
    return drop, mask & (masked(mask, batch.advantage) >= 0)


def _weighted(weight: float, values: Array, on: Array, batch: Batch, name: str) -> tuple[Float[Array, ""], Metrics]:
    mask = batch.loss_weight > 0
    value = masked(on, values)
    metrics = {f"term/{name}": pair(lax.stop_gradient(value), mask), f"term/{name}_active": pair(on.astype(jnp.float32), mask)}
    return weight * jnp.sum(masked(mask, batch.loss_weight) * value), metrics
