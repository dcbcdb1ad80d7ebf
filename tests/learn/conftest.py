"""Hand-made episodes and a two-layer policy of width 32 for the learner's tests."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slca.policy.config import ModelConfig
from slca.policy.transformer import Transformer, logical_axes, param_shapes, unembed
from slca.types import ENV, POLICY, PROMPT, Episode, Parsed, Task

VOCAB = 48


def episode(prompt, turns, *, group=0, sample=0, end="answered", seed=0):
    """Prompt of `prompt` tokens, then (sampled, environment) lengths a turn; every turn but the last is a call."""
    writer, turn = [PROMPT] * prompt, [-1] * prompt
    for k, (sampled, environment) in enumerate(turns):
        writer += [POLICY] * sampled + [ENV] * environment
        turn += [k] * sampled + [-1] * environment
    rng = np.random.default_rng([seed, group, sample])
    writer = np.asarray(writer, np.int8)
    return Episode(
        task=Task(id=f"t{group}", messages=[], tools=[], gold_steps=[]),
        group=group,
        sample=sample,
        tokens=rng.integers(1, VOCAB, len(writer)).astype(np.int32),
        writer=writer,
        turn=np.asarray(turn, np.int16),
        logprob=np.where(writer == POLICY, -rng.random(len(writer)) * 3, 0).astype(np.float32),
        turns=[Parsed(opened=int(k + 1 < len(turns))) for k in range(len(turns))],
        end=end,
    )


def two_groups():
    """Two groups of four with lengths from 7 to 40, one of them unscored."""
    shapes = [
        (4, [(3, 5), (6, 0)]),
        (4, [(2, 0)]),
        (4, [(5, 3), (4, 2), (9, 0)]),
        (4, [(1, 6), (20, 0)]),
        (6, [(3, 0)]),
        (6, [(7, 9), (1, 0)]),
        (6, [(2, 2), (2, 2), (2, 2), (4, 0)]),
        (6, [(8, 1), (25, 0)]),
    ]
    ends = ["answered"] * 5 + ["sim_failed"] + ["answered"] * 2
    return [episode(p, t, group=n // 4, sample=n % 4, end=ends[n]) for n, (p, t) in enumerate(shapes)]


def credits():
    """[8, 4] credit, different for every segment."""
    return np.random.default_rng(1).normal(size=(8, 4))


def shrink(config):
    """Rows of 40 or 80 tokens, two rows a micro-batch, chunks of a few tokens, a plain optimizer."""
    config.train.update(row_lengths=(40, 80), micro_rows=2, logprob_bytes=4 * 2 * VOCAB * 16)
    config.optim.lr = 1e-2
    config.unlock()
    return config


@pytest.fixture
def episodes():
    return two_groups()


@pytest.fixture
def credit():
    return credits()


@pytest.fixture
def config(config):
    return shrink(config)


class Toy:
    """The real policy, small: hidden_fn, unembed_fn, params and logical axes."""

    def __init__(self, **changes):
        sizes = dict(family="qwen3", vocab=VOCAB, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, ff=64) | changes
        self.config = ModelConfig(**sizes)
        self.axes = logical_axes(self.config)
        self.model = Transformer(self.config)

    def params(self, seed=0):
        """Drawn by NumPy (nothing to compile), the embedding wide enough for distributions far from uniform."""
        rng = np.random.default_rng(seed)
        shapes, tree = jax.tree.flatten(param_shapes(self.config), is_leaf=lambda x: isinstance(x, tuple))
        leaves = [
            jnp.asarray(rng.normal(size=shape) * 0.3 + (len(shape) < 3 and shape[-1] < 33 and 0.7), jnp.float32)
            for shape in shapes
        ]
        return jax.tree.unflatten(tree, leaves)

    def lookup(self, params, tokens, positions, episode):
        """A stand-in forward without attention, quick to compile."""
        return params["embed"][tokens]

    def hidden(self, params, tokens, positions, episode):
        return self.model.apply({"params": params}, tokens, positions, episode)

    def unembed(self, params):
        return unembed(params, self.config)

    def reference_logprob(self, params, tokens, temperature=1.0, hidden=None):
        """[T] log-probs of one episode alone in its row, by the full [T, V] table in float64; entry 0 is 0."""
        tokens = jnp.asarray(tokens)[None]
        hidden = (hidden or self.hidden)(params, tokens, jnp.arange(tokens.shape[1])[None], jnp.ones_like(tokens))
        logits = np.asarray(hidden[0], np.float64) @ np.asarray(self.unembed(params), np.float64) / temperature
        table = (
            logits
            - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
            - logits.max(-1, keepdims=True)
        )
        return np.concatenate([[0.0], table[np.arange(tokens.shape[1] - 1), np.asarray(tokens)[0, 1:]]])


@pytest.fixture
def toy():
    return Toy()
