"""Rows held to a grammar, beside rows that are free."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slca.chat.tokenizer import load
from slca.policy import transformer
from slca.policy.config import ModelConfig
from slca.rollout import constraint, programs
from slca.rollout.sampler import BUDGET, STOP, Sampler, row_keys
from slca.rollout.scheduler import DEAD_END, Scheduler
from tests.policy.models import FAMILIES, params, row_logits

CONFIG, PARAMS = FAMILIES["qwen3"], params("qwen3")


SMALL = dict(slots=4, cache_length=48, prompt_buckets=(8,), suffix_buckets=(4,), decode_steps=6, constrained=True)


@pytest.fixture(scope="module")
def constrained():
    return Sampler(CONFIG, **SMALL)


class Cycle:
    """Allows ids in turn: `choices[0]`, then `choices[1]`, ...; finished after the last."""

    def __init__(self, *choices):
        self.choices, self.taken = choices, []

    def mask(self):
        bits = np.zeros(64, np.int64)
        bits[list(self.choices[len(self.taken)])] = 1
        return (bits.reshape(2, 32) << np.arange(32)).sum(1).astype(np.uint32).view(np.int32)

    def advance(self, token):
        assert not self.stopped() and token in self.choices[len(self.taken)]
        self.taken.append(token)

    def stopped(self):
        return len(self.taken) == len(self.choices)


def rows_of(sampler, asked):
    """Submit (prompt, options) pairs together and step until all are over."""
    scheduler = Scheduler(sampler, PARAMS, seed=1, step=2, temperature=1.0, stop_ids=(3,))
    rows = [scheduler.submit(ids, prompt_key=i, sample=0, **{"budget": 20} | options) for i, (ids, options) in enumerate(asked)]
    while scheduler.busy:
        for row in scheduler.step():
            scheduler.cancel(row)
    return rows


def test_masked_tokens_never_appear_and_greedy_is_the_best_allowed(constrained):
    """Each token of a greedy row is the best allowed one of a plain forward, its log-prob that of the renormalised rest."""
    rng = np.random.default_rng(0)
    choices = [sorted({int(i) for i in rng.integers(4, 61, 1 + 2 * n)}) for n in range(8)]
    sampled, greedy = (
        rows_of(constrained, [([5, 6, 7], dict(constraint=Cycle(*choices), temperature=t))])[0] for t in (1.0, 0.0)
    )
    for row in (sampled, greedy):
        assert row.reason == STOP and row.tokens == row.constraint.taken and len(row.tokens) == 8
        for n, allowed in enumerate(choices):
            assert row.tokens[n] in allowed
            scores = np.asarray(row_logits(CONFIG, PARAMS, [5, 6, 7, *row.tokens[:n]]))[-1][allowed]
            expected = scores - np.log(np.exp(scores).sum())
            assert row.logprob[n] == pytest.approx(expected[allowed.index(row.tokens[n])], abs=1e-4)
            if row is greedy:
                assert row.tokens[n] == allowed[int(scores.argmax())]
    assert sampled.logprob[0] == greedy.logprob[0] == 0.0  # one token allowed: certain


def test_contract_11_rows_beside_constrained_ones_are_what_they_are_alone(constrained):
    """Free rows: bit-equal tokens; constrained rows: as well. Nothing beyond the printed programs is compiled."""
    asked = [
        ([5, 6, 7], {}),
        ([9], dict(constraint=Cycle(*[range(4, 30)] * 11))),
        ([9], dict(temperature=0.5, seed=7)),
        ([30, 31], dict(constraint=Cycle(*[range(40, 61)] * 4), budget=3)),
        ([5, 6, 7], dict(budget=2)),
        ([11] * 8, dict(constraint=Cycle(*[range(61)] * 15), temperature=0.7)),
    ]
    together = rows_of(constrained, asked)
    assert [len(row.tokens) for row in together[1:5:2]] == [11, 3] and together[3].reason == BUDGET
    for i, (ids, options) in enumerate(asked):
        if "constraint" in options:
            options = options | {"constraint": Cycle(*options["constraint"].choices)}
        alone = rows_of(constrained, [([20], dict(budget=0))] * i + [(ids, options)])[i]  # same prompt_key
        assert alone.tokens == together[i].tokens and alone.reason == together[i].reason
        np.testing.assert_allclose(alone.logprob, together[i].logprob, atol=1e-5)
    assert constrained.compiles() <= len(constrained.programs)
    assert ("decode_masked", (4, 1)) in constrained.programs


def test_seed_and_temperature_are_a_rows_own(constrained):
    base, other, greedy = rows_of(constrained, [([5, 6, 7], options) for options in ({}, dict(seed=2), dict(temperature=0.0))])
    assert base.tokens != other.tokens and base.tokens != greedy.tokens
    best, row = [], [5, 6, 7]
    while len(best) < 20 and (not best or best[-1] != 3):
        best.append(int(np.asarray(row_logits(CONFIG, PARAMS, row + best))[-1].argmax()))
    assert greedy.tokens == best
    one, two = (rows_of(constrained, [([5, 6, 7], options)])[0] for options in ({}, dict(seed=1)))
    assert one.tokens == two.tokens == base.tokens


def test_constraints_that_leave_nothing_end_their_row_alone(constrained):
    dead, done, free = rows_of(
        constrained, [([5], dict(constraint=Cycle([4], []))), ([5], dict(constraint=Cycle())), ([9], {})]
    )
    assert (dead.tokens, dead.reason) == ([4], DEAD_END) and (done.tokens, done.reason) == ([], STOP)
    assert free.tokens


def test_masks_are_checked_before_a_device_is_touched(constrained):
    """Bit v % 32 of word v // 32; missing words of a smaller tokenizer and bits beyond the vocabulary allow nothing."""
    np.testing.assert_array_equal(constraint.fitted(np.array([-1, -1, 5]), 61), [-1, (1 << 29) - 1])
    np.testing.assert_array_equal(constraint.fitted(np.array([9]), 64), [9, 0])
    bits = np.zeros((2, 2), np.int32)
    bits[0, 0], bits[1, 1] = -(2**31) | 1, 1 << 28
    allowed = np.isfinite(programs.masked(jnp.zeros((2, 61)), jnp.asarray(bits)))
    assert [np.flatnonzero(row).tolist() for row in allowed] == [[0, 31], [60]]
    call = dict(keys=row_keys(0, 0, *np.zeros((3, 4), int)), temperature=1.0, stop_ids=(), budgets=[1, 0, 0, 1])
    beyond = np.array([[1, 0], [0, 0], [0, 0], [0, 1 << 30]])
    for masks, message in ((np.ones((4, 3)), r"shape \(4, 3\), want \(4, 2\)"), (beyond, r"rows \[3\] allow no token")):
        with pytest.raises(ValueError, match=message):
            constrained.decode(PARAMS, None, allowed=masks, **call)
    free = Sampler(CONFIG, **SMALL | dict(constrained=False))
    assert not any(name == "decode_masked" for name, _ in free.programs)
    with pytest.raises(ValueError, match="without constrained=True"):
        free.decode(PARAMS, None, allowed=beyond, **call)
    with pytest.raises(ValueError, match="needs a sampler made with constrained=True"):
        rows_of(free, [([5], dict(constraint=Cycle([4])))])


def test_a_grammar_holds_random_weights_to_a_schema():
    """llguidance through `slca.sgls.grammar`, with a tokenizer that knows fewer ids than the model."""
    pytest.importorskip("llguidance", reason="the extra `grammar` (llguidance) is not installed")
    from slca.sgls import grammar

    tokenizer = load("tiny")
    config = ModelConfig("qwen3", tokenizer.size + 70, 16, 1, 2, 1, 8, 16, max_length=96)
    sampler = Sampler(config, slots=4, prompt_buckets=(8,), suffix_buckets=(4,), decode_steps=8, constrained=True)
    weights = transformer.init(config, jax.random.key(0))
    scheduler = Scheduler(sampler, weights, seed=0, step=0, temperature=1.0, stop_ids=tokenizer.stop_ids)
    schema = {"type": "object", "properties": {"on": {"type": "boolean"}, "n": {"enum": [1, 20]}}, "required": ["on", "n"]}
    view, text = grammar.vocabulary(tokenizer), grammar.compile(schema, 80)

    for sample in range(6):
        scheduler.submit([7, 8], prompt_key=0, sample=sample, budget=80, constraint=grammar.Constraint(view, text))
    bodies = []
    while scheduler.busy:
        for row in scheduler.step():
            ids = row.tokens[:-1] if row.tokens[-1] in tokenizer.stop_ids else row.tokens
            bodies.append(json.loads(tokenizer.decode(ids)))
            assert row.reason == STOP
            scheduler.cancel(row)
    assert len(bodies) == 6 and all(set(body) == {"on", "n"} and body["n"] in (1, 20) for body in bodies)
