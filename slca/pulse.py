"""The pulse of a run: the phase it is in, told to the person at the terminal, and a watchdog for processes that no longer move.

No collective of JAX has a time-out: a process that is stuck, or gone, leaves all others waiting for ever (jax#38503). So every
process watches itself, and, where there are several, leaves a sign of life in the run folder (which they share) for the others.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slca.report.progress import Advance, Progress

EXIT_CODE = 3  # of a process that the watchdog ended
FOLDER = ".pulse"


class Pulse:
    """The phase of this process, and a thread that looks after it every few seconds.

    with Pulse(progress, workdir, seconds=600) as pulse:
        with pulse.phase("rollout", total=rows) as advance:
            advance(8)

    seconds: after so long without movement (a new phase, an advance, a change of a watched sign) the stacks of all threads, the
    host and the phases of all processes go to standard error and to `workdir/watchdog-<index>.txt`, and the process exits
    with EXIT_CODE; the same when another process has shown no sign of life for so long. 0 = never. leave: ends the process; for tests.
    """

    def __init__(
        self, progress: Progress, workdir: Path, seconds: float, *, index: int = 0, count: int = 1,
        leave: Callable[[int], Any] = os._exit,
    ) -> None:  # fmt: skip
        self.progress, self.seconds, self.index, self.count = progress, seconds, index, count
        self.tick = min(5.0, seconds / 10) if seconds else 5.0
        self.name = "start"
        self._workdir, self._leave, self._signs = workdir, leave, list[Callable[[], Any]]()
        self._moved, self._seen, self._over = time.monotonic(), (), threading.Event()
        self._peers: dict[int, tuple[dict[str, Any], float]] = {}  # last sign of each other process, and when it last changed
        self._left = set[int]()
        self._thread = threading.Thread(target=self._watch, name="pulse", daemon=True)

    def __enter__(self) -> Pulse:
        self._moved = time.monotonic()
        if self.count > 1:
            (self._workdir / FOLDER).mkdir(parents=True, exist_ok=True)
            self._show()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=2 * self.tick)
        if self.count > 1:
            with contextlib.suppress(OSError):
                self._file(self.index).unlink()

    @contextmanager
    def phase(self, name: str, total: float | None = None) -> Iterator[Advance]:
        """A phase of the run: named in the watchdog's report, a bar on a terminal. Advancing it is movement."""
        before, self.name = self.name, name
        self.beat()
        try:
            with self.progress.phase(name, total) as bar:

                def advance(n: float = 1, **facts: float) -> None:
                    self.beat()
                    bar(n, **facts)

                yield advance
        finally:
            self.name = before
            self.beat()

    def beat(self) -> None:
        """The run has moved."""
        self._moved = time.monotonic()

    def watch(self, sign: Callable[[], Any]) -> None:
        """`sign` is called every few seconds, from another thread; a change of what it returns is movement."""
        self._signs.append(sign)

    def lost(self, patience: float = 0.0) -> list[str]:
        """The other processes that show no sign of life, in words, after up to `patience` seconds of waiting for them to be missed."""
        end = time.monotonic() + patience
        while True:
            self._look()
            quiet = [i for i, (sign, at) in self._peers.items() if _ended(sign) or time.monotonic() - at > 3 * self.tick]
            if quiet or time.monotonic() >= end or self.count == 1:
                return [self._words(i) for i in quiet]
            time.sleep(self.tick / 4)

    def _watch(self) -> None:
        while not self._over.wait(self.tick):
            self.progress.pulse()
            seen = tuple(map(_ask, self._signs))
            if seen != self._seen:
                self._seen = seen
                self.beat()
            idle = time.monotonic() - self._moved
            if self.count > 1:
                self._show()
                self._look()
            if not self.seconds:
                continue
            gone = [i for i, (_, changed) in self._peers.items() if time.monotonic() - changed > self.seconds]
            if idle > self.seconds:
                self._end(f"no movement for {idle:.0f} s (run.watchdog_seconds={self.seconds:g}) in phase {self.name!r}")
            elif gone:
                self._end(f"no sign of life of {', '.join(map(self._words, gone))}")

    def _end(self, reason: str) -> None:
        lines = [f"watchdog: process {self.index} on {socket.gethostname()}, pid {os.getpid()}: {reason}"]
        lines += [f"  {self._words(i)}" for i in sorted(self._peers)]
        text = "\n".join(lines) + "\n"
        with contextlib.suppress(OSError), open(self._workdir / f"watchdog-{self.index}.txt", "w") as file:
            file.write(text)
            faulthandler.dump_traceback(file, all_threads=True)
        with contextlib.suppress(OSError):
            faulthandler.dump_traceback(2, all_threads=True)
        print(text, file=sys.__stderr__, flush=True)
        self._leave(EXIT_CODE)

    def _file(self, index: int) -> Path:
        return self._workdir / FOLDER / f"{index}.json"

    def _show(self) -> None:
        sign = {"host": socket.gethostname(), "pid": os.getpid(), "phase": self.name, "time": time.time()}
        sign["idle"] = round(time.monotonic() - self._moved, 1)
        temporary = self._file(self.index).with_suffix(".tmp")
        with contextlib.suppress(OSError):  # a full disk must not end the watch
            temporary.write_text(json.dumps(sign))
            os.replace(temporary, self._file(self.index))

    def _look(self) -> None:
        now = time.monotonic()
        for i in range(self.count):
            if i == self.index or i in self._left:
                continue
            last, changed = self._peers.get(i, ({}, now))
            try:
                sign = json.loads(self._file(i).read_text())
            except FileNotFoundError:
                if last:  # it has left in good order
                    self._left.add(i)
                    self._peers.pop(i)
                    continue
                sign = last
            except (OSError, ValueError):
                sign = last
            self._peers[i] = (sign, now if sign != last else changed)

    def _words(self, index: int) -> str:
        sign, changed = self._peers[index]
        if not sign:
            return f"process {index} (never seen)"
        quiet = time.monotonic() - changed
        return (
            f"process {index} on {sign['host']}, pid {sign['pid']}: phase {sign['phase']!r}, idle for {sign['idle']:.0f} s, "
            f"last heard of {quiet:.0f} s ago"
        )


def _ended(sign: dict[str, Any]) -> bool:
    """Whether the process of a sign of life is known to be gone: only for one on this host."""
    if sign.get("host") != socket.gethostname():
        return False
    try:
        os.kill(sign["pid"], 0)
        state = Path(f"/proc/{sign['pid']}/stat").read_text().rpartition(") ")[2][:1]
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return state in ("Z", "X")  # ended, and its parent has not looked yet


def _ask(sign: Callable[[], Any]) -> Any:
    """A sign that fails is no sign; it must not end the watch."""
    try:
        return sign()
    except Exception:
        return None
