"""A bounded pool of threads for tool calls, with a deadline a call.

`concurrent.futures` keeps a worker for as long as a hung call holds it, so a few tools that never answer starve the pool. Here
an overdue call is answered for (`TimeoutError`), its thread is left behind as a daemon and a fresh one takes its place.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Job:
    """One call: `tag` names it to the caller; `result` is what it returned or the exception it ended with."""

    tag: Any
    work: Callable[[], Any]
    started: float = 0.0
    seconds: float = 0.0
    result: Any = None
    over: bool = False


class Pool:
    """At most `threads` jobs at once, each given `timeout` seconds from its start; only the owner's thread calls the methods.

    A worker decides whether it stays before it hands its result over, and says so with it: what the owner does from then on
    changes nothing, so `_idle` counts exactly the workers that will ask for a job. Given up before the worker looks: it leaves,
    another has its place. Given up between its look and the owner's: the result goes nowhere, the worker is one more idle one.
    """

    def __init__(self, threads: int, timeout: float):
        self.threads, self.timeout = threads, timeout
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._idle = 0
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Job, float, Any, bool]] = queue.SimpleQueue()

    def __len__(self) -> int:
        """Jobs not yet handed back."""
        return len(self._waiting) + len(self._running)

    def submit(self, tag: Any, work: Callable[[], Any]) -> None:
        self._waiting.append(Job(tag, work))
        self._start()

    def ready(self, wait: bool = False) -> list[Job]:
        """Jobs that are over, overdue ones included; with `wait`, sleep until there is at least one (or none is left)."""
        jobs = self._collect(None)
        while wait and not jobs and self._running:
            due = min(job.started for job in self._running) + self.timeout
            jobs = self._collect(max(0.0, due - time.monotonic()))
        return jobs

    def shutdown(self) -> None:
        """Let the threads go. Nothing waits for a hung one; it ends when its call returns."""
        self._inbox.put(None)

    def _collect(self, timeout: float | None) -> list[Job]:
        jobs = []
        try:
            done = self._done.get(timeout=timeout) if timeout else self._done.get_nowait()
            while True:
                job, seconds, result, stays = done
                self._idle += stays
                if not job.over:  # else it came after its deadline and has been answered for
                    jobs.append(_finish(job, seconds, result))
                done = self._done.get_nowait()
        except queue.Empty:
            pass
        for job in self._running:
            seconds = time.monotonic() - job.started
            if not job.over and seconds >= self.timeout:
                jobs.append(_finish(job, seconds, TimeoutError(f"no answer within {self.timeout:g} s")))
        self._running = [job for job in self._running if not job.over]
        self._start()
        return jobs

    def _start(self) -> None:
        while self._waiting and len(self._running) < self.threads:
            job = self._waiting.popleft()
            job.started = time.monotonic()
            self._running.append(job)
            if self._idle:
                self._idle -= 1
            else:
                threading.Thread(target=self._worker, name="tool", daemon=True).start()
            self._inbox.put(job)

    def _worker(self) -> None:
        while (job := self._inbox.get()) is not None:
            result = None
            if not job.over:  # else it was given up on before a thread came to it
                try:
                    result = job.work()
                except BaseException as error:  # whatever a tool raises belongs to its row
                    result = error
            stays = not job.over  # not after the hand-over, when the owner marks what it has received as well
            self._done.put((job, time.monotonic() - job.started, result, stays))
            if not stays:  # given up on: its place has been taken
                return
        self._inbox.put(None)  # for the next worker


def _finish(job: Job, seconds: float, result: Any) -> Job:
    job.over, job.seconds, job.result = True, seconds, result
    return job
