"""The accelerator's command at toy size on a CPU, and what it counts by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import gpu, gpu_fit

ROOT = Path(__file__).parents[2]


def dry(out, *more):
    """The results of `gpu.sh --dry`."""
    environment = os.environ | {"XLA_FLAGS": "", "PYTHON": sys.executable}
    command = ["sh", "bench/gpu.sh", "--dry", "--rounds=1", f"--out={out}", *more]
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    return json.loads(out.read_text()), found.stdout


def test_the_shell_command_measures_the_device(tmp_path):
    results, printed = dry(tmp_path / "gpu.json", "--parts=speeds")
    rows = results["tables"][0]["rows"]
    assert [row["what"] for row in rows] == ["FLOP/s", "bytes/s"] and all(row["rate"]["median"] > 0 for row in rows)
    assert results["comparison"] == "gpu" and "| device | measured | bytes/s |" in printed


@pytest.mark.nightly
def test_dry_run_of_every_part(tmp_path):
    results, printed = dry(tmp_path / "gpu.json")
    rows = results["tables"][0]["rows"]
    assert [row["part"] for row in rows] == ["speeds", "speeds", "decode", "train", "step"]
    assert all(row["tokens/s"]["median"] > 0 for row in rows[2:])
    assert all(0 < row["share"]["measured"] for row in rows[2:4])  # of what the same run measured
    assert "sheet" not in rows[2]["share"]  # nothing is known of this processor
    assert "AdamW, all parameters, micro-batch of 2" in rows[3]["what"]
    assert "| toy | decode | batch 2 |" in printed


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--models=70B"], "70B unknown"),
        (["--parts=decode,all"], "all unknown"),
        (["--dry", "--rounds=0"], "at least 1"),
        (["--dry", "--peak-flops=-1"], "--peak-flops: -1: a number, at least 0"),
        (["--dry", "--attention=fast"], "invalid choice: 'fast'"),
        (["--dry", "--out=/"], "--out: /: a folder"),
    ],
)
def test_wrong_arguments_are_named(argv, says, capsys):
    with pytest.raises(SystemExit) as ended:
        gpu.main(argv)
    assert ended.value.code == 2 and says in capsys.readouterr().err


def test_parameters_are_those_of_the_checkpoints():
    """Qwen2.5's model cards: 0.49 B parameters, 0.36 B of them outside the embedding; 7.61 B and 6.53 B."""
    args = gpu.parser().parse_args([])
    small, large = (gpu.model_of(name, args) for name in ("0.5B", "7B"))
    total, matrices = gpu_fit.parameters(small)
    assert round(total / 1e9, 2) == 0.49 and total == matrices  # the tied table is the head
    assert round((total - small.vocab * small.width) / 1e9, 2) == 0.36
    total, matrices = gpu_fit.parameters(large)
    assert round(total / 1e9, 2) == 7.62 and matrices == total - large.vocab * large.width
    assert small.dtype == "bfloat16"


def test_what_fits_is_chosen_by_memory():
    """A 7B model needs 122 GB for its state alone: adapters on 80 GB, everything on a device without a limit."""
    model = gpu.model_of("7B", gpu.parser().parse_args([]))
    assert gpu_fit.variants(model, gpu.Sizes().micro_rows, float("inf"), 2048)[0] == (0, 16)
    on_80 = gpu_fit.variants(model, gpu.Sizes().micro_rows, 80e9, 2048)
    assert on_80 and all(rank == gpu_fit.RANK for rank, _ in on_80)
    assert gpu_fit.variants(model, gpu.Sizes().micro_rows, 24e9, 2048) == []


def test_what_is_out_of_memory_gives_way_to_the_next():
    tried = []

    def run(rank, rows):
        tried.append((rank, rows))
        if rows > 1:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return {"seconds": 1}

    assert gpu_fit.first_that_fits([(0, 4), (0, 1), (8, 1)], run) == [
        {"what": "AdamW, all parameters, micro-batch of 1", "seconds": 1}
    ]
    assert tried == [(0, 4), (0, 1)]
    assert "out of memory" in gpu_fit.first_that_fits([(0, 4)], run)[0]["error"]
    assert "nothing fits" in gpu_fit.first_that_fits([], run)[0]["error"]


def test_shares_of_the_data_sheet_and_of_what_was_measured():
    rows = [
        {"part": "speeds", "what": "bytes/s", "rate": {"median": 4e12}},
        {"part": "speeds", "what": "FLOP/s", "rate": {"median": 8e14}},
        {"part": "decode", "moved": {"median": 3e12}},
        {"part": "train", "flops": {"median": 4e14}},
    ]
    gpu.shared(rows, {"bandwidth": 4.8e12, "flops": 989e12}, gpu.parser().parse_args(["--peak-flops=1e15"]))
    assert rows[2]["share"] == {"sheet": pytest.approx(0.625), "measured": pytest.approx(0.75)}
    assert rows[3]["share"] == {"sheet": pytest.approx(0.4), "measured": pytest.approx(0.5)}
