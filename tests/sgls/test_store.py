"""The SQLite store: first writer wins, for threads and processes alike."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from slca.sgls.store import Row, Store

WRITER = """
import sys
from slca.sgls.store import Row, Store
store = Store(sys.argv[1])
for i in range(200):
    store.put(Row(f"k{i}", "tool", "{}", sys.argv[2]))
print("".join(store.get(f"k{i}").text for i in range(200)))
"""


def test_round_trip_and_reopen(tmp_path):
    row = Row("k", "tool", '{"a":1}', "Tromsø \u2028", "tool_error", {"source": "openai", "n": [1, {"x": None}]})
    store = Store(tmp_path / "s.db")
    assert store.get("k") is None
    assert store.put(row) is row
    assert store.put(row._replace(text="later")) == row
    store.close()
    again = Store(tmp_path / "s.db")
    assert again.get("k") == row
    again.close()


def test_rows_by_prefix_and_export(tmp_path):
    store = Store(tmp_path / "s.db")
    for key in ("b", "replay:2", "replay:1", "a"):
        store.put(Row(key, "tool", "{}", key.upper()))
    assert [row.key for row in store.rows("replay:")] == ["replay:1", "replay:2"]
    assert store.export(tmp_path / "out.jsonl") == 4
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert lines[0] == {"key": "a", "tool": "tool", "arguments": "{}", "text": "A", "status": "ok", "provenance": {}}
    assert [line["key"] for line in lines] == ["a", "b", "replay:1", "replay:2"]
    store.close()


def test_threads_agree_on_the_first_writer(tmp_path):
    store = Store(tmp_path / "s.db")

    def write(worker):
        return [store.put(Row(f"k{i}", "tool", "{}", str(worker))).text for i in range(100)]

    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(write, range(4)))
    assert seen[0] == seen[1] == seen[2] == seen[3]
    store.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are counted in /proc")
def test_threads_that_come_and_go_leave_no_connections_behind(tmp_path):
    """Every rollout brings threads of its own: with a connection each, a long run is out of files after some hundred steps."""
    store = Store(tmp_path / "s.db")
    before = open_files(tmp_path)
    for i in range(50):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(store.put, Row(f"k{i}", "tool", "{}", "x")).result()
    assert open_files(tmp_path) == before and len(list(store.rows())) == 50
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda i: store.get(f"k{i}").text, range(50))) == ["x"] * 50
    assert open_files(tmp_path) <= 4 * before
    next(store.rows())  # a reader that stops early
    store.close()
    assert store.get("k0").text == "x"  # a late thread's: it opens a connection of its own and closes it again
    assert open_files(tmp_path) == 0


def open_files(folder):
    return sum(os.path.realpath(f"/proc/self/fd/{name}").startswith(f"{folder}/") for name in os.listdir("/proc/self/fd"))


def test_processes_agree_on_the_first_writer(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path / "s.db")]
    writers = [subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in "ab"]
    outputs = [writer.communicate(timeout=60)[0] for writer in writers]
    assert outputs[0] == outputs[1] and len(outputs[0].strip()) == 200


OPENER = """
import sys, time
from slca.sgls.store import Store
print("ready", flush=True)
for line in sys.stdin:
    path, start = line.split()
    while time.time() < float(start):
        pass
    Store(path).close()
    print("opened", flush=True)
"""


def test_processes_make_the_same_file_at_once(tmp_path):
    command = [sys.executable, "-c", OPENER]
    openers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for opener in openers:
        assert opener.stdout.readline() == "ready\n"
    for number in range(20):  # half of them failed before opening was tried again
        start = time.time() + 0.05
        for opener in openers:
            opener.stdin.write(f"{tmp_path}/{number}.db {start}\n")
            opener.stdin.flush()
        assert [opener.stdout.readline() for opener in openers] == ["opened\n"] * 4
    for opener in openers:
        opener.communicate(timeout=60)


def test_a_file_that_is_no_database(tmp_path):
    (tmp_path / "s.db").write_bytes(b"not a database, certainly not one" * 100)
    with pytest.raises(sqlite3.DatabaseError):
        Store(tmp_path / "s.db")
