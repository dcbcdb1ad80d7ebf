"""Start-up: seconds from the start of a fresh process to the end of its first RL step, by phase, with a cold and a warm compile cache.

    python -m bench.startup [--rounds 5] [--config tiny]

configs/tiny.py without its cold start: interpreter and imports, config (read, looked through, tasks opened), parts (tokenizer, template,
simulator), parameters and optimizer, first step, second step (what a step costs once everything is compiled). Each round starts one
process with an empty compile cache and two that find it filled; huge pages are asked for as `slca.main` does. Goal: at most 10 s
to the end of the first step, warm. Medians (least to most); the cold rounds are as many as --cold says.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.arguments import positive
from bench.contender import ROOT, Row, table

PHASES = ("imports", "config", "parts", "parameters", "first step", "second step")
FIRST = PHASES[:-1]  # what a user waits for


def child(name: str, began: float) -> dict[str, float]:
    """The phases of one process, in seconds; `began` is the clock of the parent when it started it."""
    marks = {"began": began}

    def mark(phase: str) -> None:
        marks[phase] = time.time()

    import jax

    from slca.assemble import assemble, initial_params
    from slca.learn.sharding import settled
    from slca.learn.update import init_state
    from slca.phases import phase_optimizer
    from slca.reinforce import make_step
    from slca.start import prepare
    from slca.tasks.datasets import stream

    mark("imports")
    config = importlib.import_module(f"configs.{name}").get_config()
    config.sft.steps = 0
    record = prepare(config.lock())
    mark("config")
    parts = assemble(config, record)
    mark("parts")
    params, tx = initial_params(config, parts), phase_optimizer(config, parts.model, "rl")
    state = settled(init_state(params, tx, jax.random.key(config.run.seed)))
    jax.block_until_ready(state)
    mark("parameters")
    step = make_step(config, parts, tx)
    tasks = stream(config.tasks, "train", config.run.seed + 1)
    for number, phase in enumerate(PHASES[-2:]):
        state, _ = step(state, tasks.next(config.rollout.prompts), number)
        jax.block_until_ready(state)
        mark(phase)
    times = list(marks.values())
    return dict(zip(PHASES, (b - a for a, b in pairwise(times)), strict=True))


def start(name: str, cache: Path) -> dict[str, float]:
    """Run one fresh process with this compile cache; its phases and `total`, the seconds to the end of the first step."""
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "PYTHONPATH": str(ROOT),
        "TRANSFORMERS_VERBOSITY": "error",
    }
    # what slca.assemble sets for the cache it chooses itself
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    command = [sys.executable, "-m", "bench.startup", "--child", repr(time.time()), "--config", name]
    found = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    if found.returncode:
        raise SystemExit(f"bench.startup: the process that was started ended with {found.returncode}")
    phases = json.loads(found.stdout.splitlines()[-1])
    return phases | {"total": sum(phases[phase] for phase in FIRST)}


def compare(name: str = "tiny", *, rounds: int = 5, cold: int = 1) -> list[dict[str, Any]]:
    """Two tables, cold and warm: seconds of every phase. rounds: warm processes."""
    found: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    cache = Path(tempfile.mkdtemp(prefix="slca-startup-"))
    try:
        for number in range(cold):
            folder = cache / str(number)
            found["cold"].append(start(name, folder))
            for _ in range(-(-rounds // cold)):
                found["warm"].append(start(name, folder))
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    tables = []
    for kind, runs in found.items():
        rows = [Row(phase, [run[phase] for run in runs]) for phase in (*PHASES[:-1], "total", PHASES[-1])]
        tables.append(table(f"{kind} compile cache, {len(runs)} processes", "seconds", rows, form=".2f"))
    return tables


def main() -> None:
    configs = sorted(path.stem for path in (ROOT / "configs").glob("[!_]*.py"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="tiny", choices=configs, help="a module of configs/")
    parser.add_argument("--rounds", type=positive, default=5, help="warm processes")
    parser.add_argument(
        "--cold", type=positive, default=1, help="processes with an empty cache; the warm ones are shared out among them"
    )
    parser.add_argument("--child", type=float, default=0.0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args.config, args.child)))
        return
    compare(args.config, rounds=args.rounds, cold=args.cold)


if __name__ == "__main__":
    main()
