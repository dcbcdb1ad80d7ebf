"""The watchdog ends a process that stands still or waits for one that is gone, and says where it stood; movement keeps it quiet."""

import io
import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from slca.pulse import EXIT_CODE, FOLDER, Pulse
from slca.report.progress import Progress


class Left(Exception):
    pass


def pulse(tmp_path, seconds, **options):
    """A pulse that notes how it would leave, and an event for it."""
    left, over = [], threading.Event()

    def leave(code):
        left.append(code)
        over.set()
        raise Left  # ends the thread, as the process would

    made = Pulse(Progress(io.StringIO()), tmp_path, seconds, leave=leave, **options)
    return made, left, over


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda args: None)  # Left
    monkeypatch.setattr("slca.pulse.faulthandler.dump_traceback", lambda file, all_threads: file)


def test_standing_still_is_reported_with_phase_and_stacks(tmp_path):
    """In a process of its own: the stacks, the exit code and the message are the real ones."""
    program = """
    import sys, time
    from pathlib import Path
    from slca.pulse import Pulse
    from slca.report.progress import Progress
    def wait_for_a_tool():
        time.sleep(60)
    with Pulse(Progress(quiet=True), Path(sys.argv[1]), 0.5) as pulse, pulse.phase("rollout"):
        wait_for_a_tool()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == EXIT_CODE
    stored = (tmp_path / "watchdog-0.txt").read_text()
    for text in (done.stderr, stored):
        assert "no movement for" in text and "(run.watchdog_seconds=0.5) in phase 'rollout'" in text
        assert "wait_for_a_tool" in text and "pid" in text


def test_movement_of_any_kind_keeps_it_quiet(tmp_path):
    counter = iter(range(10**9))
    made, left, over = pulse(tmp_path, 1.0)
    made.watch(lambda: next(counter))  # a sign that always changes
    with made:
        assert not over.wait(3.0)
    assert left == []


def test_a_sign_that_fails_or_stands_still_is_none(tmp_path):
    made, left, over = pulse(tmp_path, 0.5)
    made.watch(lambda: 1 / 0)
    made.watch(lambda: "the same")
    with made:
        assert over.wait(30)
    assert left == [EXIT_CODE]


def test_zero_seconds_is_never(tmp_path):
    made, _, over = pulse(tmp_path, 0.0)
    made.tick = 0.05
    with made:
        assert not over.wait(0.5)


def test_another_process_without_a_sign_of_life_is_named(tmp_path):
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "1.json").write_text('{"host": "tpu-7", "pid": 42, "phase": "update", "idle": 3.0}')
    counter = iter(range(10**9))
    made, left, over = pulse(tmp_path, 0.5, index=0, count=2)
    made.watch(lambda: next(counter))
    with made:
        assert over.wait(30)
    assert left == [EXIT_CODE]
    text = (tmp_path / "watchdog-0.txt").read_text()
    assert "no sign of life of process 1 on tpu-7, pid 42: phase 'update', idle for 3 s" in text


def test_processes_see_each_other(tmp_path):
    (first, left, _), (second, *_) = (pulse(tmp_path, 20.0, index=i, count=2) for i in (0, 1))
    second.tick = first.tick = 0.2
    with first:
        with second, second.phase("update"):
            deadline = time.monotonic() + 10
            while json.loads((tmp_path / FOLDER / "1.json").read_text())["phase"] != "update" and time.monotonic() < deadline:
                time.sleep(0.05)
            first._look()
            assert "phase 'update'" in first._words(1)
        assert first.lost(patience=2.0) == []  # it left in good order
    assert left == []


def test_phases_nest_and_advance(tmp_path):
    made, _, _ = pulse(tmp_path, 0.0)
    with made.phase("rl", 10):
        with made.phase("rollout", 4) as advance:
            before = made._moved
            time.sleep(0.01)
            advance(2)
            assert made.name == "rollout" and made._moved > before
        assert made.name == "rl"
    assert made.name == "start"


def test_a_process_of_this_host_that_has_ended_is_missed_at_once(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    while Path(f"/proc/{ended.pid}/stat").read_text().rpartition(") ")[2][0] != "Z":  # nobody has waited for it yet
        time.sleep(0.01)
    (tmp_path / FOLDER).mkdir()
    sign = {"host": socket.gethostname(), "pid": ended.pid, "phase": "update", "idle": 0.0}
    (tmp_path / FOLDER / "1.json").write_text(json.dumps(sign))
    made, _, _ = pulse(tmp_path, 0.0, index=0, count=2)
    assert "phase 'update'" in made.lost()[0]
    ended.wait()
    assert "phase 'update'" in made.lost()[0]
