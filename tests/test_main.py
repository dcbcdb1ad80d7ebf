"""The command line: help is instant, mistakes are one line and exit code 2."""

import inspect
import os
import subprocess
import sys
import time

import pytest

import slca.main
from slca.main import default_workdir, use_huge_pages


def main(*flags):
    return subprocess.run([sys.executable, "-m", "slca.main", *flags], capture_output=True, text=True, timeout=60)


def test_help_is_quick_and_says_the_exit_codes():
    began = time.monotonic()
    done = main("--help")
    assert done.returncode == 0 and "--config" in done.stdout and "Exit codes" in done.stdout
    assert time.monotonic() - began < 10  # seconds on a busy machine; 0.2 on a quiet one


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "--config=FILE is missing"),
        (("--config=configs/none.py",), "configs/none.py"),
        (("--config=configs/tiny.py", "--config.nope=3"), "nope"),
        (
            ("--config=configs/tiny.py", "--config.train.stepz=3"),
            "no such config field: train.stepz; did you mean train.steps or",
        ),
        (("--config=configs/tiny.py", "--config.train.steps=many"), "many"),
        (("--config=configs/tiny.py", "--nope"), "nope"),
        (("--config=configs/science.py:slca,noise=much",), "noise=much"),
        (("--config=configs/tiny.py", "word"), "word"),
        (("--config=configs/tiny.py", "--resume", "--workdir=unused"), "nothing to continue in"),
        (("--config=configs/tiny.py:slac", "--workdir=unused"), "credit.algorithm"),
        (("--config=configs/tiny.py", "--config.rollout.group=1", "--workdir=unused"), "rollout.group=1"),
    ],
)
def test_a_mistake_is_named_without_a_traceback(flags, says):
    done = main(*flags)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("argv", "algorithm", "folder"),
    [
        (["x", "--config=configs/tiny.py"], "slca", "runs/tiny-slca"),
        (["x", "--config=configs/tiny.py:grpo"], "grpo", "runs/tiny-grpo"),
        (["x", "--config", "configs/7b.py:mix@0.5"], "mix@0.5", "runs/7b-mix@0.5"),
        (["x", "--config=configs/half.py"], "slca_half", "runs/half-slca_half"),  # the config's own default
        (["x", "--config=configs/tiny.py", "--config.credit.algorithm=grpo"], "grpo", "runs/tiny-grpo"),
        (["x", "--config=configs/tiny.py:slca_paper"], "slca", "runs/tiny-slca_paper"),
    ],
)
def test_default_workdir(argv, algorithm, folder):
    assert str(default_workdir(argv, algorithm)) == folder


@pytest.fixture
def restarts(monkeypatch):
    """The (file, words, environment) with which the process would be started over."""
    made = []
    monkeypatch.setattr(os, "execve", lambda *call: made.append(call))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    return made


@pytest.mark.parametrize(
    "words",
    [
        ["python", "-m", "slca.main", "--config=configs/tiny.py"],
        ["python", "-X", "dev", "-u", "-W", "error", "-m", "slca.main", "--config=configs/tiny.py"],
        ["/usr/bin/python3", "-m", "some.launcher", "-m", "slca.main", "--config=configs/tiny.py"],
    ],
)
def test_starting_over_keeps_every_word_of_the_command(restarts, monkeypatch, words):
    monkeypatch.setattr(sys, "orig_argv", words)
    monkeypatch.setattr(slca.main, "watched", lambda: False)  # this suite may run under coverage
    use_huge_pages()
    ((file, again, environment),) = restarts
    assert file == again[0] == sys.executable and again[1:] == words[1:]
    assert environment == {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def test_a_value_of_the_user_is_left_alone(restarts, monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "")
    use_huge_pages()
    assert restarts == []


@pytest.mark.parametrize("tool", ["settrace", "setprofile"])
def test_a_process_that_is_watched_stays_as_it_is(restarts, tool):
    before = {"settrace": sys.gettrace, "setprofile": sys.getprofile}[tool]()
    getattr(sys, tool)(lambda *_: None)
    try:
        use_huge_pages()
    finally:
        getattr(sys, tool)(before)
    assert restarts == []


def test_a_breakpoint_is_hit():
    lines, first = inspect.getsourcelines(slca.main.main)
    line = first + next(k for k, text in enumerate(lines) if "CONFIG.value is None" in text)
    told = [word for say in (f"b {slca.main.__file__}:{line}", "c", "p 41 + len(argv)", "q") for word in ("-c", say)]
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    done = subprocess.run(
        [sys.executable, "-m", "pdb", *told, "-m", "slca.main"],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.split()[-1] == "42", done.stdout + done.stderr  # argv is the function's own
