"""One contender of `bench.rollout`, in a process (and often an interpreter) of its own.

    python bench/rollout_worker.py WHO FOLDER BATCH NEW [DTYPE]      # WHO: ours | plain | floor | transformers | tunix

FOLDER holds the model (`config.json`, `model.safetensors`) and `prompts.npy` [B, 64]. Reads one command a line and answers with one
JSON line: `greedy` -> the greedy continuation of the first rows, `go` -> seconds of one sampled batch. Imports nothing
of the project unless WHO is ours, plain or floor.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CHECKED_ROWS, CHECKED_TOKENS = 4, 32
Contender = tuple[Callable[[], Any], Callable[[], dict[str, float]]]


def transformers(folder: Path, prompts: np.ndarray, new: int, dtype: str) -> Contender:
    """`generate` of torch transformers, its own dynamic cache, no stop token."""
    import torch
    from transformers import Qwen3ForCausalLM
    from transformers.utils.logging import set_verbosity_error

    set_verbosity_error()
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    ids = torch.tensor(prompts, dtype=torch.long)

    def run(rows: torch.Tensor, tokens: int, **how: Any) -> np.ndarray:
        with torch.no_grad():
            out = model.generate(
                rows, attention_mask=torch.ones_like(rows), max_new_tokens=tokens, min_new_tokens=tokens, **how
            )
        return out[:, rows.shape[1] :].numpy()

    def go() -> dict[str, float]:
        run(ids, new, do_sample=True, top_k=0, top_p=1.0, temperature=1.0)
        return {}

    return lambda: run(ids[:CHECKED_ROWS], CHECKED_TOKENS, do_sample=False), go


def tunix(folder: Path, prompts: np.ndarray, new: int, dtype: str) -> Contender:
    """google-tunix's own sampler, in its top-p mode with p = 1 (the mode that samples the whole distribution)."""
    import jax.numpy as jnp
    from tunix.generate.sampler import CacheConfig, Sampler
    from tunix.models.qwen3 import model as qwen3
    from tunix.models.qwen3.params import create_model_from_safe_tensors

    c = json.loads((folder / "config.json").read_text())
    vocab = c["vocab_size"]
    config = qwen3.ModelConfig(
        vocab_size=vocab, embed_dim=c["hidden_size"], num_layers=c["num_hidden_layers"], num_heads=c["num_attention_heads"],
        num_kv_heads=c["num_key_value_heads"], head_dim=c["head_dim"], hidden_dim=c["intermediate_size"],
        norm_eps=c["rms_norm_eps"], rope_theta=c["rope_theta"], use_tied_embedding=True,
    )  # fmt: skip

    class Tokenizer:
        """One character an id; no BOS (its sampler adds one that is not 0)."""

        def encode(self, text: str, **_: Any) -> list[int]:
            return [ord(character) - 0x4E00 for character in text]

        def decode(self, ids: Any, **_: Any) -> str:
            return ""

        def bos_id(self) -> int:
            return 0

        def eos_id(self) -> int:
            return vocab - 1

        pad_id = bos_id

    model = create_model_from_safe_tensors(str(folder), config, dtype=jnp.dtype(dtype))
    cache = CacheConfig(prompts.shape[1] + new + 1, config.num_layers, config.num_kv_heads, config.head_dim)
    sampler = Sampler(model, Tokenizer(), cache)
    texts = ["".join(chr(0x4E00 + i) for i in row) for row in prompts.tolist()]

    def run(rows: list[str], tokens: int, **how: Any) -> Any:
        length = prompts.shape[1]
        return sampler(
            rows, max_generation_steps=tokens, max_prompt_length=length, eos_tokens=[vocab + 5], seed=1, **how
        ).tokens

    def go() -> dict[str, float]:
        run(texts, new, temperature=1.0, top_p=1.0)
        return {}

    return lambda: np.stack([np.asarray(row) for row in run(texts[:CHECKED_ROWS], CHECKED_TOKENS, temperature=0.0)]), go


def ours(folder: Path, prompts: np.ndarray, new: int, dtype: str) -> Contender:
    """The project's sampler as rollouts use it: rounds of 32 tokens, stop ids checked, log-probs returned."""
    import dataclasses

    import jax

    from slca.policy import weights
    from slca.rollout.sampler import Sampler, row_keys

    config, params = weights.load(folder)
    config = dataclasses.replace(config, dtype=dtype)
    rows, length = prompts.shape
    sampler = Sampler(
        config, slots=rows, cache_length=length + new, prompt_buckets=(length,), suffix_buckets=(16,), decode_steps=32,
        cache_dtype=dtype,
    )  # fmt: skip
    keys = row_keys(0, 0, np.arange(rows), np.zeros(rows, int), np.zeros(rows, int))

    def run(count: int, tokens: int, temperature: float) -> Any:
        few = keys[:count]
        return sampler.generate(params, prompts[:count].tolist(), keys=few, max_new_tokens=tokens, temperature=temperature)

    def go() -> dict[str, float]:
        start = time.perf_counter()
        state = sampler.insert(sampler.init(), sampler.prefill(params, prompts.tolist()), np.arange(rows), np.arange(rows))
        jax.block_until_ready(state)
        prefill = time.perf_counter() - start
        start = time.perf_counter()
        run(rows, new, 1.0)
        return {"seconds": time.perf_counter() - start, "prefill": prefill}

    return lambda: run(CHECKED_ROWS, CHECKED_TOKENS, 0.0).tokens, go


def plain(folder: Path, prompts: np.ndarray, new: int, dtype: str) -> Contender:
    """What one writes first: a scan over stacked layers with the cache [L, B, S, K, h] as its input and output, jax.nn's
    attention, `jax.random.categorical`, one jitted call a token (cache donated), the tokens read back to look for a stop."""
    import jax
    import jax.numpy as jnp

    from slca.policy import weights
    from slca.policy.transformer import rms_norm, rope, rope_tables

    config, params = weights.load(folder)
    rows, length = prompts.shape
    shape = (config.layers, rows, length + new, config.kv_heads, config.head_dim)

    def forward(params: Any, cache: Any, tokens: Any, start: Any) -> Any:
        x = params["embed"][tokens]
        positions = start + jnp.arange(tokens.shape[1])[None].repeat(len(tokens), 0)
        table = rope_tables(config, positions)[0]
        seen = (jnp.arange(shape[2])[None, None] <= positions[..., None])[:, None]

        def layer(x: Any, xs: Any) -> Any:
            w, keys, values = xs
            h = rms_norm(x, w["attn_norm"], config)
            q, k, v = (jnp.einsum("btd,dnh->btnh", h, w[name]) for name in "qkv")
            q, k = rope(rms_norm(q, w["q_norm"], config), table), rope(rms_norm(k, w["k_norm"], config), table)
            keys, values = (jax.lax.dynamic_update_slice_in_dim(old, n, start, 1) for old, n in ((keys, k), (values, v)))
            y = jax.nn.dot_product_attention(q, keys, values, mask=seen)
            x = x + jnp.einsum("btnh,nhd->btd", y, w["o"])
            h = rms_norm(x, w["mlp_norm"], config)
            return x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"], (keys, values)

        x, cache = jax.lax.scan(layer, x, (params["blocks"], *cache))
        return rms_norm(x[:, -1], params["final_norm"], config) @ params["embed"].T, cache

    step = jax.jit(forward, donate_argnums=1)

    @jax.jit
    def draw(key: Any, logits: Any, temperature: Any) -> Any:
        sampled = jax.random.categorical(key, logits / jnp.where(temperature == 0, 1.0, temperature))
        token = jnp.where(temperature == 0, logits.argmax(-1), sampled)
        return token, jnp.take_along_axis(jax.nn.log_softmax(logits), token[:, None], 1)[:, 0]

    def run(tokens: int, temperature: float) -> np.ndarray:
        cache = (jnp.zeros(shape), jnp.zeros(shape))
        logits, cache = step(params, cache, prompts, 0)
        out = []
        for n in range(tokens):
            token, logprob = draw(jax.random.key(n), logits, temperature)
            out.append(np.asarray(token))
            np.asarray(logprob)
            logits, cache = step(params, cache, token[:, None], length + n)
        return np.stack(out, 1)

    def go() -> dict[str, float]:
        run(new, 1.0)
        return {}

    return lambda: run(CHECKED_TOKENS, 0.0)[:CHECKED_ROWS], go


def floor(folder: Path, prompts: np.ndarray, new: int, dtype: str) -> Contender:
    """Seconds of `new` steps at the rates measured here and now: weights and the whole cache read once a step at the bandwidth
    of a sum over 256 MiB, plus the FLOPs of the matrices at the rate of [B, D] x [D, 6 D] products over weights that
    do not fit a cache."""
    import jax
    import jax.numpy as jnp

    from slca.policy import cache, weights

    config = weights.architecture(folder)
    D, rows = config.width, len(prompts)
    qkv = config.heads + 2 * config.kv_heads
    matrices = config.layers * (D * config.head_dim * (qkv + config.heads) + 3 * D * config.ff) + config.vocab * D
    moved = 4 * matrices + cache.nbytes(config, rows, prompts.shape[1] + new, "float32")
    big = jnp.ones(2**26)
    count = max(2, 12_000_000 // (6 * D * D))
    wide = [jnp.full((D, 6 * D), 1e-3) + i for i in range(count)]
    x = jnp.ones((rows, D))
    read = jax.jit(lambda a: a.sum())

    @jax.jit
    def multiply(x: Any, wide: Any) -> Any:
        def layer(_: Any, x: Any) -> Any:
            for w in wide:
                x = x + 1e-6 * (x @ w)[:, :D]
            return x

        return jax.lax.fori_loop(0, 10, layer, x)

    def seconds(f: Callable[..., Any], *args: Any) -> float:
        found = []
        for _ in range(5):
            start = time.perf_counter()
            jax.block_until_ready(f(*args))
            found.append(time.perf_counter() - start)
        return sorted(found)[2]

    def go() -> dict[str, float]:
        bandwidth = big.nbytes / seconds(read, big)
        rate = 10 * count * 2 * rows * 6 * D * D / seconds(multiply, x, wide)
        flops = 2 * rows * matrices
        return {
            "seconds": new * (moved / bandwidth + flops / rate), "bandwidth": bandwidth, "rate": rate,
            "megabytes": moved / 1e6, "gigaflops": flops / 1e9,
        }  # fmt: skip

    return lambda: np.zeros((0, 0), int), go


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    who, folder, batch, new = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    dtype = sys.argv[5] if len(sys.argv) > 5 else "float32"
    out, sys.stdout = sys.stdout, sys.stderr  # what a library prints must not look like an answer
    contender = {"ours": ours, "plain": plain, "floor": floor, "transformers": transformers, "tunix": tunix}[who]
    prompts = np.load(folder / "prompts.npy")[:batch]
    greedy, go = contender(folder, prompts, new, dtype)
    for line in sys.stdin:
        start = time.perf_counter()
        answer = {"tokens": np.asarray(greedy()).tolist()} if line.strip() == "greedy" else go()
        print(json.dumps({"seconds": time.perf_counter() - start} | answer), file=out, flush=True)


if __name__ == "__main__":
    main()
