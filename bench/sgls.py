"""Simulated calls a second on real API schemas, and what each step of a call costs.

    pip install 'slca[botocore]' && python -m bench.sgls        # about half a minute on one core

One thread, over 1,000 botocore operations with a valid and an invalid call each: how many are answered within the output shape
or refused with a type, and the speed of the scripted backend without and with cache hits, of refusals, and of the on-disk store.
CPU seconds and wall seconds (they differ where the machine is shared).
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import arguments
from slca.sgls.simulator import Simulator
from slca.tasks import aws
from slca.tasks.schema import ToolSet
from slca.tasks.values import argument
from slca.types import Context, ToolCall

OPERATIONS = 1000
REPEATS = 5


def outcomes(toolset: ToolSet, valid: list[ToolCall], invalid: list[ToolCall]) -> str:
    """What became of the calls: answers within the output shape, refusals with a type."""
    simulator = Simulator(max_chars=1 << 20)
    answers = [(call, simulator.simulate(call, toolset, Context("check"))) for call in valid]
    fits = sum(
        answer.status == "ok" and not toolset.tools[call.name].check_response(json.loads(answer.text))
        for call, answer in answers
    )
    typed = sum(
        simulator.simulate(call, toolset, Context("check")).status in ("invalid_arguments", "unknown_tool") for call in invalid
    )
    return (
        f"{fits} of {len(valid)} valid calls answered within the output shape, {typed} of {len(invalid)} invalid ones refused"
    )


def rate(
    simulate: Callable[[ToolCall, Context], object], calls: list[ToolCall], groups: list[str]
) -> tuple[list[float], list[float]]:
    """Calls a second of CPU and of wall time, one number a group, sorted."""
    found = []
    for group in groups:
        cpu, wall = time.process_time(), time.perf_counter()
        for call in calls:
            simulate(call, Context(group))
        found.append((len(calls) / (time.process_time() - cpu), len(calls) / (time.perf_counter() - wall)))
    cpu, wall = zip(*found)
    return sorted(cpu), sorted(wall)


def main() -> None:
    arguments.none("bench.sgls", __doc__)
    toolset = ToolSet.load(aws.botocore(operations=50))
    rng = random.Random(0)
    tools = list(toolset.tools.values())[:OPERATIONS]
    valid = [ToolCall(tool.name, argument(tool.parameters, rng)) for tool in tools]
    # Every argument of another type; where there is none to spoil, a name that no tool has.
    invalid = [ToolCall(call.name + "x" * (not call.arguments), {name: [[]] for name in call.arguments}) for call in valid]
    groups = [f"group {i}" for i in range(REPEATS)]
    plain, cached = Simulator(cache="none"), Simulator()
    with tempfile.TemporaryDirectory() as folder:
        stored = Simulator(store=str(Path(folder) / "store.db"))
        rows = {
            "scripted": lambda: rate(lambda call, context: plain.simulate(call, toolset, context), valid, groups),
            "scripted, first time in a cache": lambda: rate(
                lambda c, context: cached.simulate(c, toolset, context), valid, groups
            ),
            "cache hit": lambda: rate(lambda call, _: cached.simulate(call, toolset, Context(groups[0])), valid, groups),
            "refused": lambda: rate(lambda c, context: plain.simulate(c, toolset, context), invalid, groups),
            "scripted, written to a store": lambda: rate(
                lambda c, context: stored.simulate(c, toolset, context), valid, groups[:2]
            ),
        }
        for call in valid:  # warm-up: schemas compiled, meanings of names cached
            plain.simulate(call, toolset, Context("warm-up"))
        print(outcomes(toolset, valid, invalid))
        print("One thread; median (least to most) | calls/CPU s | calls/s")
        for name, measure in rows.items():
            shown = [f"{x[len(x) // 2]:,.0f} ({x[0]:,.0f} to {x[-1]:,.0f})" for x in measure()]
            print(" | ".join([name, *shown]))
        stored.close()


if __name__ == "__main__":
    main()
