"""A long run of the smallest config: memory, compiled programs and open files must not grow.

    python -m bench.soak [--steps 500] [--workdir FOLDER]      # prints a table, exit code 1 when something grew

`slca.main` runs in a process of its own; its open files are counted from outside, everything else is read from its metrics.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from bench.arguments import at_least
from slca.report import metrics

FIELDS = {
    "model.width": 32, "model.layers": 2, "model.heads": 2, "model.kv_heads": 1, "model.head_dim": 16, "model.ff": 64,
    "tasks.domains": "('weather',)", "sft.steps": 40, "sft.batch_rows": 2, "sft.row_length": 320, "train.micro_rows": 2,
    "rollout.prompts": 2, "rollout.group": 2, "rollout.max_turn_tokens": 24, "eval.tasks": 4, "eval.splits": "('heldout_tasks',)",
    "checkpoint.every": 25, "report.episodes_every": 25, "eval.every": 100,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=at_least(10), default=500)
    parser.add_argument("--workdir", default=tempfile.mkdtemp(prefix="slca-soak-"))
    args = parser.parse_args()
    flags = [f"--config.{name}={value}" for name, value in {**FIELDS, "train.steps": args.steps}.items()]
    command = [sys.executable, "-m", "slca.main", "--config=configs/tiny.py", f"--workdir={args.workdir}", *flags]
    began, files = time.monotonic(), list[tuple[int, int]]()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        time.sleep(2.0)
        rl = [row["step"] for row in metrics.read(args.workdir) if row["phase"] == "rl"]
        try:
            files.append((rl[-1] if rl else 0, len(os.listdir(f"/proc/{process.pid}/fd"))))
        except OSError:
            continue
    if process.returncode:
        print(f"slca.main ended with {process.returncode}", file=sys.stderr)
        return 1
    return report(Path(args.workdir), args.steps, files, time.monotonic() - began)


def report(workdir: Path, steps: int, files: list[tuple[int, int]], seconds: float) -> int:
    """Compare the second tenth of the run with its last tenth; print it; 1 when something grew."""
    rows = [row for row in metrics.read(workdir) if row["phase"] == "rl"]
    tenth = steps // 10

    def median(values: list[float]) -> float:
        return statistics.median(values) if values else float("nan")

    early, late = rows[tenth : 2 * tenth], rows[-tenth:]
    rss = [median([row["sys/rss"] for row in part]) for part in (early, late)]
    growth = 100 * (rss[1] / rss[0] - 1)
    compiles = [row["sys/compiles_all"] for row in rows]
    opened = [
        median([n for step, n in files if low <= step <= high]) for low, high in ((tenth, 2 * tenth), (steps - tenth, steps))
    ]
    pace = [median([row["time/step"] for row in part]) for part in (early, late)]
    print(f"{steps} RL steps, {seconds:.0f} s. Medians of the second tenth of the run and of its last tenth:")
    print("| | early | late | change |\n|---|---|---|---|")
    print(f"| resident memory, MiB | {rss[0] / 2**20:.1f} | {rss[1] / 2**20:.1f} | {growth:+.1f} % |")
    print(f"| open files | {opened[0]:.0f} | {opened[1]:.0f} | {opened[1] - opened[0]:+.0f} |")
    print(f"| seconds a step | {pace[0]:.3f} | {pace[1]:.3f} | |")
    later = compiles[-1] - compiles[2]
    at = [row["step"] for before, row in pairwise(rows[2:]) if row["sys/compiles_all"] > before["sys/compiles_all"]]
    print(f"compiled up to step 3: {compiles[2]:.0f}; afterwards: {later:.0f}{f', in steps {at}' if at else ''}")
    return int(abs(growth) > 5 or later > 0 or opened[1] > opened[0])


if __name__ == "__main__":
    sys.exit(main())
