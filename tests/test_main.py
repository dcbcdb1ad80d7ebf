"""The command line: help is instant, mistakes are one line and exit code 2."""

import subprocess
import sys
import time

import pytest

from slca.main import default_workdir


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
