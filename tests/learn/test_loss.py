import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slca.credit.algorithms import ALGORITHMS
from slca.learn.loss import kl_penalty, policy_loss, sft_loss
from slca.types import ABSENT, SUMMARY, TOOL, Batch

T = 10  # every row is padded to this, so that all tests share their compiled operations


def wide(x, fill):
    """[T] or [B, T'] values padded on the right to [B, T]."""
    x = np.atleast_2d(np.asarray(x))
    return np.pad(x, ((0, 0), (0, T - x.shape[1])), constant_values=fill)


def batch_of(advantage, *, weight=None, old=None, ref=None, sampler=None, segment=None, episode=None):
    """A [B, T] batch around the given advantages; weight 1 up to their length unless told."""
    length = np.atleast_2d(advantage).shape[1]
    advantage = jnp.asarray(wide(advantage, np.nan), jnp.float32)
    shape = advantage.shape
    weight = np.ones((1, length)) if weight is None else weight

    def values(x, default):
        return jnp.broadcast_to(
            jnp.asarray(wide(np.full((1, length), default) if x is None else x, default), jnp.float32), shape
        )

    def ids(x):
        return jnp.broadcast_to(jnp.asarray(wide(np.ones((1, length), np.int32) if x is None else x, 0)), shape)

    segment = ids(segment)
    return Batch(
        tokens=jnp.zeros(shape, jnp.int32),
        positions=jnp.zeros(shape, jnp.int32),
        episode=ids(episode),
        segment=segment,
        kind=jnp.where(segment == 1, TOOL, jnp.where(segment > 1, SUMMARY, ABSENT)),
        loss_weight=values(weight, 0.0),
        advantage=advantage,
        old_logprob=values(old, jnp.nan),
        ref_logprob=values(ref, jnp.nan),
        sampler_logprob=values(sampler, jnp.nan),
    )


def run(logprob, batch, loss, entropy=None):
    """Loss, gradient with respect to the log-probs, metrics."""
    length = np.atleast_2d(logprob).shape[1]
    logprob, entropy = (None if x is None else jnp.asarray(wide(x, np.nan), jnp.float32) for x in (logprob, entropy))
    (value, metrics), gradient = jax.value_and_grad(lambda x: policy_loss(x, batch, loss, entropy), has_aux=True)(logprob)
    gradient = np.asarray(gradient)
    assert not gradient[:, length:].any()
    gradient = gradient[:, :length]
    return float(value), gradient, {k: (float(s), float(w)) for k, (s, w) in metrics.items()}


@pytest.fixture
def loss(config):
    config.loss.dual_clip = 0.0
    return config.loss


def test_on_policy_ratio_is_exactly_one(loss):  # contract 10, P4
    value, gradient, metrics = run([-0.1234567, -2.7], batch_of([2.0, -1.0]), loss)
    assert value == -1.0
    np.testing.assert_array_equal(gradient, [[-2.0, 1.0]])
    assert metrics["ratio"] == (2.0, 2.0) and metrics["kl/old"] == (0.0, 2.0)


@pytest.mark.parametrize("low", [0.0, 0.2])
@pytest.mark.parametrize("high", [0.0, 0.2])
def test_on_policy_gradient_is_whole_at_a_bound_of_one(loss, low, high):
    """At a ratio of exactly 1 nothing is beyond a bound, so d(-r A) = -A; a maximum would split the gradient at the tie."""
    loss.update(clip_low=low, clip_high=high)
    _, gradient, metrics = run([-0.3, -2.7], batch_of([2.0, -1.0]), loss)
    np.testing.assert_array_equal(gradient, [[-2.0, 1.0]])
    assert metrics["clip_high"] == metrics["clip_low"] == (0.0, 2.0)


@pytest.mark.parametrize("level", ["segment", "sequence"])
def test_on_policy_gradient_is_the_token_gradient_at_every_level(loss, level):  # law 8 of the algorithm notes
    loss.ratio = level
    batch = batch_of([2.0, -1.0, 0.5], segment=[1, 1, 2])
    value, gradient, metrics = run([-0.3, -2.7, -1.0], batch, loss)
    assert value == -1.5 and metrics["ratio"] == (3.0, 3.0)
    np.testing.assert_array_equal(gradient, [[-2.0, 1.0, -0.5]])


def test_clipping_by_hand(loss):
    loss.update(clip_low=0.2, clip_high=0.3)
    ratio = np.array([1.5, 1.5, 0.5, 0.5, 1.1])
    batch = batch_of([1.0, -1.0, 1.0, -1.0, 2.0], old=np.zeros(5))
    value, gradient, metrics = run(np.log(ratio), batch, loss)
    # min(r A, clip(r) A): 1.3, -1.5, 0.5, -0.8, 2.2
    assert value == pytest.approx(-(1.3 - 1.5 + 0.5 - 0.8 + 2.2), rel=1e-6)
    np.testing.assert_allclose(gradient, [[0, 1.5, -0.5, 0, -2.2]], rtol=1e-6)
    assert metrics["clip_high"] == (1.0, 5.0) and metrics["clip_low"] == (1.0, 5.0)
    assert metrics["ratio"][0] == pytest.approx(5.1)
    assert metrics["ratio_outside_10pc"] == (4.0, 5.0)


def test_dual_clip_bounds_what_a_bad_token_can_cost(loss):
    loss.dual_clip = 3.0
    value, gradient, _ = run(np.log([5.0, 2.0]), batch_of([-1.0, -1.0], old=[0.0, 0.0]), loss)
    assert value == pytest.approx(3.0 + 2.0)
    np.testing.assert_allclose(gradient, [[0, 2.0]], rtol=1e-6)


def test_cispo_keeps_every_gradient(loss):
    loss.update(policy="cispo", clip_high=1.0)
    _, gradient, metrics = run(np.log([5.0, 1.5]), batch_of([2.0, -1.0], old=[0.0, 0.0]), loss)
    np.testing.assert_allclose(gradient, [[-2.0 * 2, 1.5]], rtol=1e-6)
    assert metrics["clip_high"] == (1.0, 2.0)


def test_sequence_ratio_by_hand(loss):
    """log-ratios .1 .2 -.3 .4, A = 1: exp(.1); by segments (1, 1, 2, 2): .15 and .05; by token: -1.0615 a token."""
    delta, old = np.array([0.1, 0.2, -0.3, 0.4]), np.full(4, -1.0)
    batch = batch_of(np.ones(4), old=old, weight=np.full(4, 0.25), segment=[1, 1, 2, 2])
    loss.ratio = "sequence"
    value, gradient, _ = run(old + delta, batch, loss)
    assert value == pytest.approx(-np.exp(0.1), rel=1e-6)
    np.testing.assert_allclose(gradient, np.full((1, 4), -np.exp(0.1) / 4), rtol=1e-6)  # = s * mean of grad log pi
    loss.ratio = "segment"
    assert run(old + delta, batch, loss)[0] == pytest.approx(-(np.exp(0.15) + np.exp(0.05)) / 2, rel=1e-6)
    loss.ratio = "token"
    assert run(old + delta, batch, loss)[0] == pytest.approx(-1.0615, abs=1e-4)


def test_spans_of_packed_rows_do_not_mix(loss):
    """Two episodes in one row, each with segments around a tool result, against one row each."""
    rng = np.random.default_rng(0)
    delta, advantage = rng.normal(size=10) * 0.1, rng.normal(size=10)
    weight = np.array([0, 1, 1, 0, 1, 0, 1, 0, 1, 1.0])
    segment = np.array([0, 1, 1, 0, 2, 0, 1, 0, 1, 2])
    one = batch_of(advantage, old=np.zeros(10), weight=weight, segment=segment, episode=[1] * 5 + [2] * 5)
    halves = [dict(weight=weight[h], segment=segment[h], old=np.zeros(5)) for h in (slice(5), slice(5, 10))]
    for level in ("segment", "sequence"):
        loss.ratio = level
        value, gradient, _ = run(delta, one, loss)
        cut = [batch_of(a, **half) for a, half in zip(np.split(advantage, 2), halves, strict=True)]
        parts = [run(d, part, loss) for d, part in zip(np.split(delta, 2), cut, strict=True)]
        assert value == pytest.approx(sum(p[0] for p in parts), rel=1e-6)
        np.testing.assert_allclose(gradient[0], np.concatenate([p[1][0] for p in parts]), rtol=1e-6)


def test_kl_estimators_by_hand():
    new, ref = jnp.asarray([[-1.0]]), jnp.asarray([[-1.5]])
    for kind, expected in (("k1", 0.5), ("k2", 0.125), ("k3", np.exp(-0.5) + 0.5 - 1)):
        assert float(kl_penalty(new, ref, kind)[0, 0]) == pytest.approx(expected, rel=1e-6)


def test_straight_through_has_the_value_of_one_and_the_gradient_of_k2():
    new, ref = jnp.asarray([[-1.0]]), jnp.asarray([[-1.5]])
    for kind in ("k1", "k3"):
        value, gradient = jax.value_and_grad(lambda x, kind=kind: kl_penalty(x, ref, kind + "+")[0, 0])(new)
        assert float(value) == pytest.approx(float(kl_penalty(new, ref, kind)[0, 0]), rel=1e-6)
        assert float(gradient[0, 0]) == pytest.approx(0.5)  # -d, the reverse KL's on-policy


@pytest.fixture
def espo(loss):
    """ESPO's loss as its record sets it, without advantage: the KL alone."""
    loss.update(ALGORITHMS["espo"].loss)
    loss.kl_coef = 1.0
    return loss


def test_k2_of_espo_by_hand(espo):
    """Log-ratios .1 .2 -.3 .4 to the reference: .4^2 / 2 / 4 = .02 (token by token it would be .0375); gradient .4 / 4 a token / 4."""
    delta, ref = np.array([0.1, 0.2, -0.3, 0.4]), np.full(4, -1.0)
    batch = batch_of(np.zeros(4), ref=ref, weight=np.full(4, 0.25), segment=[1, 1, 2, 2])
    value, gradient, metrics = run(ref + delta, batch, espo)
    assert value == pytest.approx(0.02, rel=1e-5) and metrics["kl/reference"] == pytest.approx((0.08, 4.0), rel=1e-5)
    np.testing.assert_allclose(gradient, np.full((1, 4), 0.4 / 4), rtol=1e-5)


def test_k2_of_espo_has_one_vote_a_rollout_also_in_a_packed_row(espo):
    """Rollouts of 4 and 1 tokens with log-ratios .1 .2 -.3 .4 and .2: (.02 + .02) / 2, gradients .1 / 2 and .2 / 2; 0 between them."""
    weight = np.array([1 / 8, 1 / 8, 1 / 8, 1 / 8, 0, 1 / 2])
    delta, ref = np.array([0.1, 0.2, -0.3, 0.4, np.nan, 0.2]), np.array([-1.0, -1, -1, -1, np.nan, -1])
    batch = batch_of(np.zeros(6), ref=ref, weight=weight, segment=[1, 1, 2, 2, 0, 1], episode=[1, 1, 1, 1, 2, 2])
    value, gradient, _ = run(ref + delta, batch, espo)
    assert value == pytest.approx(0.02, rel=1e-5)
    np.testing.assert_allclose(gradient, [[0.05, 0.05, 0.05, 0.05, 0, 0.1]], rtol=1e-5)


def test_the_record_of_espo_weighs_rollouts_alike(espo):
    assert (espo.ratio, espo.aggregation) == ("sequence", "seq_mean_token_mean")


def test_kl_has_a_gradient(loss):  # M12
    batch = batch_of([0.0, 0.0], ref=[-1.5, -1.0])
    assert not run([-1.0, -1.0], batch, loss)[1].any()
    loss.kl_coef = 0.1
    value, gradient, metrics = run([-1.0, -1.0], batch, loss)
    np.testing.assert_allclose(gradient, [[0.1 * (1 - np.exp(-0.5)), 0]], rtol=1e-5)
    assert value == pytest.approx(0.1 * metrics["kl/reference"][0])


def test_a_missing_reference_is_not_zero(loss):  # P17
    loss.kl_coef = 0.1
    assert np.isnan(run([-1.0], batch_of([1.0]), loss)[0])


def test_entropy_bonus(loss):
    loss.entropy_coef = 0.5
    value, _, metrics = run([-1.0, -1.0], batch_of([0.0, 0.0], weight=[1, 0]), loss, [2.0, np.nan])
    assert value == -1.0 and metrics["entropy"] == (2.0, 1.0)


@pytest.mark.parametrize("mode, expected", [("tis", [2.0, 1.5, 0.25, 1.0]), ("mis", [0.0, 1.5, 0.0, 1.0])])
def test_sampler_correction_by_hand(loss, mode, expected):
    loss.update(correction=mode, correction_cap=2.0)
    weights = np.array([3.0, 1.5, 0.25, np.nan])  # the last sampler log-prob is missing
    old = np.full(4, -1.0)
    batch = batch_of([1.0, -1.0, 1.0, 1.0], old=old, sampler=old - np.log(weights))
    _, gradient, metrics = run(old, batch, loss)
    np.testing.assert_allclose(gradient, -np.array([1, -1, 1, 1]) * [expected], rtol=1e-5)
    assert metrics["correction"] == pytest.approx((sum(expected), 4.0), rel=1e-5)
    assert metrics["sampler_gap"] == pytest.approx((np.log(3) + np.log(1.5) + np.log(4), 3.0), rel=1e-5)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "changes",
    [{}, {"ratio": "segment"}, {"ratio": "sequence", "kl": "k2_sequence"}, {"ratio": "sequence"}, {"policy": "cispo"}],
)
def test_masked_positions_may_hold_anything(loss, poison, changes):  # contract 9, M5
    loss.update(kl_coef=0.1, entropy_coef=0.1, correction="tis", dual_clip=3.0, **changes)
    rng = np.random.default_rng(0)
    mask = np.array([0, 1, 1, 0, 1, 0])
    clean = [np.where(mask, rng.normal(size=6), 0) for _ in range(6)]
    dirty = [np.where(mask, x, poison) for x in clean]

    def all_of(values):
        logprob, old, ref, sampler, advantage, entropy = values
        batch = batch_of(advantage, old=old, ref=ref, sampler=sampler, weight=mask * 0.3, segment=[0, 1, 1, 0, 2, 0])
        return run(logprob, batch, loss, entropy)

    (a, ga, ma), (b, gb, mb) = all_of(clean), all_of(dirty)
    assert a == b and ma == mb
    np.testing.assert_array_equal(ga, gb)
    assert np.isfinite(ga).all() and not gb[0][mask == 0].any()


def test_nothing_trained_says_nothing(loss):  # M6
    value, gradient, metrics = run([-1.0, -2.0], batch_of([1.0, 1.0], weight=[0, 0]), loss)
    assert value == 0 and not gradient.any() and all(pair == (0.0, 0.0) for pair in metrics.values())


def test_an_abandoned_token_does_not_overflow(loss):  # prime-rl#2085
    loss.kl_coef = 0.1
    value, gradient, _ = run([-200.0, 0.0], batch_of([1.0, 1.0], old=[0.0, -200.0], ref=[0.0, -200.0]), loss)
    assert np.isfinite(value) and np.isfinite(gradient).all()


def test_advantages_are_reported_by_kind(loss):
    metrics = run([-1.0] * 3, batch_of([1.0, -3.0, 5.0], segment=[1, 1, 2]), loss)[2]
    assert metrics["advantage/tool"] == (-2.0, 2.0) and metrics["advantage_abs/tool"] == (4.0, 2.0)
    assert metrics["advantage/summary"] == (5.0, 1.0)


def test_metrics_of_parts_add_up(loss):  # M9
    rng = np.random.default_rng(0)
    delta, advantage = rng.normal(size=(4, 5)), rng.normal(size=(4, 5))
    weight = rng.random((4, 5)) * (rng.random((4, 5)) < 0.7)
    whole = batch_of(advantage, old=np.zeros((4, 5)), weight=weight)
    value, _, metrics = run(delta, whole, loss)
    parts = [run(delta[r], jax.tree.map(lambda x, r=r: x[r : r + 1], whole), loss) for r in range(4)]
    assert value == pytest.approx(sum(p[0] for p in parts), rel=1e-5)
    for name, pair in metrics.items():
        assert pair == pytest.approx(tuple(np.sum([p[2][name] for p in parts], 0)), rel=1e-5)


def test_sft_loss_is_the_weighted_likelihood():
    batch = batch_of([1.0, 1.0, 1.0], weight=[0, 0.25, 0.75])
    logprob = jnp.asarray(wide([np.nan, -1.0, -2.0], np.nan))
    (value, metrics), gradient = jax.value_and_grad(lambda x: sft_loss(x, batch), has_aux=True)(logprob)
    assert float(value) == 1.75
    np.testing.assert_array_equal(gradient, wide([0, -0.25, -0.75], 0))
    assert tuple(map(float, metrics["logprob"])) == (-3.0, 2.0)
