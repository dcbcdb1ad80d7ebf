"""How our step time grows: with the group, the turns, the prompt and the model. Exponents fitted and set beside what is expected.

    python -m bench.scaling [group] [turns] [prompt] [model] [--rounds 5]

A step is a whole multi-turn tool step (`bench.tool_step`): rollout over the engine, credit, packing, update. Around one small case
(2 prompts x 4 episodes of 2 turns) one size is varied at a time, over a factor of 8; the sizes of an axis are run in turns. The
exponent b of seconds = a * size^b is the slope of log seconds over log size by least squares over all rounds, with a 95 % interval of
Student's t; `prefill` is the seconds that the prompts of a step alone take to run through the model.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bench.arguments import positive, unknown_names
from bench.contender import Row, table
from bench.tool_step import Shape, ToolStep, tokens
from slca.policy import transformer
from slca.policy.config import ModelConfig

BASE = Shape(prompts=2, group=4, turns=2, length=64, new=16, result=16)
WIDTHS = (64, 96, 128, 192)  # of 4 layers; the parameters are 4 x what the matrices of a width square
PHASES = ("seconds", "rollout", "update", "prefill")


class Axis(NamedTuple):
    """sizes: values of the x axis; case(size) -> (model, shape); expected: phase -> (exponent, why)."""

    name: str
    sizes: tuple[int, ...]
    case: Callable[[int], tuple[ModelConfig, Shape]]
    expected: dict[str, tuple[str, str]]


class Fit(NamedTuple):
    """seconds = scale * size^exponent; low, high: the 95 % interval of the exponent, NaN for fewer than three points."""

    exponent: float
    low: float
    high: float
    scale: float


def model(width: int = 96) -> ModelConfig:
    return ModelConfig(
        "qwen3", vocab=1024, width=width, layers=4, heads=4, kv_heads=2, head_dim=width // 4, ff=4 * width, max_length=4096,
        remat="block",
    )  # fmt: skip


def parameters(width: int) -> int:
    shapes = transformer.param_shapes(model(width))
    return sum(math.prod(shape) for shape in jax.tree.leaves(shapes, is_leaf=lambda x: isinstance(x, tuple)))


AXES = {
    "group": Axis(
        "group", (4, 8, 16, 32), lambda G: (model(), BASE._replace(group=G)),
        {
            "seconds": ("at most 1", "rows grow with G; what is done once a prompt or once a call of a program does not"),
            "rollout": ("at most 1", "a decode step reads the weights once for all rows, so more rows cost less than in proportion"),
            "update": ("1", "tokens to train on grow with G, in packed rows of the same length"),
            "prefill": ("0", "a prompt is prefilled once, whatever G is: prefill cost is independent of G"),
        },
    ),
    "turns": Axis(
        "turns", (2, 4, 8, 16), lambda n: (model(), BASE._replace(turns=n)),
        {
            "seconds": ("about 1", "each turn adds as many tokens; a cache that is kept makes the work linear, prefilling again would make it quadratic"),
            "rollout": ("about 1", "a turn decodes its own tokens and appends one result, nothing of earlier turns is computed again"),
            "update": ("below 1 here", "rows grow by the turn, but the prompt is in every row from the start"),
            "prefill": ("0", "the prompt does not change with the turns"),
        },
    ),
    "prompt": Axis(
        "prompt", (64, 128, 256, 512), lambda T: (model(), BASE._replace(length=T)),
        {
            "seconds": ("below 1", "sampling costs the same for any prompt but for reading its cache; the update sees the prompt in every row"),
            "rollout": ("well below 1", "a prompt is prefilled once a group; decoding only reads a longer cache"),
            "update": ("1 to 2 in the long run", "rows grow with the prompt, attention inside them with its square"),
            "prefill": ("1 to 2", "linear in the matrices, quadratic in attention, and a fixed cost of a call where prompts are short"),
        },
    ),
    "model": Axis(
        "model", tuple(map(parameters, WIDTHS)), lambda n: (model(WIDTHS[[parameters(w) for w in WIDTHS].index(n)]), BASE),
        {
            "seconds": ("at most 1", "arithmetic grows with the parameters, overheads of calls and attention do not"),
            "rollout": ("below 1", "decoding a few rows of a small model is mostly the cost of many small operations"),
            "update": ("about 1", "6 FLOPs a parameter and token; wider products run nearer the machine's peak"),
            "prefill": ("about 1", "2 FLOPs a parameter and token"),
        },
    ),
}  # fmt: skip


def fit(sizes: Sequence[float], seconds: Sequence[float]) -> Fit:
    """Slope of log seconds over log size by least squares. Raises ValueError for fewer than two sizes or what has no logarithm."""
    from scipy import stats

    if len(set(sizes)) < 2 or min(sizes) <= 0 or min(seconds) <= 0:
        raise ValueError(
            f"fit: needs two sizes and positive numbers, got sizes {sorted(set(sizes))}, least seconds {min(seconds)}"
        )
    x, y = np.log(np.asarray(sizes, np.float64)), np.log(np.asarray(seconds, np.float64))
    spread = ((x - x.mean()) ** 2).sum()
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread)
    scale = float(np.exp(y.mean() - slope * x.mean()))
    if len(x) < 3:
        return Fit(slope, math.nan, math.nan, scale)
    residual = ((y - y.mean() - slope * (x - x.mean())) ** 2).sum() / (len(x) - 2)
    half = float(stats.t.ppf(0.975, len(x) - 2) * math.sqrt(residual / spread))
    return Fit(slope, slope - half, slope + half, scale)


class Case:
    """One size of an axis: its step and its state."""

    def __init__(self, config: ModelConfig, shape: Shape):
        self.own = ToolStep(config, shape, micro_rows=2)
        self.state, self.number = self.own.init(), 0

    def step(self) -> dict[str, float]:
        """Seconds of a step by phase; those of the prefill are taken alone, afterwards."""
        self.state, seconds, _ = self.own.step(self.state, self.number)
        shape, vocab = self.own.shape, self.own.model.vocab
        prompts = [tokens(1_000_000 + self.number * shape.prompts + n, shape.length, vocab) for n in range(shape.prompts)]
        self.number += 1
        began = time.perf_counter()
        jax.block_until_ready(self.own.sampler.prefill(self.state.params, prompts).chunks)
        return {"prefill": time.perf_counter() - began} | seconds


def measure(axis: Axis, rounds: int) -> dict[str, Any]:
    """Run the sizes of an axis in turns; print seconds, exponents and what was expected."""
    cases = {size: Case(*axis.case(size)) for size in axis.sizes}
    found: dict[int, list[dict[str, float]]] = {size: [] for size in axis.sizes}
    for number in range(rounds + 2):  # two compile, the first one also for a batch of another size
        for size, case in cases.items():
            seconds = case.step()
            if number > 1:
                found[size].append(seconds)
    rows = [Row(f"{axis.name} {size:,}", [run["seconds"] for run in runs]) for size, runs in found.items()]
    out = table(f"seconds a step against {axis.name}", "seconds", rows)
    out |= {"axis": axis.name, "sizes": list(axis.sizes), "runs": {str(size): runs for size, runs in found.items()}, "fits": {}}
    print()
    for phase in PHASES:
        points = [(size, run[phase]) for size, runs in found.items() for run in runs]
        fitted = fit([size for size, _ in points], [seconds for _, seconds in points])
        expected, why = axis.expected[phase]
        out["fits"][phase] = fitted._asdict() | {"expected": expected}
        name = "step" if phase == "seconds" else phase
        print(
            f"{axis.name}, {name}: exponent {fitted.exponent:.2f} ({fitted.low:.2f} to {fitted.high:.2f}); expected {expected}: {why}."
        )
    return out


def compare(names: Sequence[str] = tuple(AXES), *, rounds: int = 5) -> list[dict[str, Any]]:
    """One table an axis."""
    return [measure(AXES[name], rounds) for name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axes", nargs="*", default=list(AXES), help=f"of {', '.join(AXES)}")
    parser.add_argument("--rounds", type=positive, default=5)
    args = parser.parse_args()
    if unknown := sorted(set(args.axes) - set(AXES)):
        parser.error(unknown_names(unknown, AXES))
    compare(args.axes, rounds=args.rounds)


if __name__ == "__main__":
    main()
