"""The gap of every token against a plain forward pass of its own row, and its summary by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import tiny
from slca.assemble import assemble, initial_params
from slca.drift import drift_metrics, make_drift
from slca.learn.probe import make_logprob
from slca.rollout.engine import rollout
from slca.tasks.datasets import stream
from slca.types import POLICY


@pytest.fixture(scope="module")
def made():
    """(config, parts, parameters, episodes) of a tiny random policy on one device."""
    c = tiny.get_config()
    c.model.update(width=32, layers=1, heads=2, kv_heads=1, head_dim=16, ff=64)
    c.tasks.domains = ("weather",)
    c.train.update(micro_rows=2, row_lengths=(512,))
    c.rollout.update(prompts=2, group=2, max_turn_tokens=16, max_response_tokens=48, slots=8)
    original, jax.device_count = jax.device_count, lambda *_: 1
    parts = assemble(c)
    jax.device_count = original
    params = initial_params(c, parts)
    tasks = stream(c.tasks, "train", 0).next(2)
    episodes = rollout(params, tasks, parts.sampler, parts.template, parts.simulator, c, seed=0, step=0)
    return c, parts, params, episodes


def score(config, parts):
    return make_logprob(parts.hidden, parts.unembed, config)


def test_sampler_and_trainer_agree_on_the_parameters_that_sampled(made):  # contract 10
    config, parts, params, episodes = made
    drift = make_drift(config, parts, score(config, parts))
    for gap, episode in zip(drift(params, episodes), episodes, strict=True):
        own = episode.writer == POLICY
        assert np.isfinite(gap[own]).all() and np.isnan(gap[~own]).all() and own.any()
        assert np.abs(gap[own]).max() < 1e-4


def test_other_parameters_give_the_gap_of_a_plain_forward_pass(made):
    config, parts, params, episodes = made
    other = jax.tree.map(lambda x: x * 1.1, params)
    episodes[1].end = "sim_failed"  # unscored: nothing of it is trained
    gaps = make_drift(config, parts, score(config, parts))(other, episodes)
    assert np.isnan(gaps[1]).all() and len(gaps[1]) == len(episodes[1].tokens)
    for episode, gap in [(episodes[0], gaps[0]), (episodes[3], gaps[3])]:
        tokens = jnp.asarray(episode.tokens)[None]
        hidden = parts.hidden(other, tokens, jnp.arange(tokens.shape[1])[None], jnp.ones_like(tokens))
        logits = np.asarray(hidden @ parts.unembed(other), np.float64)[0]
        logprob = (
            logits
            - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
            - logits.max(-1, keepdims=True)
        )
        for t in np.flatnonzero(episode.writer == POLICY):
            assert gap[t] == pytest.approx(logprob[t - 1, episode.tokens[t]] - episode.logprob[t], abs=1e-4)
    assert np.nanmax(np.abs(gaps[0])) > 1e-3


def test_the_summary_of_gaps():
    found = drift_metrics([np.array([np.nan, np.log(2.0), 0.0]), np.array([np.nan])])
    assert found["sampler_gap_max"] == pytest.approx((np.log(2.0), 1.0)) and found["ratio_sampler_max"] == pytest.approx(
        (2.0, 1.0)
    )
    assert found["ess"] == pytest.approx((2 * 9 / (2 * 5), 2.0))  # (2 + 1)^2 / (2 (4 + 1)) = 0.9 of two tokens
    assert drift_metrics([]) == drift_metrics([np.array([np.nan])]) == {}
