"""Leaving early: SIGTERM and SIGINT ask a run to save and go."""

from __future__ import annotations

import logging
import signal
from typing import Any

log = logging.getLogger("slca")


class Stopped(Exception):
    """A signal came during an evaluation, which is given up and made again when the run continues."""


class Stop:
    """SIGTERM and SIGINT ask a run to save and leave; a second one ends it at once."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                signal.signal(number, self._ask)
            except ValueError:  # not the main thread (a notebook's worker): no handler, no harm
                return

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        log.warning("%s: saving after this step, then leaving", signal.Signals(number).name)
