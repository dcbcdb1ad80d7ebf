"""LLDS and SAPO terms against the hand cases of algorithms-related 4.7 and 4.9, and law 8: silent on-policy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slca.credit.algorithms import ALGORITHMS, algorithm
from slca.learn.loss import policy_loss
from slca.learn.terms import llds, make_terms, search_sapo
from slca.types import TOOL, Batch


def batch(old, advantage, segment=None, episode=None, weight=None):
    old = np.atleast_2d(np.asarray(old, np.float32))
    shape, nothing = old.shape, np.full(old.shape, np.nan, np.float32)
    segment = np.ones(shape, int) if segment is None else np.atleast_2d(segment)
    weight = np.full(shape, 1 / old.size) if weight is None else np.atleast_2d(weight)
    return Batch(
        tokens=jnp.zeros(shape, jnp.int32), positions=jnp.tile(jnp.arange(shape[1]), (shape[0], 1)),
        episode=jnp.ones(shape, jnp.int32) if episode is None else jnp.asarray(np.atleast_2d(episode)),
        segment=jnp.asarray(segment), kind=jnp.full(shape, TOOL), loss_weight=jnp.asarray(weight, jnp.float32),
        advantage=jnp.asarray(np.broadcast_to(np.asarray(advantage, np.float32).reshape(shape[0], -1), shape)),
        old_logprob=jnp.asarray(old), ref_logprob=jnp.asarray(nothing), sampler_logprob=jnp.asarray(nothing),
    )  # fmt: skip


def value(term, drop, advantage=1.0, **kw):
    """The term at log pi = 0, old = drop."""
    b = batch(drop, advantage, **kw)
    return float(term(jnp.zeros(b.tokens.shape), b)[0])


@pytest.mark.parametrize(
    "drop, segment, expected",
    [
        ([0.2, -0.5, 0.1], [1, 1, 1], 0.0),  # the likelihood of the action rose in sum
        ([0.2, -0.1, 0.1], [1, 1, 1], 0.2 * 0.1),
        ([0.3, -0.1, -0.5, -0.1], [1, 1, 2, 2], 0.2 * 0.075),  # gated by action; by response it would be 0
        ([0.3, -0.1, -0.5, -0.1], [1, 1, 1, 1], 0.0),
    ],
)
def test_llds_hand_cases(drop, segment, expected):
    assert value(llds(0.2), drop, segment=segment) == pytest.approx(expected, abs=1e-7)
    assert value(llds(0.2), drop, advantage=-1.0, segment=segment) == 0.0


def test_llds_keeps_packed_episodes_apart():
    together = value(llds(1.0), [0.3, -0.1, -0.5, -0.1], segment=[1, 1, 1, 1], episode=[1, 1, 2, 2])
    assert together == pytest.approx(0.075)


def test_sapo_hand_case():
    old = -np.log(np.array([1.0, 0.5, 0.9], np.float32))
    assert value(search_sapo(1.0, 0.8), old) == pytest.approx(np.log(2) / 3, abs=1e-6)
    gradient = jax.grad(lambda logprob: search_sapo(1.0, 0.8)(logprob, batch(old, 1.0))[0])(jnp.zeros((1, 3)))
    np.testing.assert_allclose(gradient, [[0, -1 / 3, 0]], atol=1e-7)
    assert value(search_sapo(1.0, 0.8), old, advantage=-1.0) == 0.0


@pytest.mark.parametrize("name", ["llds", "search_sapo", "slca+llds"])
@pytest.mark.parametrize("known", [True, False])
def test_law_8_silent_at_the_old_policy(config, name, known):
    random = np.random.default_rng(0)
    logprob = jnp.asarray(-random.uniform(0.1, 3, (2, 6)), jnp.float32)
    b = batch(np.asarray(logprob) if known else np.full((2, 6), np.nan), random.normal(size=(2, 6)))
    terms = make_terms(algorithm(name).terms)

    def loss(logprob, terms):
        return policy_loss(logprob, b, config.loss)[0] + sum(term(logprob, b)[0] for term in terms)

    np.testing.assert_array_equal(jax.grad(loss)(logprob, terms), jax.grad(loss)(logprob, ()))


def test_nothing_is_read_where_nothing_is_trained():
    b = batch([0.2, np.inf], 1.0, weight=[0.5, 0.0])._replace(advantage=jnp.asarray([[1.0, np.nan]]))
    for term in (llds(1.0), search_sapo(1.0, 0.9)):
        found, gradient = jax.value_and_grad(lambda logprob, term=term: term(logprob, b)[0])(jnp.asarray([[0.0, np.nan]]))
        assert float(found) == pytest.approx(0.1) and np.isfinite(gradient).all() and gradient[0, 1] == 0


def test_every_term_of_the_table_is_built_or_refused_with_a_reason():
    for record in ALGORITHMS.values():
        if "rebel" in record.terms:
            with pytest.raises(ValueError, match="rebel regresses over whole groups"):
                make_terms(record.terms)
        else:
            assert len(make_terms(record.terms)) == len(record.terms)
