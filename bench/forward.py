"""Forward and backward pass at 30 M parameters against the summed time of its own matrix products, alone at their own shapes.

    python -m bench.forward [FAMILY] [ROUNDS]        # default qwen3, 5

One process, one run: each round times the whole pass and every product once, one after the other, in CPU seconds of the process
(all its threads), which other work on the machine stretches far less than the clock's. The share is (sum of the medians of the
products) / (median of the pass). A library's speed at a shape can depend much on which operand lies transposed, so every product is
timed in both layouts of its right operand and there are two shares: with the products as they are written, [M, K] x [K, N], and, the
strict one, with each in its faster layout.

Products: q, k, v, o, gate, up, down of each layer and the unembedding, each forward (1) and backward (2: for the input and for the
weight); attention's two products with scores of the full square, forward 1 and backward 2 each. No block is recomputed (remat none);
the loss is the learner's, in chunks, whose second look at the logits in the backward pass is not counted among the products.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.arguments import positive
from slca.learn.forward import policy_forward
from slca.learn.logprob import token_logprob
from slca.policy import transformer
from slca.policy.config import FAMILIES, ModelConfig

ROWS, LENGTH, CHUNK = 4, 512, 128


def model(family: str) -> ModelConfig:
    """30 M parameters: 8 layers of width 512, 8 heads over 4, vocabulary 8,192, tied."""
    return ModelConfig(family, vocab=8192, width=512, layers=8, heads=8, kv_heads=4, head_dim=64, ff=1408, max_length=LENGTH)


def whole(config: ModelConfig) -> Callable[[], Any]:
    """One gradient of the mean log-prob of a batch of plain rows."""
    hidden, unembed = policy_forward(config)
    tokens = jnp.asarray(np.random.default_rng(0).integers(1, config.vocab, (ROWS, LENGTH)), jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(LENGTH)[None], tokens.shape)
    params = jax.jit(lambda key: transformer.init(config, key))(jax.random.key(0))

    @jax.jit
    def gradient(params: Any) -> Any:
        def loss(p: Any) -> Any:
            logprob, _ = token_logprob(hidden(p, tokens, positions, jnp.ones_like(tokens)), unembed(p), tokens, 1.0, CHUNK)
            return -logprob.mean()

        return jax.grad(loss)(params)

    return lambda: gradient(params)


Case = tuple[str, int, tuple[Callable[[], Any], Callable[[], Any]]]


def products(config: ModelConfig) -> list[Case]:
    """(name, times a pass, it in both layouts) of every matrix product; [M, K] x [K, N], the two of its backward pass at their own
    shapes."""
    D, F, h = config.width, config.ff, config.head_dim
    q, k = config.heads * h, config.kv_heads * h
    M, L = ROWS * LENGTH, config.layers
    shapes = {"q": (D, q), "k and v": (D, k), "o": (q, D), "gate and up": (D, F), "down": (F, D)}
    found = [case for name, (K, N) in shapes.items() for case in _linear(name, M, K, N, L * (2 if " and " in name else 1))]
    found += _linear("unembedding", ROWS * CHUNK, D, config.vocab, LENGTH // CHUNK)
    batch, T = ROWS * config.heads, LENGTH
    scores, mixed = ((batch, T, h), (batch, h, T)), ((batch, T, T), (batch, T, h))
    found += [_product("scores", *scores, 2 * L), _product("scores, backward", *mixed, 4 * L)]
    return found


def _linear(name: str, M: int, K: int, N: int, times: int) -> list[Case]:
    return [
        _product(name, (M, K), (K, N), times),
        _product(f"{name}, for the input", (M, N), (N, K), times),
        _product(f"{name}, for the weight", (K, M), (M, N), times),
    ]


def _product(name: str, a: tuple[int, ...], b: tuple[int, ...], times: int) -> Case:
    rng = np.random.default_rng(1)
    left, right = (jnp.asarray(rng.standard_normal(shape, np.float32)) for shape in (a, b))
    turned = jnp.asarray(np.ascontiguousarray(np.swapaxes(right, -1, -2)))
    multiply, multiply_turned = jax.jit(jnp.matmul), jax.jit(lambda x, y: jnp.einsum("...mk,...nk->...mn", x, y))
    return name, times, (lambda: multiply(left, right), lambda: multiply_turned(left, turned))


def timed(function: Callable[[], Any]) -> float:
    start = time.process_time()
    jax.block_until_ready(function())
    return time.process_time() - start


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench.forward", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("family", nargs="?", choices=FAMILIES, default="qwen3")
    parser.add_argument("rounds", nargs="?", type=positive, default=5)
    args = parser.parse_args(argv)
    config = model(args.family)
    count = sum(
        int(np.prod(x)) for x in jax.tree.leaves(transformer.param_shapes(config), is_leaf=lambda x: isinstance(x, tuple))
    )
    run, parts = whole(config), products(config)
    jax.block_until_ready([run(), *(function() for part in parts for function in part[2])])  # compiles
    seconds: list[float] = []
    alone: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name, _, _ in parts}
    for _ in range(args.rounds):
        seconds.append(timed(run))
        for name, _, forms in parts:
            for found, function in zip(alone[name], forms):
                found.append(timed(function))
    medians = {name: [statistics.median(found) for found in pair] for name, pair in alone.items()}
    totals = [sum(times * choose(medians[name]) for name, times, _ in parts) for choose in (lambda pair: pair[0], min)]
    print(
        f"jax {version('jax')}, {jax.devices()[0].device_kind}; {config.family}, {count / 1e6:.1f} M parameters, {ROWS} x {LENGTH} tokens"
    )
    print(f"  {'product':<32} {'times':>5}  ms as written  right turned")
    for name, times, _ in parts:
        written, turned = medians[name]
        print(f"  {name:<32} {times:>5}  {1e3 * written:13.2f} {1e3 * turned:13.2f}")
    spread = f"{min(seconds):.3f} to {max(seconds):.3f}"
    print(
        f"forward + backward {statistics.median(seconds):.3f} s ({spread}), its products alone {totals[0]:.3f} s, in faster layouts {totals[1]:.3f} s"
    )
    shares = [total / statistics.median(seconds) for total in totals]
    print(f"share {shares[0]:.2f}, in faster layouts {shares[1]:.2f} (goal 0.70), {args.rounds} rounds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
