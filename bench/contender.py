"""Contenders of a comparison: processes that answer a line with a line of JSON, each in an interpreter of its own.

They stay alive and are asked in turns, so that all of them see the same load; what a first question compiles is not counted.
Results are kept as plain records (`Row`, `record`) that go into one JSON file and from there into the figures.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAUSE = 0.3  # seconds between two contenders: threads of the one before stop spinning
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}  # torch's threads sleep while they wait, as they must where cores are shared
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # as slca.main starts itself; every contender gets it
PACKAGES = ("jax", "flax", "optax", "torch", "transformers", "trl", "google-tunix")


class Contender:
    """A worker process and its answers.

    command: interpreter, script and arguments. ours: whether the script imports the project (a peer must not). env: added to the
    environment. quiet: throw away what it writes to stderr.
    """

    def __init__(self, command: Sequence[str], *, ours: bool, env: Mapping[str, str] | None = None, quiet: bool = False):
        environment = HUGE_PAGES | os.environ | {"PYTHONPATH": str(ROOT) if ours else ""} | dict(env or {})
        stderr = subprocess.DEVNULL if quiet else None
        self.process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
        )
        self.answers: list[dict[str, Any]] = []

    def ask(self, line: str = "go") -> dict[str, Any]:
        """Send one line, wait for the answer. Raises SystemExit when the process has ended."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise SystemExit(f"a contender ended ({self.process.wait()}): {' '.join(map(str, self.process.args))}")  # type: ignore[arg-type]
        return json.loads(answer)

    def column(self, name: str = "seconds", skip: int = 0) -> list[float]:
        """One number of every kept answer, the first `skip` left out."""
        return [answer[name] for answer in self.answers[skip:]]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def in_turns(contenders: Mapping[str, Contender], rounds: int, line: str = "go") -> None:
    """Ask each once a round, one after the other; the answers stay with them."""
    for _ in range(rounds):
        for contender in contenders.values():
            time.sleep(PAUSE)
            contender.answers.append(contender.ask(line))


def peer(venvs: str | Path | None, name: str) -> str:
    """Interpreter of an environment that bench/venvs.sh built under `venvs`; "" when there is none."""
    found = Path(venvs) / name / "bin" / "python" if venvs else None
    return str(found) if found and found.exists() else ""


def versions(python: str = sys.executable) -> dict[str, str]:
    """Versions of Python and of those of PACKAGES that the interpreter has."""
    script = (
        "import json, platform, sys; from importlib import metadata\n"
        "found = {'python': platform.python_version()}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = metadata.version(name)\n"
        "    except metadata.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    out = subprocess.run([python, "-c", script, *PACKAGES], capture_output=True, text=True, check=True)
    return json.loads(out.stdout)


class Row(NamedTuple):
    """A contender of a table: the value of every round, and ours in the same rounds for the ratio (None: no ratio)."""

    name: str
    values: Sequence[float]
    ours: Sequence[float] | None = None

    def record(self) -> dict[str, Any]:
        """Median, least and most of the values, and of the ratio theirs / ours round by round."""
        out: dict[str, Any] = {"name": self.name, "values": list(self.values)} | summary(self.values)
        if self.ours is not None:
            out["ratio"] = summary([theirs / own for theirs, own in zip(self.values, self.ours, strict=True)])
        return out


def summary(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def side_by_side(running: Mapping[str, Contender], rounds: int, skip: int) -> list[Row]:
    """A row of seconds each, with the ratio to `ours`, after `skip` further rounds that are not counted. Stops them, whatever happens."""
    try:
        in_turns(running, skip + rounds)
    finally:
        for contender in running.values():
            contender.stop()
    own = running["ours"].column(skip=skip)
    return [Row(name, found.column(skip=skip), own) for name, found in running.items()]


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Median (least to most)."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def table(title: str, unit: str, rows: Sequence[Row], form: str = ".3f") -> dict[str, Any]:
    """Print rows as markdown and return them as a record of the results file."""
    print(f"\n{title}\n\n| | {unit}: median (least to most) | ours is faster by |\n|---|---|---|")
    for row in rows:
        ratio = "" if row.ours is None else spread([a / b for a, b in zip(row.values, row.ours, strict=True)])
        print(f"| {row.name} | {spread(row.values, form)} | {ratio} |", flush=True)
    return {"title": title, "unit": unit, "rows": [row.record() for row in rows]}


def machine() -> dict[str, Any]:
    """What the numbers were made on; the load says whether it was quiet."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return {"processor": processor(), "cores": os.cpu_count(), "load": round(load, 1)}


def processor() -> str:
    info = Path("/proc/cpuinfo")
    names = (
        [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    return names[0] if names else platform.processor() or platform.machine()


def write(out: str | Path, comparison: str, tables: Sequence[dict[str, Any]], **facts: Any) -> None:
    """The results file: what was compared, on what, the tables."""
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"comparison": comparison, "machine": machine(), **facts, "tables": list(tables)}, indent=1)
    path.write_text(text + "\n")
