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
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

PROMPT = 64
SIZES: dict[str, dict[str, int]] = {
    "small": dict(vocab=1024, width=128, layers=6, heads=4, kv_heads=2, head_dim=32, ff=512),
    "mid": dict(vocab=8192, width=512, layers=8, heads=8, kv_heads=4, head_dim=64, ff=1536),
}
WORKER = Path(__file__).with_name("rollout_worker.py")
ROOT = WORKER.parent.parent


class Contender:
    """A worker process and the seconds it took."""

    def __init__(self, python: str, who: str, folder: Path, batch: int, new: int, dtype: str, env: dict[str, str]):
        command = [python, str(WORKER), who, str(folder), str(batch), str(new), dtype]
        env = os.environ | {"PYTHONPATH": str(ROOT) if who in ("ours", "plain", "floor") else ""} | env
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.answers: list[dict[str, Any]] = []

    def ask(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a contender ended: {' '.join(map(str, self.process.args))}")  # type: ignore[arg-type]
        return json.loads(line)

    def column(self, name: str = "seconds") -> list[float]:
        return [answer[name] for answer in self.answers]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


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


def contenders(args: argparse.Namespace, folder: Path, batch: int) -> dict[str, Contender]:
    """Name -> process, for every interpreter that was given."""
    wanted: dict[str, tuple[str, str, str, dict[str, str]]] = {
        "ours": (sys.executable, "ours", "float32", {}),
        "plain loop": (sys.executable, "plain", "float32", {}),
        "floor": (sys.executable, "floor", "float32", {}),
    }
    if args.torch:
        wanted["transformers"] = (args.torch, "transformers", "float32", {})
        wanted["transformers, passive"] = (args.torch, "transformers", "float32", {"OMP_WAIT_POLICY": "PASSIVE"})
    if args.tunix:
        wanted["tunix"] = (args.tunix, "tunix", "float32", {})
    if args.jax12:
        wanted["ours, jax 0.12 bf16"] = (args.jax12, "ours", "bfloat16", {})
    return {
        name: Contender(python, who, folder, batch, args.new, dtype, env)
        for name, (python, who, dtype, env) in wanted.items()
        if name not in args.without.split(";")
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
    for _ in range(rounds):
        for contender in found.values():
            time.sleep(0.3)  # threads of the one before stop spinning
            contender.answers.append(contender.ask("go"))


def report(size: str, batch: int, new: int, found: dict[str, Contender]) -> None:
    ours = found["ours"].column()
    print(
        f"\n{size}, batch {batch}: {PROMPT} + {new} tokens\n\n| | tokens/s: median (least to most) | ours is faster by |\n|---|---|---|"
    )
    for name, contender in found.items():
        if name != "floor":
            seconds = contender.column()
            speeds = sorted(batch * new / s for s in seconds)
            ratio = statistics.median(theirs / own for theirs, own in zip(seconds, ours))
            print(f"| {name} | {statistics.median(speeds):,.0f} ({speeds[0]:,.0f} to {speeds[-1]:,.0f}) | {ratio:.2f} |")
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("torch", "tunix", "jax12"):
        parser.add_argument(f"--{name}", default="", help="interpreter of that environment")
    parser.add_argument("--without", default="", help="names of contenders to leave out, split by semicolons")
    parser.add_argument("--sizes", default="small,mid")
    parser.add_argument("--batches", default="16,64")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, default=192)
    args = parser.parse_args()
    for size in args.sizes.split(","):
        for batch in map(int, args.batches.split(",")):
            found = contenders(args, make_model(size, batch), batch)
            try:
                measure(found, args.rounds)
            finally:
                for contender in found.values():
                    contender.stop()
            report(size, batch, args.new, found)


if __name__ == "__main__":
    main()
