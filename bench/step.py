"""A whole single-turn GRPO step beside its peers, interleaved in one run.

    sh bench/venvs.sh FOLDER                                        # once; the torch environment also needs `pip install trl`
    python -m bench.step --torch FOLDER/torch/bin/python --tunix FOLDER/tunix/bin/python [--sizes small,mid] [--rounds 5]

8 prompts x 4 completions of 64 tokens after prompts of 64, random Qwen3 weights, one AdamW update, float32. Each contender is a
process that takes one step a round, one after the other, so that all see the same load; the first two steps of each compile and
are not counted. torch runs with OMP_WAIT_POLICY=PASSIVE and, as `trl (default)`, without. Prints medians (least to most) and ratios to ours.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("step_worker.py")
WARM_UP = 2


class Contender:
    """A worker process that takes a step when asked."""

    def __init__(self, python: str, who: str, size: str, new: int, env: dict[str, str]):
        paths = {"PYTHONPATH": str(WORKER.parent.parent) if who == "ours" else ""}
        command = [python, str(WORKER), who, size, str(new)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | paths | env,
        )
        self.answers: list[dict[str, Any]] = []

    def step(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a contender ended: {self.process.args}")
        self.answers.append(json.loads(line))

    def seconds(self) -> list[float]:
        return [answer["seconds"] for answer in self.answers[WARM_UP:]]


def compare(args: argparse.Namespace, size: str) -> None:
    passive = {"OMP_WAIT_POLICY": "PASSIVE"}
    wanted = {"ours": (sys.executable, "ours", {})}
    if args.torch:
        wanted |= {"trl": (args.torch, "trl", passive), "trl (default)": (args.torch, "trl", {})}
    if args.tunix:
        wanted["tunix"] = (args.tunix, "tunix", {})
    running = {name: Contender(python, who, size, args.new, env) for name, (python, who, env) in wanted.items()}
    try:
        for _ in range(WARM_UP + args.rounds):
            for contender in running.values():
                contender.step()
    finally:
        for contender in running.values():
            contender.process.kill()
    print(
        f"| {size} | seconds a step (least to most) | ours is faster by | first step | reward, first and last |\n|---|---|---|---|---|"
    )
    own = statistics.median(running["ours"].seconds())
    for name, contender in running.items():
        found = contender.seconds()
        middle, first, last = statistics.median(found), contender.answers[0], contender.answers[-1]
        print(
            f"| {name} | {middle:.3f} ({min(found):.3f} to {max(found):.3f}) | {middle / own:.2f} | {first['seconds']:.1f} "
            f"| {first['reward']:.3f}, {last['reward']:.3f} |"
        )
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default="", help="interpreter with torch, transformers and trl")
    parser.add_argument("--tunix", default="", help="interpreter with google-tunix")
    parser.add_argument("--sizes", default="small,mid")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, default=64, help="tokens a completion")
    args = parser.parse_args()
    for size in args.sizes.split(","):
        compare(args, size)


if __name__ == "__main__":
    main()
