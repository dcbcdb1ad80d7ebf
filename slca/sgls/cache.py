"""One answer a key: a bounded memory of results, at most one producer at a time, an optional store behind."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Future

from slca.sgls.store import Row, Store
from slca.tasks.schema import canonical
from slca.types import Observation, ToolCall

LIMIT = 100_000  # results in memory; the least recently used leave
SHARED = frozenset({"ok", "tool_error"})  # our own failures are not part of the world


class Cache:
    """Observations by key. Callers that ask for a key while it is being made wait for that one result, so that a slow
    simulator is asked once and a group sees one world. Thread-safe; a failing store is counted and done without."""

    def __init__(self, store: Store | None = None, limit: int = LIMIT):
        self.counts: Counter[str] = Counter()
        self._store, self._limit = store, limit
        self._memory: OrderedDict[str, Observation] = OrderedDict()
        self._making: dict[str, Future[Observation]] = {}
        self._lock = threading.Lock()

    def once(self, key: str, call: ToolCall, make: Callable[[], Observation], wait: float) -> tuple[Observation, bool]:
        """The observation of `key`, and whether it was there. `make` must not raise.

        call: kept beside a stored result; wait: seconds for another caller's result. Raises TimeoutError when it takes longer.
        """
        with self._lock:
            if (known := self._memory.get(key)) is not None:
                self._memory.move_to_end(key)
                return known, True
            future = self._making.get(key)
            mine = future is None
            if future is None:
                future = self._making[key] = Future()
        if not mine:
            return future.result(wait), True
        try:
            observation, known_before = self._load_or_make(key, call, make)
        except BaseException as error:
            self._finish(key, future, None, error)
            raise
        self._finish(key, future, observation, None)
        return observation, known_before

    def forget(self) -> None:
        """Drop the results in memory (not the store's)."""
        with self._lock:
            self._memory.clear()

    def _load_or_make(self, key: str, call: ToolCall, make: Callable[[], Observation]) -> tuple[Observation, bool]:
        if self._store is not None:
            try:
                if (row := self._store.get(key)) is not None:
                    return Observation(row.text, row.status, provenance=row.provenance), True
            except (sqlite3.Error, ValueError):
                self._count("store_errors")
        observation = make()
        if self._store is not None and observation.status in SHARED:
            row = Row(key, call.name, canonical(call), observation.text, observation.status, observation.provenance)
            try:
                kept = self._store.put(row)
            except (sqlite3.Error, ValueError, TypeError):
                self._count("store_errors")
            else:
                if kept is not row:  # another process was first: its world is the world
                    return Observation(kept.text, kept.status, provenance=kept.provenance), True
        return observation, False

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def _finish(
        self, key: str, future: Future[Observation], observation: Observation | None, error: BaseException | None
    ) -> None:
        with self._lock:
            del self._making[key]
            if observation is not None and observation.status in SHARED:
                self._memory[key] = observation
                if len(self._memory) > self._limit:
                    self._memory.popitem(last=False)
                    self.counts["evicted"] += 1
        if error is not None:
            future.set_exception(error)
        elif observation is not None:
            future.set_result(observation)
