"""What the commands of both graders share, over a stand-in for a grader: exit codes, one run a folder, going on after a kill."""

import argparse
import errno
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from slca.evals import bfcl, tau2
from slca.evals.command import SCORES, SETTINGS, command, command_arguments
from slca.evals.graders import GraderError, held, run
from tests.evals.test_graders import GRADER, venv


def main(work, *flags, place, out):
    """The command of a grader that takes --checkpoint, --temperature, --limit, --seed and --slots."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint")
    for name, kind in (("temperature", float), ("limit", int), ("seed", int), ("slots", int)):
        parser.add_argument(f"--{name}", type=kind, default=kind(1))
    command_arguments(parser, GRADER)
    return command(GRADER, parser, [*flags, f"--venv={place}", f"--out={out}"], lambda parser, options: None, work)


@pytest.fixture
def place(tmp_path):
    venv(tmp_path / "venv", "1.0")
    return tmp_path / "venv"


def raising(error):
    def work(*_):
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("a wrong checkpoint"), 2), (ImportError("no extra"), 2), (FileNotFoundError(2, "gone"), 2),
        (GraderError("it failed"), 1), (RuntimeError("out of memory"), 1), (OSError(errno.ENOSPC, "full"), 1),
    ],
)  # fmt: skip
def test_exit_codes(error, code, place, tmp_path, capsys):
    assert main(raising(error), place=place, out=tmp_path / "out") == code
    assert capsys.readouterr().err.startswith("slca.evals.probe: ")


def test_a_run_goes_on_in_its_folder_and_no_other_does(place, tmp_path, capsys):
    out, seen = tmp_path / "out", []

    def work(options, python, folder):
        seen.append(json.loads((folder / SETTINGS).read_text())["limit"])
        raise RuntimeError("interrupted")

    assert main(work, "--limit=3", place=place, out=out) == 1
    assert main(work, "--limit=3", "--slots=7", place=place, out=out) == 1 and seen == [3, 3]  # other slots: the same run
    assert "going on" in capsys.readouterr().err
    assert main(work, "--limit=4", place=place, out=out) == 2 and "limit 3 is now 4" in capsys.readouterr().err
    (out / SETTINGS).write_text("[]")
    assert main(work, "--limit=3", place=place, out=out) == 2 and "damaged" in capsys.readouterr().err
    (out / SCORES).write_text("{}")
    assert main(work, "--limit=3", place=place, out=out) == 2 and "finished run" in capsys.readouterr().err
    assert seen == [3, 3]


def test_a_command_put_right_may_use_the_folder(place, tmp_path):
    assert main(raising(ValueError("no such folder")), "--checkpoint=wrong", place=place, out=tmp_path / "out") == 2
    assert main(lambda *_: None, "--checkpoint=right", place=place, out=tmp_path / "out") == 0


def test_parts_of_another_run_are_not_mixed_in(place, tmp_path, capsys):
    (tmp_path / "out" / "result").mkdir(parents=True)
    assert main(lambda *_: None, place=place, out=tmp_path / "out") == 2
    assert "holds result of another run" in capsys.readouterr().err


def test_a_checkpoint_is_the_step_that_it_was(place, tmp_path, capsys):
    run_folder, out = tmp_path / "run", tmp_path / "out"
    (run_folder / "checkpoints" / "5" / "params").mkdir(parents=True)
    assert main(raising(RuntimeError("killed")), f"--checkpoint={run_folder}", place=place, out=out) == 1
    (run_folder / "checkpoints" / "6" / "params").mkdir(parents=True)
    assert main(lambda *_: None, f"--checkpoint={run_folder}", place=place, out=out) == 2
    assert "checkpoints/5" in capsys.readouterr().err
    assert main(lambda *_: None, f"--checkpoint={run_folder}/checkpoints/5", place=place, out=out) == 0


def test_two_runs_at_once_and_folders_that_cannot_be_written(place, tmp_path, capsys):
    def meanwhile(options, python, out):
        assert main(lambda *_: None, place=place, out=out) == 2

    assert main(meanwhile, place=place, out=tmp_path / "out") == 0
    assert "in use by another process" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        assert main(lambda *_: None, place=place, out=out) == 2
        assert f"--out={out}: cannot be made" in capsys.readouterr().err
    with pytest.raises(GraderError, match="cannot write there"), held(Path("/proc/lock"), "x"):
        pass


def test_signals_end_the_grader_too(place, tmp_path, capsys):
    def work(options, python, out):
        script = (
            "import os, signal, time; print(os.getpid(), flush=True); os.kill(os.getppid(), signal.SIGTERM); time.sleep(100)"
        )
        run([sys.executable, "-c", script], {}, out / "log", 60.0)

    before = signal.getsignal(signal.SIGTERM)
    assert main(work, place=place, out=tmp_path / "out") == 128 + signal.SIGTERM
    assert "goes on" in capsys.readouterr().err and signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "out" / "log").read_text()), 0)


@pytest.mark.parametrize("module", [bfcl, tau2])
@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--temperature=nan", "0 to 2"), ("--temperature=-1", "0 to 2"), ("--temperature=3", "0 to 2"), ("--limit=-1", "--limit=-1"),
        (f"--seed={10**20}", "2^31"), ("--seed=-1", "--seed=-1"), ("--slots=0", "--slots=0"), (f"--context={2**40}", "2^31"),
        ("--max-tokens=-5", "--max-tokens=-5"),
    ],
)  # fmt: skip
def test_numbers_that_make_no_sense(module, flag, said, capsys):
    with pytest.raises(SystemExit) as stop:
        module.main(["--oracle", *(["--solo"] if module is tau2 else []), flag])
    assert stop.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--url=ftp://x/v1"], ["--url=127.0.0.1:8000"]])
def test_urls(flags, capsys):
    for module, more in ((bfcl, []), (tau2, ["--solo"])):
        with pytest.raises(SystemExit):
            module.main([*flags, "--model=m", *more])
        assert "http://" in capsys.readouterr().err


def test_an_environment_that_is_broken(tmp_path, capsys):
    python = venv(tmp_path / "venv", "1.0")
    for break_it in (lambda: python.chmod(0o644), lambda: python.write_bytes(b"\x7fELF"), python.unlink):
        break_it()
        if python.exists() and python.read_bytes()[:1] == b"\x7f":
            python.chmod(0o755)
        assert main(lambda *_: None, place=tmp_path / "venv", out=tmp_path / "out") == 2
        assert "--setup" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_two_setups_at_once(tmp_path):
    with held(tmp_path / "new.lock", "x"), pytest.raises(GraderError, match="is being set up by another process"):
        GRADER.setup(str(tmp_path / "new"), lambda text: None)
    (tmp_path / "file").write_text("")
    with pytest.raises(GraderError, match="cannot be made"):
        GRADER.setup(str(tmp_path / "file" / "below" / "venv"), lambda text: None)
