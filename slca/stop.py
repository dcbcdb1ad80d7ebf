"""Leaving early: SIGTERM and SIGINT ask a run to save and go."""

from __future__ import annotations

import logging
import signal
from typing import Any

log = logging.getLogger("slca")


class Stopped(Exception):
    """A signal came during an evaluation, which is given up and made again when the run continues."""


class Stop:
    """Inside its `with`, SIGTERM and SIGINT ask a run to save and leave, and a second one ends it at once; after it they do what they
    did before: a script that calls `slca.train.run` keeps its own."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._before[number] = signal.signal(number, self._ask)
            except ValueError:  # not the main thread (a notebook's worker): no handler, no harm
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: it was not set from Python

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        log.warning("%s: saving after this step, then leaving", signal.Signals(number).name)
