"""Sampling speed beside its peers and beside what the machine could do, interleaved in one run.

    sh bench/venvs.sh FOLDER                                      # once: interpreters with torch and with google-tunix
    python -m bench.rollout --torch FOLDER/torch/bin/python --tunix FOLDER/tunix/bin/python [--jax12 FOLDER/jax12/bin/python]
                            [--sizes small,mid] [--batches 16,64] [--rounds 5] [--new 192] [--without NAME;NAME]

The same random Qwen3 weights (a Hugging Face folder), 64-token prompts, all different, 192 sampled tokens each at temperature 1, no
stop. Every contender is a process that stays alive; in each round each of them samples the batch once, one after the other, so
that all see the same load. First the greedy continuations of four rows are compared: the contenders run the same model.
Prints medians (least to most) and ratios. Peers whose interpreter is not given are left out. See `bench.rollout_engine` for
episodes of many turns.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.arguments import interpreter, names, numbers, positive
from bench.contender import PASSIVE, ROOT, Contender, Row, in_turns, table

PROMPT = 64
SIZES: dict[str, dict[str, int]] = {
    "small": dict(vocab=1024, width=128, layers=6, heads=4, kv_heads=2, head_dim=32, ff=512),
    "mid": dict(vocab=8192, width=512, layers=8, heads=8, kv_heads=4, head_dim=64, ff=1536),
}
WORKER = Path(__file__).with_name("rollout_worker.py")
OURS = ("ours", "plain", "floor")
OTHERS = ("plain loop", "floor", "transformers", "transformers, passive", "tunix", "ours, jax 0.12 bf16")


def make_model(size: str, batch: int) -> Path:
    """A folder with random weights and prompts. Runs in a process of its own, so that this one holds no device."""
    folder = Path(tempfile.mkdtemp(prefix=f"rollout-{size}-"))
    script = (
        "import sys, jax; from slca.policy import transformer, weights; from slca.policy.config import ModelConfig; "
        f"c = ModelConfig('qwen3', **{SIZES[size]!r}, max_length=512, rope_theta=1e6); "
        "weights.save(sys.argv[1], c, transformer.init(c, jax.random.key(0)))"
    )
    subprocess.run([sys.executable, "-c", script, str(folder)], check=True, cwd=ROOT)
    np.save(folder / "prompts.npy", np.random.default_rng(0).integers(1, SIZES[size]["vocab"], (batch, PROMPT)))
    return folder


def left_out(text: str) -> list[str]:
    """Argument type: names of contenders, split by semicolons; "" = none."""
    if "ours" in text.split(";"):
        raise argparse.ArgumentTypeError("ours cannot be left out: the others are compared with it")
    return names(OTHERS, ";")(text) if text else []


def contenders(
    folder: Path, batch: int, new: int, *, torch: str = "", tunix: str = "", jax12: str = "", without: Sequence[str] = ()
) -> dict[str, Contender]:
    """Name -> process, for every interpreter that was given."""
    wanted: dict[str, tuple[str, str, str, dict[str, str]]] = {
        "ours": (sys.executable, "ours", "float32", {}),
        "plain loop": (sys.executable, "plain", "float32", {}),
        "floor": (sys.executable, "floor", "float32", {}),
    }
    if torch:
        wanted["transformers"] = (torch, "transformers", "float32", {})
        wanted["transformers, passive"] = (torch, "transformers", "float32", PASSIVE)
    if tunix:
        wanted["tunix"] = (tunix, "tunix", "float32", {})
    if jax12:
        wanted["ours, jax 0.12 bf16"] = (jax12, "ours", "bfloat16", {})
    return {
        name: Contender([python, str(WORKER), who, str(folder), str(batch), str(new), dtype], ours=who in OURS, env=env)
        for name, (python, who, dtype, env) in wanted.items()
        if name not in without
    }


def measure(found: dict[str, Contender], rounds: int) -> None:
    """Check that all run the same model, warm up, then `rounds` rounds."""
    expected = found["ours"].ask("greedy")["tokens"]
    for name, contender in found.items():
        tokens = contender.ask("greedy")["tokens"]
        if name not in ("floor", "ours, jax 0.12 bf16") and tokens != expected:
            same = np.mean(np.array(tokens) == np.array(expected))
            print(f"  greedy tokens of {name} differ: {same:.0%} equal (near-ties of f32, or another model)")
        contender.ask("go")
    in_turns(found, rounds)


def report(size: str, batch: int, new: int, found: dict[str, Contender]) -> dict[str, Any]:
    """Seconds and tokens a second, and the share of the floor's rate that decoding alone reaches."""
    ours = found["ours"].column()
    rows = [Row(name, contender.column(), ours) for name, contender in found.items() if name != "floor"]
    out = table(f"{size}, batch {batch}: {PROMPT} + {new} tokens", "seconds a batch", rows)
    for name, contender in found.items():
        if name != "floor":
            speeds = sorted(batch * new / s for s in contender.column())
            print(f"{name}: {statistics.median(speeds):,.0f} tokens/s ({speeds[0]:,.0f} to {speeds[-1]:,.0f})")
    if "floor" not in found:
        return out
    floor = found["floor"]
    decode = [answer["seconds"] - answer["prefill"] for answer in found["ours"].answers]
    share = sorted(bound / own for bound, own in zip(floor.column(), decode))
    middle = {name: statistics.median(floor.column(name)) for name in floor.answers[0]}
    print(
        f"\nDecoding alone: {1e3 * statistics.median(decode) / new:.2f} ms a step, the sum of the floors "
        f"{1e3 * middle['seconds'] / new:.2f} ({middle['megabytes']:.0f} MB at {middle['bandwidth'] / 1e9:.0f} GB/s and "
        f"{middle['gigaflops']:.2f} GFLOP at {middle['rate'] / 1e9:.0f} GFLOP/s): "
        f"{statistics.median(share):.0%} of the floor's rate ({share[0]:.0%} to {share[-1]:.0%})"
    )
    return out | {"tokens": batch * new, "share of floor": share}


def compare(
    size: str, batch: int, *, new: int = 192, rounds: int = 5, without: Sequence[str] = (), **interpreters: str
) -> dict[str, Any]:
    """One table: a model, a batch, every contender whose interpreter is given."""
    found = contenders(make_model(size, batch), batch, new, without=without, **interpreters)
    try:
        measure(found, rounds)
    finally:
        for contender in found.values():
            contender.stop()
    return report(size, batch, new, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("torch", "tunix", "jax12"):
        parser.add_argument(f"--{name}", type=interpreter, default="", help="interpreter of that environment")
    parser.add_argument("--without", type=left_out, default="", help="names of contenders to leave out, split by semicolons")
    parser.add_argument("--sizes", type=names(SIZES), default="small,mid")
    parser.add_argument("--batches", type=numbers, default="16,64")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--new", type=positive, default=192)
    args = parser.parse_args()
    interpreters = {name: getattr(args, name) for name in ("torch", "tunix", "jax12")}
    for size in args.sizes:
        for batch in args.batches:
            compare(size, batch, new=args.new, rounds=args.rounds, without=args.without, **interpreters)


if __name__ == "__main__":
    main()
