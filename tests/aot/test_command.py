import subprocess
import sys

import pytest


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "slca.aot", *arguments], capture_output=True, text=True, timeout=300)


def test_help_names_purpose_example_and_exit_codes():
    done = command("--help")
    assert done.returncode == 0
    for text in ("python -m slca.aot --config=configs/7b.py --topology=v5p:4x4x4", "Exit codes: 0", "does not fit"):
        assert text in done.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--config=configs/tiny.py"], "--topology is missing"),
        (["--config=configs/tiny.py", "--topology=cpu:8", "--programs=updates"], "no updates; choose of update,prefill"),
        (["--config=configs/tiny.py", "--topology=cpu:8", "--mesh=2x4"], "expected DATAxFSDPxTENSOR"),
        (
            ["--config=configs/tiny.py", "--topology=cpu:8", "--slots=many"],
            "a number of slots above 0 and below 2^31, or search",
        ),
        (["--config=configs/tiny.py", "--topology=cpu:8", "--config.train.nope=1"], "no such config field"),
        (["--config=configs/tiny.py", "--topology=cpu:8", "--programs="], "--programs is empty"),
        (["--config=configs/tiny.py", "--topology=cpu:8", "--hbm=nan"], "--hbm=nan"),
        (["--config=configs/tiny.py", "--topology=cpu:99999999999"], "expected cpu:N"),
        (["--config=configs/tiny.py", "--topology=cpu:2", "--config.chat.tokenizer=nowhere"], "no such folder"),
        (["--config=configs/tiny.py:nope", "--topology=cpu:2"], "unknown algorithm 'nope'"),
        (["--config=configs/tiny.py", "--topology=cpu:2", f"--slots={'9' * 20}"], "and below 2^31"),
        (["--config=configs/tiny.py", "--topology=cpu:2", "--programs=spread"], "rollout.shared_slots"),
        (
            [
                "--config=configs/tiny.py",
                "--topology=cpu:2",
                "--config.model.attention=splash",
                "--config.train.share_prompts=False",
            ],
            "model.attention='splash' needs a TPU",
        ),
    ],
)
def test_a_wrong_command_is_one_line_and_2(arguments, message):
    done = command(*arguments)
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_exit_codes_of_a_program_that_fits_and_of_one_that_does_not():
    base = ["--config=configs/tiny.py", "--topology=cpu:4", "--mesh=1x2x2", "--programs=prefill", "--config.model.layers=1"]
    fits, tight = command(*base, "--hbm=4", "--markdown"), command(*base, "--hbm=0.000001")
    assert fits.returncode == 0 and "prefill: " in fits.stdout and "| cpu:4 | prefill" in fits.stdout
    assert tight.returncode == 1 and "DOES NOT FIT" in tight.stdout and "rollout.max_prompt_tokens" in tight.stdout
