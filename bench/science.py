"""The science runs: every method from the same cold starts, and what comes out of it.

    python -m bench.science run --seeds=5 --jobs=2 [--part=base,noise,sparse] [--root=runs/science]
    python -m bench.science evaluate --seeds=5 --jobs=2 --tasks=2048   # their last checkpoints on more held-out tasks, sampled
    python -m bench.science collect [--results=bench/science.jsonl]   # a line for each finished run
    python -m bench.science report                            # of the lines: prints the tables (bench.figures draws)
    python -m bench.science list                              # the runs, and which are done

`run` is resumable: what has a line in the results is not made again (name another file to start anew), finished runs are skipped,
a killed one continues from its checkpoint. `evaluate` likewise leaves alone what it evaluated; a line without that is collected
again. Seeds are the outer loop, so that stopping early leaves a balanced table. A run takes 2 to 4 minutes of one core, a cold
start 9.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from bench import science_report
from bench.arguments import names, natural, output, positive, unknown_names
from slca.files import whole

BASE = ("slca", "grpo", "support_control", "toolpo", "rltr", "mix@0.5", "gigpo", "gdpo", "slca_state")
VARIED = ("slca", "grpo", "support_control", "mix@0.5", "slca_state")
METHODS = {"base": BASE, "noise": (*VARIED, "toolpo", "rltr")}  # of a part; VARIED in the others
# part -> {name: conditions of configs/science.py}
PARTS = {
    "base": {"base": ()},
    "noise": {f"noise {ratio}": (f"noise={ratio}",) for ratio in ("0.5", "1", "3")},
    "correlation": {f"noise 1, rho {rho}": ("noise=1", f"rho={rho}") for rho in ("-0.5", "0.5")},
    "sparse": {"sparse execution reward": ("sparse",)},
    "no_hierr": {"w/o HierR": ("no_hierr",)},
}


@dataclass(frozen=True)
class Run:
    """One training run. condition: its name in the tables; conditions: what configs/science.py is told."""

    condition: str
    algorithm: str
    seed: int
    conditions: tuple[str, ...] = field(default=(), compare=False)

    def folder(self, root: Path) -> Path:
        return root / science_report.file_name(self.condition) / f"{self.algorithm}-{self.seed}"

    def __str__(self) -> str:
        return f"{self.condition} · {self.algorithm} · seed {self.seed}"

    def log(self, root: Path) -> Path:
        folder = self.folder(root)
        return root / "logs" / f"{folder.parent.name}-{folder.name}.log"

    def cold(self, cold_starts: int) -> int:
        """The seed of the cold start: its own, or in turn one of the first `cold_starts`, whatever the method and the condition."""
        return self.seed % cold_starts if cold_starts else self.seed

    def command(self, root: Path, extra: tuple[str, ...] = (), cold_starts: int = 0) -> list[str]:
        argument = ",".join((self.algorithm, *self.conditions))
        return [
            sys.executable, "-m", "slca.main", f"--config=configs/science.py:{argument}", f"--workdir={self.folder(root)}",
            f"--config.run.seed={self.seed}", f"--config.checkpoint.init={cold_start(root, self.cold(cold_starts))}", *extra,
        ]  # fmt: skip

    def evaluation(self, root: Path, tasks: int) -> list[str]:
        """Evaluates what it learnt on so many held-out tasks, sampled at T = 1, into `science_report.EVALUATION`."""
        folder = self.folder(root)
        return [
            sys.executable, "-m", "slca.evals.indomain", f"--checkpoint={folder}", f"--tasks={tasks}", "--splits=heldout_tasks",
            "--temperatures=1", f"--out={folder / science_report.EVALUATION}",
        ]  # fmt: skip


def cold_start(root: Path, seed: int) -> Path:
    return root / f"sft-{seed}"


def runs(parts: tuple[str, ...], seeds: int) -> list[Run]:
    """Seeds outermost, then parts in their order."""
    found = []
    for seed in range(seeds):
        for part in parts:
            for condition, conditions in PARTS[part].items():
                found += [Run(condition, name, seed, conditions) for name in METHODS.get(part, VARIED)]
    return found


def collected(results: Path) -> list[dict[str, Any]]:
    """The lines of earlier `collect`s, none where there is no file. Raises ValueError, with its place, for any other line."""
    if results.is_dir():
        raise ValueError(f"{results} is a folder; name a file in it")
    found: list[dict[str, Any]] = []
    for number, text in enumerate(results.read_bytes().splitlines() if results.is_file() else (), 1):
        try:
            line = json.loads(text)
            condition, algorithm, seed = line["run"]
            fine = isinstance(line["numbers"], dict) and isinstance(line["curves"], dict)
            fine = fine and isinstance(condition, str) and isinstance(algorithm, str) and isinstance(seed, int)
        except (ValueError, TypeError, KeyError):
            fine = False
        if not fine:
            raise ValueError(f"{results}, line {number}: not a line that `bench.science collect` writes; name another file")
        found.append(line)
    return found


def finished(folder: Path, last: str = "after RL") -> bool:
    """Whether the run wrote its last evaluation; of a cold start that is another. The file itself is there from the first one on."""
    results = folder / "results.json"
    return results.is_file() and any(row["name"] == last for row in json.loads(results.read_text())["rows"])


def make(command: list[str], log: Path, cores: list[int]) -> int:
    """Run one command on these cores (everywhere, where the system has no `taskset`); its exit code."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if cores and (taskset := shutil.which("taskset")):
        command = [taskset, "-c", ",".join(map(str, cores)), *command]
    with open(log, "a") as out:
        return subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False).returncode


def worker(jobs: int) -> Callable[..., int]:
    """What runs one named command at a time on a free share of the machine's cores, dealt out among the jobs: models this small
    gain less from a second core than a second run does. Gives the exit code; 1, unrun, where the cold start it needs failed."""
    lanes: SimpleQueue[list[int]] = SimpleQueue()
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    for k in range(jobs):
        lanes.put(cores[k::jobs])

    def one(name: str, command: list[str], log: Path, needs: Future[int] | None = None) -> int:
        if needs and needs.result():
            print(f"{name}: its cold start failed", flush=True)
            return 1
        lane = lanes.get()
        print(name, flush=True)
        code = make(command, log, lane)
        lanes.put(lane)
        if code:
            print(f"{name}: exit code {code}, see {log}", flush=True)
        return code

    return one


def run_all(root: Path, wanted: list[Run], jobs: int, extra: tuple[str, ...] = (), cold_starts: int = 0) -> int:
    """Cold starts first, then the runs that are not finished, `jobs` side by side; returns how many failed."""
    one = worker(jobs)
    with ThreadPoolExecutor(jobs) as pool:
        cold: dict[int, Future[int] | None] = {}
        for seed in sorted({run.cold(cold_starts) for run in wanted}):
            folder, log = cold_start(root, seed), root / "logs" / f"sft-{seed}.log"
            command = [
                sys.executable,
                "-m",
                "slca.main",
                "--config=configs/science.py:sft",
                f"--workdir={folder}",
                f"--config.run.seed={seed}",
                *extra,
            ]
            ready = finished(folder, "after SFT")
            cold[seed] = None if ready else pool.submit(one, f"cold start {seed}", command, log)
        made = [job for job in cold.values() if job]
        for run in wanted:  # queued behind the cold starts, so no job waits for one that has not begun
            folder = run.folder(root)
            if not finished(folder):
                command = run.command(root, extra, cold_starts)
                made.append(pool.submit(one, str(run), command, run.log(root), cold[run.cold(cold_starts)]))
        return sum(job.result() != 0 for job in made)


def evaluate_all(root: Path, wanted: list[Run], jobs: int, tasks: int) -> int:
    """Evaluate the finished runs that have no evaluation on as many tasks, `jobs` side by side; returns how many failed."""
    one = worker(jobs)
    open_ = [run for run in wanted if finished(run.folder(root)) and science_report.evaluated(run.folder(root)) < tasks]
    print(f"{len(open_)} of {len(wanted)} runs are finished and not evaluated on {tasks} tasks", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        made = [pool.submit(one, str(run), run.evaluation(root, tasks), run.log(root)) for run in open_]
        return sum(job.result() != 0 for job in made)


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="bench.science", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("action", choices=("run", "evaluate", "collect", "report", "list"))
    out.add_argument("--root", type=Path, default=Path("runs/science"))
    out.add_argument("--results", type=Path, default=Path(__file__).with_name("science.jsonl"), help="what collect writes")
    out.add_argument("--seeds", type=positive, default=5)
    out.add_argument("--cold-starts", type=natural, default=0, help="seeds share so many in turn; 0: each has its own")
    out.add_argument("--jobs", type=positive, default=1, help="runs side by side, each on its share of the cores")
    out.add_argument("--tasks", type=positive, default=2048, help="what evaluate takes")
    out.add_argument("--part", type=names(PARTS), default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    out.add_argument("--algorithms", default="", help="only these")
    out.add_argument(
        "--conditions", default="", help='only these of the parts\' conditions, e.g. --conditions="noise 3;noise 1"'
    )
    out.add_argument("--set", action="append", default=[], help="a further flag of slca.main, e.g. --config.train.steps=2")
    return out


def chosen(options: argparse.ArgumentParser, arguments: argparse.Namespace) -> list[Run]:
    """The runs of these parts, conditions and algorithms; leaves with a message where one of the names has none."""
    wanted = runs(tuple(arguments.part), arguments.seeds)
    for flag, column, split in (("conditions", "condition", ";"), ("algorithms", "algorithm", ",")):
        if given := getattr(arguments, flag):
            known, named = {getattr(run, column): None for run in wanted}, given.split(split)
            if unknown := sorted(set(named) - set(known)):
                options.error(f"--{flag}: {unknown_names(unknown, known, split)} (in what else is selected)")
            wanted = [run for run in wanted if getattr(run, column) in named]
    return wanted


def collect(root: Path, results: Path, wanted: list[Run], lines: dict[Run, dict[str, Any]]) -> tuple[int, int]:
    """Put a line for each finished run behind those there are, or in its place where the run was evaluated on more tasks since;
    how many (new, replaced)."""
    found = dict(lines)
    for run in wanted:
        tasks = lines[run]["numbers"].get(science_report.TASKS, 0) if run in lines else -1
        folder = run.folder(root)
        if finished(folder) and science_report.evaluated(folder) > tasks:
            found[run] = {"run": (run.condition, run.algorithm, run.seed)} | science_report.outcome(folder)
    results.parent.mkdir(parents=True, exist_ok=True)
    with whole(results) as file:
        file.write_text("".join(json.dumps(line) + "\n" for line in found.values()))
    return len(found) - len(lines), sum(found[run] is not line for run, line in lines.items())


def main(argv: list[str] | None = None) -> int:
    options = parser()
    arguments = options.parse_args(argv)
    wanted = chosen(options, arguments)
    try:
        lines = {Run(*line["run"]): line for line in collected(arguments.results)}
    except ValueError as wrong:
        options.error(f"--results: {wrong}")
    if arguments.action == "list":
        for run in wanted:
            done = run in lines or finished(run.folder(arguments.root))
            print("done" if done else "open", run.condition, run.algorithm, run.seed, sep="\t")
        return 0
    if arguments.action in ("evaluate", "collect") and not arguments.root.is_dir():
        options.error(f"--root={arguments.root}: there is no such folder; `bench.science run` fills it")
    if arguments.action == "evaluate":
        return 1 if evaluate_all(arguments.root, wanted, arguments.jobs, arguments.tasks) else 0
    if arguments.action == "run":
        todo = [run for run in wanted if run not in lines]
        return 1 if run_all(arguments.root, todo, arguments.jobs, tuple(arguments.set), arguments.cold_starts) else 0
    if arguments.action == "collect":
        try:
            output(str(arguments.results))
        except argparse.ArgumentTypeError as wrong:
            options.error(f"--results={wrong}")
        added, replaced = collect(arguments.root, arguments.results, wanted, lines)
        print(f"{added} runs added to {arguments.results}, which had {len(lines)}; {replaced} of those replaced")
        return 0
    if not (found := [lines[run] for run in wanted if run in lines]):
        there = f"{len(lines)} lines, none" if arguments.results.exists() else "no such file, no lines"
        options.error(f"--results={arguments.results}: {there} for this selection; `bench.science collect` adds them")
    science_report.report(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
