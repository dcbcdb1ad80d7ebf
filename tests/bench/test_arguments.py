"""Command lines of bench/: what is wrong is said in one line that names it, with exit code 2, before anything is measured."""

import argparse
import runpy
import sys

import pytest

from bench import arguments

AT_LEAST_1, NOTHING_MORE = "a whole number, at least 1", "unrecognized arguments: more"


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("serve --slots=0", f"--slots: 0: {AT_LEAST_1}"),
        ("serve --clients=0", f"--clients: 0: {AT_LEAST_1}"),
        ("serve --rounds=-1", f"--rounds: -1: {AT_LEAST_1}"),
        ("serve --conversations=0", f"--conversations: 0: {AT_LEAST_1}"),
        ("serve --requests=-1", "--requests: -1: a whole number, at least 0"),
        ("serve --turns=x", "--turns: x: a whole number, at least 0"),
        ("agentic --turns=0", f"--turns: 0: {AT_LEAST_1}"),
        ("agentic --tunix=/nowhere", "--tunix: /nowhere: no program is there"),
        ("rollout --without=ours", "ours cannot be left out"),
        ("rollout --torch=/nowhere", "--torch: /nowhere: no program is there"),
        ("rollout_cache --rows=0", f"--rows: 0: {AT_LEAST_1}"),
        ("rollout_engine turn", "turn unknown; there are refill, turns"),
        ("rollout_engine --prompts=512,0", f"--prompts: 0: {AT_LEAST_1}"),
        ("rollout_engine shared --group=3", "--slots=64 --group=3"),
        ("step --sizes=", "--sizes: no name unknown; there are small, mid"),
        ("step --new=-1", "--new: -1: a whole number, at least 0"),
        ("scaling --rounds=0", f"--rounds: 0: {AT_LEAST_1}"),
        ("startup --config=huge", "invalid choice: 'huge'"),
        ("startup --cold=0", f"--cold: 0: {AT_LEAST_1}"),
        ("soak --steps=9", "--steps: 9: a whole number, at least 10"),
        ("update nothing", "invalid choice: 'nothing'"),
        ("update packing more", "packing has no meshes"),
        ("forward qwen9", "invalid choice: 'qwen9'"),
        ("forward qwen3 0", f"rounds: 0: {AT_LEAST_1}"),
        ("load 0", f"layers: 0: {AT_LEAST_1}"),
        ("load 2 float16", "invalid choice: 'float16'"),
        ("bandit more", NOTHING_MORE),
        ("bfcl_parity more", NOTHING_MORE),
        ("bfcl_reward more", NOTHING_MORE),
        ("chat more", NOTHING_MORE),
        ("credit more", NOTHING_MORE),
        ("sgls more", NOTHING_MORE),
    ],
)
def test_wrong_arguments_are_named(command, says, monkeypatch, capsys):
    module, *argv = command.split(" ")
    monkeypatch.setattr(sys, "argv", [module, *argv])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"bench.{module}", run_name="__main__")
    assert ended.value.code == 2 and says in capsys.readouterr().err.splitlines()[-1]


def test_types_give_what_was_written():
    assert arguments.positive("3") == 3 and arguments.natural("0") == 0 and arguments.numbers("16,64") == [16, 64]
    assert arguments.at_least(0, float)("2e12") == 2e12 and arguments.names(["a", "b, c"], ";")("b, c;a") == ["b, c", "a"]
    assert arguments.interpreter("") == "" and arguments.interpreter(sys.executable) == sys.executable


@pytest.mark.parametrize("text", ["-1", "nan", "x", ""])
def test_numbers_below_the_least_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="a number, at least 0"):
        arguments.at_least(0, float)(text)


def test_a_file_to_write_is_looked_at_beforehand(tmp_path):
    (tmp_path / "file").touch()
    assert arguments.output(f"{tmp_path}/new/out.json") == tmp_path / "new" / "out.json"
    for wrong, says in ((tmp_path, "a folder"), (tmp_path / "file" / "out.json", "cannot be written in .*file; name another")):
        with pytest.raises(argparse.ArgumentTypeError, match=says):
            arguments.output(str(wrong))
