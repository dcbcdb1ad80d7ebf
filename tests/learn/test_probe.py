from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from slca.learn.batch import pack
from slca.learn.forward import policy_forward
from slca.learn.probe import Answers, Pair, Rows, make_ablation, make_divergence, make_gradients, make_logprob, make_saliency
from slca.learn.sharding import make_mesh, put_batch, row_shards, shardings
from slca.learn.update import accumulate, make_loss, make_score
from slca.policy.transformer import unembed
from slca.types import SUMMARY, TOOL

from .test_batch import find


@pytest.mark.parametrize("packed, temperature", [(True, 0.7), pytest.param(False, 1.0, marks=pytest.mark.nightly)])
def test_logprobs_are_those_of_each_episode_alone(
    config, toy, episodes, credit, packed, temperature
):  # contract 10, P1, P10, P11
    config.train.pack = packed
    config.rollout.temperature = temperature
    (batch,) = pack(episodes, credit, config=config)
    params = toy.params()
    got = np.asarray(make_logprob(*policy_forward(toy.config), config)(params, batch))
    np.testing.assert_array_equal(np.isnan(got), batch.loss_weight == 0)
    alone = jax.jit(toy.hidden)
    for e in (e for e in episodes if e.scored):
        row, mask = find(batch, e.tokens)
        expected = toy.reference_logprob(params, np.pad(e.tokens, (0, 40 - len(e.tokens))), temperature, alone)[: len(e.tokens)]
        sampled = batch.loss_weight[row][mask] > 0
        np.testing.assert_allclose(got[row][mask][sampled], expected[sampled], atol=1e-5)


def test_the_mesh_changes_nothing(config, toy, episodes, credit):
    config.mesh.update(data=2, fsdp=2, tensor=2)
    mesh = make_mesh(config.mesh)
    params = toy.params()
    places = shardings(params, toy.axes, mesh)
    (batch,) = pack(episodes, credit, config=config, data_size=row_shards(mesh))
    there = make_logprob(*policy_forward(toy.config, mesh), config, mesh=mesh, params_at=places)
    got = there(jax.device_put(params, places), put_batch(batch, mesh))
    assert got.sharding.spec == jax.P(("data", "fsdp"))
    config.train.micro_rows = 8
    here = make_logprob(*policy_forward(toy.config), config)(params, batch)
    np.testing.assert_allclose(got, here, atol=1e-5)


def behind(contexts, responses, length):
    """`Rows` of responses behind contexts."""
    tokens, episode = np.zeros((2, len(contexts), length), np.int32)
    for n, (context, response) in enumerate(zip(contexts, responses, strict=True)):
        text = [*context, *response]
        tokens[n, : len(text)], episode[n, : len(text)] = text, 1
    return Rows(jnp.asarray(tokens), jnp.asarray(episode), jnp.asarray([len(c) for c in contexts]))


def tables(toy, params, texts, temperature):
    """[N, 24, V] log-probs of the next token, float64."""
    tokens = np.stack([np.pad(text, (0, 24 - len(text))) for text in texts])
    hidden = jax.jit(toy.hidden)(params, tokens, np.tile(np.arange(24), (len(texts), 1)), np.ones_like(tokens))
    logits = np.asarray(hidden, np.float64) @ np.asarray(toy.unembed(params), np.float64) / temperature
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("mesh", [None, (2, 1, 2)])
def test_divergence_of_a_teacher_with_another_context(config, toy, mesh):  # SC-GRPO, GEAR: teacher || student, whole vocabulary
    config.rollout.temperature = 0.8
    rng = np.random.default_rng(0)
    sizes = [(3, 5, 7), (6, 9, 4), (2, 11, 7), (5, 5, 1)]
    contexts = [(rng.integers(1, 48, a), rng.integers(1, 48, b)) for a, b, _ in sizes]
    responses = [rng.integers(1, 48, n) for *_, n in sizes]
    target = np.zeros((4, 7), np.int32)
    for n, response in enumerate(responses):
        target[n, : len(response)] = response
    pair = Pair(behind([c[0] for c in contexts], responses, 16), behind([c[1] for c in contexts], responses, 24), target)
    params = toy.params()
    made, at = None, None
    if mesh:
        config.mesh.update(dict(zip(("data", "fsdp", "tensor"), mesh, strict=True)))
        made = make_mesh(config.mesh, jax.devices()[:4])
        at = shardings(params, toy.axes, made)
    found = make_divergence(*policy_forward(toy.config, made), config, mesh=made, params_at=at)(params, params, pair)
    students, teachers = (
        tables(toy, params, [[*c[k], *r] for c, r in zip(contexts, responses, strict=True)], 0.8) for k in (0, 1)
    )
    for n, (response, (own, other)) in enumerate(zip(responses, contexts, strict=True)):
        s = students[n, len(own) - 1 :][: len(response)]
        t = teachers[n, len(other) - 1 :][: len(response)]
        at_token = np.arange(len(response)), response
        expected = (np.exp(t) * (t - s)).sum(-1), s[at_token], t[at_token], -(np.exp(s) * s).sum(-1)
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(got[n, : len(response)], want, atol=2e-5)


def test_gradient_norms_of_the_kinds_make_up_the_whole(config, toy, episodes, credit):
    (batch,) = pack(episodes, credit, config=config)
    params = toy.params()
    found = {k: float(v) for k, v in make_gradients(toy.lookup, toy.unembed, config)(params, batch).items()}
    score, loss = make_score(toy.lookup, toy.unembed, config, None, 1.0), make_loss(config)
    whole = optax.tree.norm(jax.jit(lambda p, b: accumulate(score, loss, p, b, 2, None)[0])(params, batch))
    square = found["tool"] ** 2 + found["summary"] ** 2 + 2 * found["cosine"] * found["tool"] * found["summary"]
    assert found["tool"] > 0 and found["summary"] > 0 and square == pytest.approx(float(whole) ** 2, rel=1e-4)
    alone = make_gradients(toy.lookup, toy.unembed, config)(
        params, batch._replace(kind=np.where(batch.kind == SUMMARY, TOOL, batch.kind))
    )
    assert float(alone["summary"]) == float(alone["cosine"]) == 0.0


@pytest.fixture
def two_episodes_in_a_row():
    """Reasoning of episode 2 cannot be seen by the answer, which belongs to episode 1; nor can what comes after it."""
    tokens = np.random.default_rng(0).integers(1, 48, (2, 12))
    episode = np.tile([1] * 7 + [2] * 3 + [0] * 2, (2, 1))
    reasoning = np.zeros((2, 12), bool)
    reasoning[:, [1, 2, 4, 8]] = True
    answer = np.zeros((2, 12), bool)
    answer[:, 5:7] = True
    return Answers(*map(jnp.asarray, (tokens, episode, reasoning, answer)))


def test_saliency_sees_what_the_answer_sees(config, toy, two_episodes_in_a_row):  # OAR-G
    rows = two_episodes_in_a_row
    measure = make_saliency(toy.config, toy.unembed, config)
    found = np.asarray(measure(toy.params(), rows, jax.random.key(0)))
    np.testing.assert_array_equal(np.isnan(found), ~np.asarray(rows.reasoning))
    assert (found[:, 8] == 0).all() and (found[:, [1, 2, 4]] > 0).all()
    again = np.asarray(measure(toy.params(), rows, jax.random.key(0)))
    np.testing.assert_array_equal(found, again)  # the key fixes the draw
    blind = rows._replace(answer=jnp.zeros_like(rows.answer))
    assert (np.nan_to_num(measure(toy.params(), blind, jax.random.key(0))) == 0).all()


def test_saliency_is_that_of_the_noise_and_not_of_rounding(config, toy, two_episodes_in_a_row):
    """A bfloat16 policy has the importances of float32, but for the rounding of its unembedding; computed in bfloat16 they were 40 times as large."""
    rows, params, key = two_episodes_in_a_row, toy.params(), jax.random.key(0)
    narrow = replace(toy.config, dtype="bfloat16", attention="cudnn")
    exact = make_saliency(toy.config, toy.unembed, config)(params, rows, key)
    measure = make_saliency(narrow, lambda p: unembed(p, narrow), config)
    np.testing.assert_allclose(measure(params, rows, key), exact, rtol=0.05)
    with jax.default_matmul_precision("bfloat16"):
        text = str(jax.make_jaxpr(measure)(params, rows, key))
    assert text.count("dot_general[") > 10 and text.count("HIGHEST") >= text.count("dot_general[") and "BF16" not in text


def test_ablation_is_the_divergence_of_the_answer_without_the_token(config, toy, two_episodes_in_a_row):  # OAR-P
    rows, params = two_episodes_in_a_row, toy.params()
    config.train.micro_rows = 1
    found = np.asarray(make_ablation(toy.hidden, toy.unembed, config)(params, rows))
    np.testing.assert_array_equal(np.isnan(found), ~np.asarray(rows.reasoning))
    assert (found[:, 8] == 0).all()

    alone = jax.jit(toy.hidden)

    def answers(episode):
        hidden = alone(params, rows.tokens, np.tile(np.arange(12), (2, 1)), episode)
        return np.asarray(jax.nn.log_softmax(hidden @ toy.unembed(params)), np.float64)[:, 4:6]

    before, after = answers(rows.episode), answers(rows.episode.at[:, 2].set(0))
    np.testing.assert_allclose(found[:, 2], (np.exp(before) * (before - after)).sum(-1).mean(-1), rtol=1e-4)
