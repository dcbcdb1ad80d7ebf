"""The sampler's cache: what a smaller dtype costs in log-probs and gains in speed, and what reading prompts costs.

    python -m bench.rollout_cache [--size small] [--rows 32]         # two minutes on two cores

Three tables. 1: caches in float32 and bfloat16 through the sampler (the log-prob of every sampled token against one plain
float32 forward of the row), and int8 (a scale a token and head) by rounding the keys and values of that forward.
2: one step's attention over a cache of each kind. 3: by bytes alone, the share of a decode step that reading the prompts takes,
what storing them once for 4 or 16 slots saves (`rollout.shared_slots`), and the cache's size (model of the floors: weights and caches
read once a step at the bandwidth). What is saved in fact: `python -m bench.rollout_engine shared`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from bench.arguments import positive
from bench.rollout import SIZES
from slca.policy import attention, transformer
from slca.policy.config import ModelConfig
from slca.rollout.sampler import Sampler, row_keys

PROMPT, NEW = 64, 192


def int8(x: Any, axis: int = -1) -> Any:
    """What an int8 cache would give back: one float32 scale a vector along `axis`."""
    scale = jnp.maximum(jnp.abs(x).max(axis, keepdims=True), 1e-8) / 127
    return jnp.round(x / scale) * scale


def plain_logprob(
    config: ModelConfig, params: Any, rows: np.ndarray, rounding: Callable[[Any], Any] = lambda x: x
) -> np.ndarray:
    """[B, NEW] log-probs of the sampled part by one forward; keys and values rounded as a cache would."""
    whole = attention.attention

    def attend(q: Any, k: Any, v: Any, **options: Any) -> Any:
        return whole(q, rounding(k), rounding(v), **options)

    def score(row: Any) -> Any:
        positions = jnp.arange(row.shape[1])[None].repeat(row.shape[0], 0)
        hidden: Any = transformer.Transformer(config).apply({"params": params}, row, positions)
        table = jax.nn.log_softmax(transformer.logits(hidden[:, PROMPT - 1 : -1], transformer.unembed(params, config)))
        return jnp.take_along_axis(table, row[:, PROMPT:, None], 2)[:, :, 0]

    with mock.patch.object(attention, "attention", attend):
        return np.concatenate([np.asarray(jax.jit(score)(rows[i : i + 4])) for i in range(0, len(rows), 4)])


def effect(config: ModelConfig, params: Any, rows: int) -> None:
    prompts = np.random.default_rng(0).integers(1, config.vocab, (rows, PROMPT))
    keys = row_keys(0, 0, np.arange(rows), np.zeros(rows, int), np.zeros(rows, int))
    print("\n| cache | MiB | mean, 95 %, largest difference in nats | outside [0.9, 1.1] |\n|---|---|---|---|")

    def line(name: str, megabytes: float, gap: np.ndarray) -> None:
        outside = ((np.exp(gap) < 0.9) | (np.exp(gap) > 1.1)).mean()
        gap = np.abs(gap)
        print(f"| {name} | {megabytes:.1f} | {gap.mean():.1e}, {np.quantile(gap, 0.95):.1e}, {gap.max():.1e} | {outside:.2%} |")

    for dtype in ("float32", "bfloat16"):
        sampler = Sampler(config, slots=rows, cache_length=PROMPT + NEW, prompt_buckets=(PROMPT,), cache_dtype=dtype)
        out = sampler.generate(params, prompts.tolist(), keys=keys, max_new_tokens=NEW)
        plain = plain_logprob(config, params, np.concatenate([prompts, out.tokens], 1))
        line(dtype, sampler.nbytes() / 2**20, out.logprob - plain)
    rows_ = np.concatenate([prompts, out.tokens], 1)
    line(
        "int8 (by rounding)",
        sampler.nbytes() / 2**21 * (1 + 4 / config.head_dim),
        plain_logprob(config, params, rows_, int8) - plain,
    )


def speed(config: ModelConfig, rows: int, length: int) -> None:
    """Microseconds of one layer's attention for one token a row."""
    K, h = config.kv_heads, config.head_dim
    q = jnp.ones((rows, 1, config.heads, h))
    positions = jnp.full((rows, 1), length - 1)

    def widened(q: Any, keys: Any, values: Any, scales: Any) -> Any:
        """int8: the products with the scales inside, which XLA fuses with the widening."""
        grouped = q.reshape(rows, K, -1, h)
        scores = (grouped[..., None] * keys[:, :, None].astype(jnp.float32)).sum(3) * scales[:, :, None] * config.scale
        weights = jax.nn.softmax(scores, -1) * scales[:, :, None]
        return (weights[..., None] * values[:, :, None].astype(jnp.float32)).sum(3).reshape(q.shape)

    def through(q: Any, keys: Any, values: Any, scales: Any) -> Any:
        return attention.cached_attention(q, keys, values, positions, window=None, scale=config.scale)

    found = {}
    for dtype, attend in (("float32", through), ("bfloat16", through), ("int8", widened)):
        layers = [
            (jnp.ones((rows, K, h, length), dtype), jnp.ones((rows, K, length, h), dtype), jnp.ones((rows, K, length)))
        ] * 1
        layers += [tuple(x + 1 for x in layers[0]) for _ in range(5)]

        @jax.jit
        def loop(q: Any, layers: Any, attend: Any = attend) -> Any:
            def step(_: Any, q: Any) -> Any:
                for layer in layers:
                    q = 0.5 * q + 0.01 * attend(q, *layer)
                return q

            return jax.lax.fori_loop(0, 20, step, q)

        loop(q, layers).block_until_ready()
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            loop(q, layers).block_until_ready()
            seconds.append((time.perf_counter() - start) / 120)
        found[dtype] = statistics.median(seconds)
    print(f"attention of {rows} rows over {length}: " + ", ".join(f"{name} {1e6 * s:.0f} us" for name, s in found.items()))


def prefixes() -> None:
    """Seven billion parameters in bfloat16 (Qwen2.5-7B: 28 layers, 4 KV heads of 128), G = 16."""
    print(
        "\n| prompt + response so far | rows | prompts' share of a step's bytes | saved by places of 4, 16 slots | cache GB: own, 4, 16 |"
        "\n|---|---|---|---|---|"
    )
    weights, token = 15.2e9, 28 * 4 * 128 * 2 * 2
    for prompt, response in ((512, 256), (2048, 1024), (8192, 2048), (24_576, 4096)):
        for rows in (64, 512):
            prompts, rest = rows * prompt * token, weights + rows * response * token
            share = prompts / (prompts + rest)
            saved = ", ".join(f"{share * (1 - 1 / width):.0%}" for width in (4, 16))
            sizes = ", ".join(f"{(prompts / width + rest - weights) / 1e9:.0f}" for width in (1, 4, 16))
            print(f"| {prompt} + {response} | {rows} | {share:.0%} | {saved} | {sizes} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small", choices=list(SIZES))
    parser.add_argument("--rows", type=positive, default=32)
    args = parser.parse_args()
    config = ModelConfig("qwen3", **SIZES[args.size], max_length=512)  # type: ignore[arg-type]
    effect(config, transformer.init(config, jax.random.key(0)), args.rows)
    print()
    for length in (256, 1024):
        speed(config, 64, length)
    prefixes()


if __name__ == "__main__":
    main()
