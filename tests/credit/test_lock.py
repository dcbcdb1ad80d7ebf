"""The lock down to the logits (laws 7 and 8): what summary rewards may and may not do to the gradient at tool tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slca.credit.algorithms import algorithm
from slca.credit.diagnostics import replace_summary
from slca.learn.loss import policy_loss
from slca.types import SUMMARY, TOOL, Batch
from tests.credit.rollouts import made, pairs

N, T, V = 4, 8, 7
RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(size=(N, T, V)).astype(np.float32)
TOKENS = RANDOM.integers(0, V, (N, T))
SEGMENT = np.tile(np.repeat([1, 2], T // 2), (N, 1))
ROLLOUTS = made(pairs(N), tool=[0.9, 0.7, 0.5, 0.3], summary=[0, 0.25, 0.75, 1], total=[0.9, 0.95, 1.25, 1.3])
OTHER = replace_summary(ROLLOUTS, np.array([1.0, 0.0, 0.25, 0.25]))


def logprob_of(logits):
    return jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(TOKENS)[..., None], -1)[..., 0]


def gradient(config, rollouts, name, ratio, on_policy=False):
    """d loss / d logits [N, T, V] with old log-probs some way off, one row an episode, one divisor for all tokens."""
    config.loss.ratio = ratio
    credit = algorithm(name).credit(rollouts)
    noise = 0.0 if on_policy else 0.05 * np.random.default_rng(1).normal(size=(N, T))
    old = np.asarray(logprob_of(LOGITS)) + noise
    nothing = np.full((N, T), np.nan, np.float32)
    batch = Batch(
        tokens=jnp.asarray(TOKENS), positions=jnp.tile(jnp.arange(T), (N, 1)), episode=jnp.ones((N, T), jnp.int32),
        segment=jnp.asarray(SEGMENT), kind=jnp.asarray(np.where(SEGMENT == 1, TOOL, SUMMARY)),
        loss_weight=jnp.full((N, T), 1 / (N * T)), advantage=jnp.asarray(np.take_along_axis(credit, SEGMENT - 1, 1), jnp.float32),
        old_logprob=jnp.asarray(old, jnp.float32), ref_logprob=jnp.asarray(nothing), sampler_logprob=jnp.asarray(nothing),
    )  # fmt: skip
    return np.asarray(jax.grad(lambda logits: policy_loss(logprob_of(logits), batch, config.loss)[0])(jnp.asarray(LOGITS)))


TOOLS = SEGMENT == 1


@pytest.mark.parametrize("ratio", ["token", "segment"])
@pytest.mark.parametrize(
    "name, locked", [("slca", True), ("slca_floor", True), ("rltr", True), ("grpo", False), ("toolpo", False)]
)
def test_law_7_summary_rewards_and_tool_token_gradients(config, name, locked, ratio):
    for rollouts in (ROLLOUTS, OTHER):
        rollouts.rewards["plan"] = ROLLOUTS.rewards["tool"]
        rollouts.rewards["action"] = ROLLOUTS.rewards["tool"]
        rollouts.rewards["success"] = rollouts.rewards["summary"] >= 0.5
    before, after = (gradient(config, r, name, ratio) for r in (ROLLOUTS, OTHER))
    assert np.array_equal(before[TOOLS], after[TOOLS]) == locked
    if name != "rltr":
        assert not np.array_equal(before[~TOOLS], after[~TOOLS])


def test_a_sequence_ratio_would_break_the_lock(config):
    """Why slca refuses it: each token's ratio carries the whole rollout's, so clipping depends on both segments' credit."""
    config.loss.update(clip_low=0.001, clip_high=0.001)
    token = [gradient(config, r, "slca", "token")[TOOLS] for r in (ROLLOUTS, OTHER)]
    np.testing.assert_array_equal(*token)
    config.loss.ratio = "sequence"

    def sequence_loss(logits, credit):  # GSPO's ratio without its token form: one ratio a rollout, differentiated as such
        ratio = jnp.exp((logprob_of(logits) - logprob_of(LOGITS)).mean(1, keepdims=True))
        return -(ratio * np.take_along_axis(credit, SEGMENT - 1, 1)).mean()

    leaks = [jax.grad(sequence_loss)(jnp.asarray(LOGITS), algorithm("slca").credit(r)) for r in (ROLLOUTS, OTHER)]
    assert np.abs(np.asarray(leaks[0] - leaks[1])[TOOLS]).max() > 1e-3
    with pytest.raises(ValueError, match="breaks the segment lock"):
        algorithm("slca+gspo")


def test_law_8_ratio_levels_agree_on_policy(config):
    config.loss.update(clip_low=0.2, clip_high=0.2)
    token, sequence = (gradient(config, ROLLOUTS, "grpo", ratio, on_policy=True) for ratio in ("token", "sequence"))
    np.testing.assert_allclose(token, sequence, rtol=1e-5, atol=1e-8)
