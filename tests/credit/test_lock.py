"""The laws down to the logits: what summary rewards may do to gradients at tool tokens (7), and the first step (8)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slca.credit.algorithms import ALGORITHMS, algorithm
from slca.credit.diagnostics import replace_summary
from slca.credit.focus import references
from slca.learn.loss import policy_loss
from slca.learn.terms import make_terms
from slca.types import ABSENT, SUMMARY, TOOL, Batch
from tests.credit.rollouts import anything

N, S, T, V = 8, 3, 12, 7
RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(size=(N, T, V)).astype(np.float32)
TOKENS = RANDOM.integers(0, V, (N, T))
SEGMENT = np.tile(np.repeat(np.arange(1, S + 1), T // S), (N, 1))
PROBED = {name: RANDOM.uniform(size=(N, T)) for name in ("teacher_kl", "entropy", "importance", "gap", "surprisal")}
ROLLOUTS = anything(7, groups=2, size=4, width=S)
OTHER = replace_summary(ROLLOUTS, np.where(np.isnan(ROLLOUTS.rewards["summary"]), np.nan, RANDOM.uniform(size=N)))
KIND = np.take_along_axis(ROLLOUTS.kind, SEGMENT - 1, 1)
SCORED = np.isfinite(ROLLOUTS.rewards["total"])
TRAINED = (KIND != ABSENT) & SCORED[:, None]  # the unscored rollout is not in a real batch either
TOOLS = KIND == TOOL
EVERY = pytest.mark.parametrize("name", [*ALGORITHMS, "slca+llds", "slca+self_conditioned", "slca+search_sapo", "rltr+llds"])

# Not locked by construction, but none of these reads the summary at tool tokens
BLIND = {"signal", "segment_decomposed", "crest"}


def logprob_of(logits):
    return jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(TOKENS)[..., None], -1)[..., 0]


def advantages(record, rollouts):
    """Credit x focus [N, T], the probes' numbers held fixed."""
    credit = np.take_along_axis(record.credit(rollouts), SEGMENT - 1, 1)
    if record.focus is None:
        return credit
    aux = {**PROBED, "sign": np.sign(credit), "reference": references(rollouts.group, rollouts.rewards["solved"], 0)}
    return credit * record.focus(aux, TRAINED)


def gradient(config, rollouts, record, *, on_policy=False, plain=False, noise_seed=1):
    """d loss / d logits [N, T, V], one row an episode; plain: the default loss without terms on the record's credit."""
    loss = config.loss.copy_and_resolve_references()
    loss.unlock()
    loss.update({} if plain else dict(record.loss))
    noise = 0.0 if on_policy else 0.05 * np.random.default_rng(noise_seed).normal(size=(N, T))
    old = jnp.asarray(np.asarray(logprob_of(LOGITS)) + noise, jnp.float32)
    each = 1 / N if loss.policy == "terms" else 1 / (N * T)
    batch = Batch(
        tokens=jnp.asarray(TOKENS), positions=jnp.tile(jnp.arange(T), (N, 1)), episode=jnp.ones((N, T), jnp.int32),
        segment=jnp.asarray(SEGMENT), kind=jnp.asarray(KIND), loss_weight=jnp.asarray(np.where(TRAINED, each, 0), jnp.float32),
        advantage=jnp.asarray(advantages(record, rollouts), jnp.float32), old_logprob=old, ref_logprob=old,
        sampler_logprob=jnp.full((N, T), jnp.nan), group=jnp.asarray(np.repeat(rollouts.group[:, None] + 1, T, 1)),
    )  # fmt: skip
    terms = () if plain else make_terms(record.terms)

    def objective(logits):
        logprob = logprob_of(logits)
        return policy_loss(logprob, batch, loss)[0] + sum(term(logprob, batch)[0] for term in terms)

    return np.asarray(jax.grad(objective)(jnp.asarray(LOGITS)))


@EVERY
def test_law_7_summary_rewards_and_tool_token_gradients(config, name):
    """Bit-identical at tool tokens where the credit is locked; changed under grpo, toolpo and all others that see a total."""
    record = algorithm(name)
    before, after = (gradient(config, r, record) for r in (ROLLOUTS, OTHER))
    assert np.array_equal(before[TOOLS], after[TOOLS]) == (record.locked or name in BLIND)
    assert np.abs(before[TOOLS]).max() > 0
    if record.locked and record.rule is not ALGORITHMS["rltr"].rule:
        assert not np.array_equal(before[KIND == SUMMARY], after[KIND == SUMMARY])


@pytest.mark.parametrize("name", ["slca", "slca_floor", "slca_state", "slca+llds", "slca+self_conditioned", "mix@0"])
def test_law_7_at_segment_level(config, name):
    config.loss.ratio = "segment"
    before, after = (gradient(config, r, algorithm(name)) for r in (ROLLOUTS, OTHER))
    np.testing.assert_array_equal(before[TOOLS], after[TOOLS])


def test_a_sequence_ratio_would_break_the_lock():
    """Why slca refuses it: with one ratio a rollout, differentiated as such, summary credit reaches tool tokens."""

    def sequence_loss(logits, credit):
        ratio = jnp.exp((logprob_of(logits) - logprob_of(LOGITS)).mean(1, keepdims=True))
        return -(ratio * np.take_along_axis(credit, SEGMENT - 1, 1)).mean()

    leaks = [jax.grad(sequence_loss)(jnp.asarray(LOGITS), algorithm("slca").credit(r)) for r in (ROLLOUTS, OTHER)]
    assert np.abs(np.asarray(leaks[0] - leaks[1])[TOOLS]).max() > 1e-3
    with pytest.raises(ValueError, match="breaks the segment lock"):
        algorithm("slca+gspo")


@EVERY
def test_law_8_the_first_step_is_the_plain_policy_gradient(config, name):
    """At the old policy no ratio level, clip, regulariser or reference term moves the gradient; REBEL's is parallel to it."""
    record = algorithm(name)
    found, plain = (gradient(config, ROLLOUTS, record, on_policy=True, plain=p) for p in (False, True))
    if record.whole_groups:  # (4 / N) n / (n - 1) A a rollout of a group of n scored ones, the plain loss A / (N T) a token
        size = np.array([(SCORED & (ROLLOUTS.group == g)).sum() for g in ROLLOUTS.group])
        plain = plain * (4 * T * size / (size - 1))[:, None, None].astype(np.float32)
    np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", ["llds@0", "search_sapo@0"])
def test_law_6_terms_of_weight_zero_are_grpo(config, name):
    np.testing.assert_array_equal(gradient(config, ROLLOUTS, algorithm(name)), gradient(config, ROLLOUTS, algorithm("grpo")))
