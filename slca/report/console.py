"""What a run says on standard output: the lines of its log above the bars, and the before/after table."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from slca.report.progress import Progress

COLUMNS = {
    "Success@0.9": "success@0.9",
    "Name F1": "name",
    "ArgMatch": "argmatch",
    "Summary": "summary",
    "Tool turns": "tool_turns",
}


def print_table(results: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows of `results.json` (evaluations in the middle of RL apart), one block a split and decoding.

    Nothing where nothing was evaluated.
    """
    from rich.console import Console
    from rich.table import Table

    if not results:
        return
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


class _Notes(logging.Handler):
    """Log records as notes of a Progress, so that they and its bars share the terminal."""

    def __init__(self, progress: Progress):
        super().__init__()
        self.progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        if self.progress.quiet and record.levelno >= logging.WARNING:  # a process that is not the first still warns
            print(self.format(record), file=sys.stderr, flush=True)
        else:
            self.progress.note(self.format(record))


def log_through(progress: Progress) -> None:
    """Lines of the log `slca` go through `progress`, from now on; other libraries speak on standard error, from WARNING on."""
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("absl").setLevel(
        logging.CRITICAL
    )  # Orbax warns at every save, and prints what it raises before raising it
    log = logging.getLogger("slca")
    for handler in [h for h in log.handlers if isinstance(h, _Notes)]:
        log.removeHandler(handler)
    log.addHandler(_Notes(progress))
    log.propagate = False
    log.setLevel(logging.INFO)
