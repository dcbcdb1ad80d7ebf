"""Simulated and recorded results on disk: one SQLite file, safe for many threads and processes, exportable as JSONL."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

BUSY_SECONDS = 30.0  # how long a writer waits for another one

_TABLE = """CREATE TABLE IF NOT EXISTS results (
    key TEXT PRIMARY KEY, tool TEXT NOT NULL, arguments TEXT NOT NULL, text TEXT NOT NULL, status TEXT NOT NULL,
    provenance TEXT NOT NULL) WITHOUT ROWID"""
_COLUMNS = "key, tool, arguments, text, status, provenance"


class Row(NamedTuple):
    """One stored result. key: cache key, or the call hash of a recorded one; arguments: canonical JSON of the call;
    provenance: what produced it (JSON-able)."""

    key: str
    tool: str
    arguments: str
    text: str
    status: str = "ok"
    provenance: Mapping[str, Any] = {}


class Store:
    """Rows by key in the SQLite file `path` (made if absent). The first writer of a key wins, so all readers agree. The file belongs on
    a disk of this host: SQLite's write-ahead log is not safe where several hosts share one.

    Raises sqlite3.Error where the file cannot be opened or is no database.
    """

    def __init__(self, path: str | Path):
        self.path = str(path)
        self._idle = [_open(self.path)]
        self._closed = False
        self._lock = threading.Lock()

    def get(self, key: str) -> Row | None:
        with self._connection() as connection:
            found = connection.execute(f"SELECT {_COLUMNS} FROM results WHERE key = ?", (key,)).fetchone()
        return _row(found) if found else None

    def put(self, row: Row) -> Row:
        """Store `row` unless its key is there; return the row that is there."""
        values = (*row[:5], json.dumps(dict(row.provenance), ensure_ascii=False, sort_keys=True))
        with self._connection() as connection:
            changed = connection.execute(
                f"INSERT OR IGNORE INTO results ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", values
            ).rowcount
        return row if changed else self.get(row.key) or row

    def rows(self, prefix: str = "") -> Iterator[Row]:
        """All rows whose key starts with `prefix`, in order of their keys."""
        query = f"SELECT {_COLUMNS} FROM results WHERE substr(key, 1, ?) = ? ORDER BY key"
        with self._connection() as connection:
            for found in connection.execute(query, (len(prefix), prefix)):
                yield _row(found)

    def export(self, path: str | Path) -> int:
        """Write every row as one JSON object a line (the fields of `Row`); return how many."""
        count = 0
        with open(path, "w", encoding="utf-8") as file:
            for count, row in enumerate(self.rows(), 1):  # noqa: B007
                file.write(json.dumps({**row._asdict(), "provenance": dict(row.provenance)}, ensure_ascii=False) + "\n")
        return count

    def close(self) -> None:
        """Close the file. What comes later opens it for itself alone."""
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for connection in idle:
            connection.close()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection that nobody else uses meanwhile. Threads come and go, a rollout has its own; connections stay and are few."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = _open(self.path)
        try:
            yield connection
        finally:
            with self._lock:
                keep = not self._closed
                if keep:
                    self._idle.append(connection)
            if not keep:
                connection.close()


def _open(path: str) -> sqlite3.Connection:
    """A connection to `path` in WAL mode. SQLite answers "locked" at once, whatever the time-out, where several processes make
    a new file a WAL one together: those try again here."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(_TABLE)
            return connection
        except sqlite3.Error as error:
            connection.close()
            busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not busy or time.monotonic() > until:
                raise
        time.sleep(random.uniform(0.001, 0.01))


def _row(found: tuple[str, ...]) -> Row:
    key, tool, arguments, text, status, provenance = found
    return Row(key, tool, arguments, text, status, json.loads(provenance))
