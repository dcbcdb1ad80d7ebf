"""Evaluations of a run: before it, between its phases, in the middle of RL and after it; what they say in metrics and in checkpoints."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from slca import processes
from slca.assemble import Parts
from slca.evals.indomain import evaluate
from slca.reinforce import follow
from slca.report.metrics import finalize, merge
from slca.tasks.datasets import evaluation_tasks

log = logging.getLogger("slca")


def run_stage(name: str, params: Any, config: Any, parts: Parts, phase: Any, heed: Callable[[], None]) -> list[dict[str, Any]]:
    """A row of results a split and temperature; the tasks and the draws are the same every time.

    params, parts: as this process uses them alone (`own_parts`); each evaluates its own tasks. phase(name, total): the context of a
    phase, which gives advance(n). heed is called as the evaluation goes on and may raise to give it up.
    """
    rows = []
    for split in config.eval.splits:
        tasks = evaluation_tasks(config.tasks, split, config.eval.tasks, config.eval.seed)
        for temperature in config.eval.temperatures:
            began, what = time.monotonic(), f"{name} · {split} · T={temperature:g}"
            with phase(what, len(processes.own(tasks))) as advance:
                heard = _heeding(follow(advance), heed)
                found = evaluate(
                    params, processes.own(tasks), parts.sampler, parts.template, parts.simulator, config,
                    temperature=temperature, seed=config.eval.seed, progress=heard,
                )  # fmt: skip
                metrics = finalize(merge(*processes.gather_json(found)))
            parts.simulator.metrics(reset=True)  # its counters speak of training steps
            rows.append({"name": name, "split": split, "temperature": temperature, "n": len(tasks), "metrics": metrics})
            log.info(
                "%s: success@0.9 %.3f, summary %.3f (%d tasks, %.1f s)", what, metrics.get("success@0.9", float("nan")),
                metrics.get("summary", float("nan")), len(tasks), time.monotonic() - began,
            )  # fmt: skip
    return rows


def named_scores(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The rows of an evaluation as metrics: eval/<split>/t<temperature>/<metric>."""
    return {
        f"eval/{row['split']}/t{row['temperature']:g}/{name}": value for row in rows for name, value in row["metrics"].items()
    }


def score(rows: list[dict[str, Any]]) -> float | None:
    """By what the best checkpoint is the best: success@0.9 on the first split of its own evaluation, at the highest temperature there
    (sampled, where that is among them). None without an evaluation: parameters that nobody tried are no candidate."""
    first = [row for row in rows if row["split"] == rows[0]["split"]]
    return max(first, key=lambda row: row["temperature"])["metrics"].get("success@0.9") if first else None


def _heeding(progress: Callable[[int, int], None], heed: Callable[[], None]) -> Callable[[int, int], None]:
    def both(ended: int, total: int) -> None:
        heed()
        progress(ended, total)

    return both
