"""A whole single-turn GRPO step beside its peers, interleaved in one run; with --update the optimiser step alone.

    sh bench/venvs.sh FOLDER                                        # once
    python -m bench.step --torch FOLDER/torch/bin/python --tunix FOLDER/tunix/bin/python [--sizes small,mid] [--rounds 5]

8 prompts x 4 completions of 64 tokens after prompts of 64, random Qwen3 weights, one AdamW update, float32. Each contender is a
process that takes one step a round, one after the other, so that all see the same load; the first steps of each compile and are
not counted. torch runs with OMP_WAIT_POLICY=PASSIVE and, as `trl (default)`, without. Prints medians (least to most) and ratios to ours.
--update: the rollouts of the first step are given again at each later one, so that loss, backward pass and optimizer are left
(and packing, on our side), beside the summed seconds of our update's own matrix products, each timed alone at its own shape.
--varied: completions end anywhere up to 192 tokens, after 61 in the mean (see step_worker.py).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from bench.arguments import interpreter, names, natural, positive
from bench.contender import PASSIVE, Contender, side_by_side, table
from bench.step_worker import SIZES

WORKER = Path(__file__).with_name("step_worker.py")
WARM_UP = {"step": 2, "varied": 4, "update": 2}  # rounds that are not counted; packed rows of any length make a few shapes
NEW = {"step": 64, "varied": 192, "update": 64}  # what is compared -> most tokens of a completion


def compare(
    size: str, *, torch: str = "", tunix: str = "", rounds: int = 5, new: int = 0, what: str = "step"
) -> dict[str, Any]:
    """One table: seconds a step of every contender whose interpreter is given. what: of NEW; new: 0 = what it says there."""
    wanted: dict[str, tuple[str, str, dict[str, str]]] = {"ours": (sys.executable, "ours", {})}
    if what == "update":
        wanted["matrix products alone"] = (sys.executable, "floor", {})
    if torch:
        wanted |= {"trl": (torch, "trl", PASSIVE), "trl (default)": (torch, "trl", {})}
    if tunix:
        wanted["tunix"] = (tunix, "tunix", {})
    new, skip = new or NEW[what], WARM_UP[what]
    running = {
        name: Contender([python, str(WORKER), who, size, str(new), what], ours=who in ("ours", "floor"), env=env, quiet=True)
        for name, (python, who, env) in wanted.items()
    }
    rows = side_by_side(running, rounds, skip)
    named = {"varied": f"step, completions of any length up to {new}"}.get(what, what)
    out = table(f"{size}: {named}", "seconds", rows)
    for name, found in running.items():
        first, last = found.answers[0], found.answers[-1]
        if "reward" in first:
            print(
                f"{name}: first {what} {first['seconds']:.1f} s, reward {first['reward']:.3f} at first, {last['reward']:.3f} at last"
            )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", type=interpreter, default="", help="interpreter with torch, transformers and trl")
    parser.add_argument("--tunix", type=interpreter, default="", help="interpreter with google-tunix")
    parser.add_argument("--sizes", type=names(SIZES), default="small,mid")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--new", type=natural, default=0, help="most tokens a completion; 0 = 64, and 192 where lengths vary")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--update", action="store_const", dest="what", const="update", default="step", help="on given rollouts")
    kinds.add_argument("--varied", action="store_const", dest="what", const="varied", help="completions of geometric length")
    args = parser.parse_args()
    for size in args.sizes:
        compare(size, torch=args.torch, tunix=args.tunix, rounds=args.rounds, new=args.new, what=args.what)


if __name__ == "__main__":
    main()
