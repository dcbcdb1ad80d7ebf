"""LLDS, SAPO and REBEL terms against the hand cases of algorithms-related 4.7, 4.9 and 4.12, and law 8."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slca.credit.algorithms import ALGORITHMS, algorithm
from slca.learn.loss import policy_loss
from slca.learn.terms import llds, make_terms, rebel, search_sapo
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


def test_every_term_of_the_table_is_built_and_others_are_named():
    for record in ALGORITHMS.values():
        assert len(make_terms(record.terms)) == len(record.terms)
    with pytest.raises(ValueError, match="unknown loss term lld; there are llds, search_sapo, rebel"):
        make_terms({"lld": {}})


def regression(d, reward, group=None, eta=1.0, on_policy=False, tokens=1):
    """(loss, gradient [N] with respect to d) for rollouts, one a row, of `tokens` tokens that share d."""
    d, reward = np.asarray(d, float), np.asarray(reward, float)
    group = np.zeros(len(d), int) if group is None else np.asarray(group)
    mean = np.array([reward[group == g].mean() for g in group])
    old = np.full((len(d), tokens), np.nan if on_policy else -1.0)
    b = batch(old, np.repeat((reward - mean)[:, None], tokens, 1), weight=np.full(old.shape, 1 / len(d)))
    b = b._replace(group=jnp.asarray(np.repeat(group[:, None], tokens, 1) + 1))
    logprob = jnp.asarray(np.repeat(d[:, None] / tokens, tokens, 1) - 1.0, jnp.float32)
    found, gradient = jax.jit(jax.value_and_grad(lambda x: rebel(eta)(x, b)[0]))(logprob)
    return float(found), np.asarray(gradient)


@pytest.mark.parametrize("tokens", [1, 3])
def test_rebel_hand_cases(tokens):
    found, gradient = regression([0.3, -0.1], [1, 0], tokens=tokens)
    assert found == pytest.approx(0.36, abs=1e-6)
    np.testing.assert_allclose(gradient, np.repeat([[-1.2], [1.2]], tokens, 1), atol=1e-5)
    assert regression([0.1, -0.4, 0.9], [0, 0, 0], tokens=tokens)[0] == pytest.approx(0.86, abs=1e-6)  # = 2 Var


def test_law_8_the_first_step_of_rebel_is_along_centred_rewards():
    gradient = regression([0, 0, 0, 0], [1, 0, 0, 1], on_policy=True)[1]
    np.testing.assert_allclose(gradient[:, 0], [-0.6667, 0.6667, 0.6667, -0.6667], atol=1e-4)
    np.testing.assert_allclose(gradient, regression([0, 0, 0, 0], [1, 0, 0, 1])[1], atol=1e-6)


def test_rebel_compares_inside_groups_and_a_lone_rollout_costs_nothing():
    apart = regression([0.3, 5.0, -0.1, 9.0], [1, 3, 0, 3], group=[4, 7, 4, 7])[0]
    assert apart == pytest.approx((0.36 + 16.0) / 2, rel=1e-5)
    found, gradient = regression([0.3, -0.1, 9.0], [1, 0, 4], group=[0, 0, 1])
    assert found == pytest.approx(0.36 * 2 / 3, rel=1e-5) and gradient[2] == 0


def test_rebel_needs_groups_and_stands_alone(config):
    with pytest.raises(ValueError, match="pack with groups=True"):
        rebel(1.0)(jnp.zeros((1, 2)), batch([0.0, 0.0], 1.0))
    config.loss.update(dict(ALGORITHMS["rebel"].loss))
    b = batch([-1.0, -2.0], 3.0)
    assert float(policy_loss(jnp.full((1, 2), -0.5), b, config.loss)[0]) == 0.0
