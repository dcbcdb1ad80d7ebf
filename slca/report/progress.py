"""What a person at the terminal sees: bars for the phases, one line of metrics a step, the time that is left.

When the stream is not a terminal there are no bars and no control codes: one plain line a step, fit for a log file.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any, Protocol, TextIO

# What the line of a step shows, in this order, when present: the metric and its name there.
HEADLINE = {
    "sft/loss": "loss",
    "rollout/reward/tool": "tool",
    "rollout/reward/summary": "summary",
    "rollout/success@0.9": "success@0.9",
    "train/loss": "loss",
    "train/entropy": "entropy",
    "train/kl/old": "kl_old",
    "train/kl/reference": "kl_ref",
    "train/sampler_gap_max": "gap_max",
    "train/grad_norm": "grad_norm",
}
RECENT = 20  # steps whose median time estimates the rest
SILENCE = 20.0  # seconds after which a running phase says that it is alive, where there are no bars


class Advance(Protocol):
    def __call__(self, n: float = 1, **facts: float) -> None:
        """n more units are done; facts are shown beside the bar (tokens_per_second=, tool_waits=, ...)."""


class Progress:
    """Progress of a run.

    with Progress() as progress:
        progress.stage("rl", total=100, done=start)
        with progress.phase("rollout", total=rows) as advance:
            advance(8, tokens_per_second=950)
        progress.step(step, finalize(metrics))

    stream: default standard error; quiet: print nothing (processes other than 0); clock: seconds, for tests.
    """

    def __init__(
        self, stream: TextIO | None = None, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream or sys.stderr
        self.quiet = quiet
        self._clock = clock
        self._bars = None if quiet or not self._stream.isatty() else _bars(self._stream)
        self._stage_bar: Any = None
        self._phases: list[list[Any]] = []  # [name, total, done, began] of the phases that run, outermost first
        self._spoke = clock()
        self.stage("", 0)

    def stage(self, name: str, total: int, done: int = 0) -> None:
        """A new series of `total` steps begins (sft, rl); `done` of them were made before, by the run this one resumes."""
        self._name, self._total, self._durations = name, total, deque[float](maxlen=RECENT)
        self._last, self._first = self._clock(), True
        if self._bars is not None:
            if self._stage_bar is not None:
                self._bars.remove_task(self._stage_bar)
            self._stage_bar = self._bars.add_task(name, total=total, completed=done, facts="") if total else None

    @contextmanager
    def phase(self, name: str, total: float | None = None) -> Iterator[Advance]:
        """A bar while a phase runs (load, rollout, update, eval); where there are none, `pulse` speaks of it when it takes long."""
        bars, running = self._bars, list[Any]((name, total, 0.0, self._clock()))
        bar = None if bars is None else bars.add_task(f"  {name}", total=total, facts="")

        def advance(n: float = 1, **facts: float) -> None:
            running[2] += n
            if bars is not None:
                bars.update(bar, advance=n, **({"facts": _facts(facts)} if facts else {}))

        self._phases.append(running)
        try:
            yield advance
        finally:
            self._phases.remove(running)
            if bars is not None:
                bars.remove_task(bar)

    def pulse(self) -> None:
        """Called every few seconds, from any thread: break a long silence with a line about the phase that runs."""
        phases, now = list(self._phases), self._clock()
        if self._bars is None and phases and now - self._spoke >= SILENCE:
            name, total, done, began = phases[-1]
            count = "" if total is None else f" {done:.0f}/{total:.0f}"
            self.note(f"  {name}{count}, {duration(now - began)}")

    def step(self, step: int, values: Mapping[str, float], *, say: bool = True) -> None:
        """Step `step` (from 0) is done: print its line (`say`), move the bar, renew the estimate. The first step compiles: it is not typical."""
        now = self._clock()
        seconds, self._last = now - self._last, now
        if self._first:
            self._first, estimate = False, seconds
        else:
            self._durations.append(seconds)
            estimate = median(self._durations)
        left = max(self._total - step - 1, 0)
        words = [f"{self._name} {step + 1}/{self._total}"]
        words += [f"{label} {values[name]:.4g}" for name, label in HEADLINE.items() if name in values]
        words += [f"{seconds:.1f} s", f"ETA {duration(left * estimate)}"]
        if say:
            self.note("  ".join(words))
        if self._bars is not None and self._stage_bar is not None:
            self._bars.update(self._stage_bar, completed=step + 1, facts=f"ETA {duration(left * estimate)}")

    def note(self, text: str) -> None:
        """One line of text, above the bars."""
        if self.quiet:
            return
        self._spoke = self._clock()
        if self._bars is not None:
            self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _bars(stream: TextIO) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[facts]}", markup=False),
    )
    bars = Bars(*columns, console=Console(file=stream), transient=True)
    bars.start()
    return bars


def _facts(facts: Mapping[str, float]) -> str:
    return "  ".join(f"{name.replace('_per_', '/').replace('_', ' ')} {value:.4g}" for name, value in facts.items())


def duration(seconds: float) -> str:
    """Two units at most: 42 s, 3 min 05 s, 2 h 10 min, 1 d 3 h."""
    s = round(seconds)
    if s < 60:
        return f"{s} s"
    if s < 3600:
        return f"{s // 60} min {s % 60:02d} s"
    if s < 86_400:
        return f"{s // 3600} h {s % 3600 // 60:02d} min"
    return f"{s // 86_400} d {s % 86_400 // 3600} h"
