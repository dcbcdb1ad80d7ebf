"""A whole multi-turn GRPO step with tools, beside google-tunix's agentic learner, interleaved in one run.

    sh bench/venvs.sh FOLDER                                                                       # once
    python -m bench.agentic --tunix FOLDER/tunix/bin/python [--size small] [--turns 4] [--rounds 5]

8 prompts x 4 episodes: prompts of 128 tokens, 4 turns of 24 sampled tokens, tool results of 48 tokens that are there at once; random
Qwen3 weights, one AdamW update, float32. The number of turns and tokens is fixed and the same for both. What tunix runs is its own
agentic code (orchestrator, trajectory engine, agent, learner) over its own sampler, the one engine of it that needs no accelerator:
each call of it samples one conversation and prefills the whole of it. The first two steps of each compile and are not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bench.arguments import interpreter, positive
from bench.contender import Contender, Row, side_by_side, table
from bench.step_worker import SIZES

WORKER = Path(__file__).with_name("agentic_worker.py")
WARM_UP = 2
SHAPE = {"prompts": 8, "group": 4, "turns": 4, "length": 128, "new": 24, "result": 48}


def compare(size: str = "small", *, tunix: str = "", rounds: int = 5, **shape: int) -> dict[str, Any]:
    """One table: seconds a step of every contender whose interpreter is given. shape: overrides of SHAPE."""
    shape = SHAPE | shape
    wanted = {"ours": sys.executable} | ({"tunix, agentic": tunix} if tunix else {})
    arguments = [json.dumps(SIZES[size]), json.dumps(shape)]
    running = {
        name: Contender([python, str(WORKER), name.partition(",")[0], *arguments], ours=name == "ours", quiet=True)
        for name, python in wanted.items()
    }
    rows = side_by_side(running, rounds, WARM_UP)
    title = (
        f"{size}: {shape['prompts']} x {shape['group']} episodes of {shape['turns']} turns, {shape['length']} + "
        f"{shape['turns']} x {shape['new']} + {shape['turns'] - 1} x {shape['result']} tokens"
    )
    rows += [Row(f"ours: {part}", running["ours"].column(part, WARM_UP)) for part in ("rollout", "update")]
    return table(title, "seconds a step", rows) | {"shape": shape}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunix", type=interpreter, default="", help="interpreter with google-tunix")
    parser.add_argument("--size", default="small", choices=list(SIZES))
    parser.add_argument("--rounds", type=positive, default=5)
    for name, value in SHAPE.items():
        parser.add_argument(f"--{name}", type=positive, default=value)
    args = parser.parse_args()
    shape = {name: getattr(args, name) for name in SHAPE}
    compare(args.size, tunix=args.tunix, rounds=args.rounds, **shape)


if __name__ == "__main__":
    main()
