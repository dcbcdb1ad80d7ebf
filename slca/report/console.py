"""What a run says on standard output: a line a step and the before/after table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = {
    "Success@0.9": "success@0.9",
    "Name F1": "name",
    "ArgMatch": "argmatch",
    "Summary": "summary",
    "Tool turns": "tool_turns",
}


def print_table(results: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows of `results.json` (evaluations in the middle of RL apart), one block a split and decoding."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="held-out results")
    for name in ("split", "decoding", "stage"):
        table.add_column(name, no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, justify="right")
    rows = [row for row in results if not row["name"].startswith("RL step")]
    for row in sorted(rows, key=lambda row: (row["split"], row["temperature"])):
        decoding = "greedy" if row["temperature"] == 0 else f"T = {row['temperature']:g}"
        values = [row["metrics"].get(key) for key in COLUMNS.values()]
        table.add_row(row["split"], decoding, row["name"], *("–" if v is None else f"{v:.3f}" for v in values))
    console = Console()
    Console(width=max(console.width, 110)).print(table)


def step_line(step: int, steps: int, values: Mapping[str, float]) -> str:
    """One line of metrics of an RL step."""

    def show(name: str) -> str:
        return f"{values[name]:.3f}" if name in values else "–"

    return (
        f"rl {step}/{steps} tool {show('rollout/reward/tool')} summary {show('rollout/reward/summary')} "
        f"success@0.9 {show('rollout/success@0.9')} grad {show('train/grad_norm')} "
        f"rollout {show('time/rollout')} s update {show('time/update')} s"
    )
