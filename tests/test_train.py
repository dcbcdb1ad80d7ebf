"""The main job end to end, in processes of its own: runs, resumes bit for bit after kill -9, says when it is finished."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import slca
from slca.checkpoint import load_params
from slca.credit.diagnostics import diagnose
from slca.evals.costs import costs
from slca.policy import transformer, weights
from slca.policy.config import ModelConfig
from slca.report import metrics
from slca.report.curves import PLOTS, series
from slca.report.progress import HEADLINE
from slca.rewards.judge import outcomes
from slca.types import SUMMARY, TOOL, Rollouts
from tests.programs import one_device

# No warm-up: its length is a share of train.steps, and runs of other lengths would compile another update.
SMALL = {
    "model.width": 32, "model.layers": 2, "model.heads": 2, "model.kv_heads": 1, "model.head_dim": 16, "model.ff": 64,
    "tasks.domains": "('weather',)", "sft.steps": 4, "sft.batch_rows": 2, "sft.row_length": 320, "train.steps": 4,
    "train.micro_rows": 2, "rollout.prompts": 2, "rollout.group": 2, "rollout.max_turn_tokens": 24, "eval.tasks": 4,
    "eval.splits": "('heldout_tasks',)", "checkpoint.every": 1, "checkpoint.sft_every": 2, "report.episodes_every": 2,
    "train.mu": 2, "train.mini_batches": 2, "eval.every": 2, "optim.warmup": 0.0, "loss.kl_coef": 0.01, "loss.correction": "tis",
    "report.gradient_every": 4,
}  # fmt: skip


def command(workdir, config="configs/tiny.py", **overrides):
    fields = {**SMALL, **overrides}
    flags = [f"--config.{name}={value}" for name, value in fields.items()]
    return [sys.executable, "-m", "slca.main", f"--config={config}", f"--workdir={workdir}", *flags]


def main(workdir, **options):
    return subprocess.run(command(workdir, **options), env=one_device(), capture_output=True, text=True, timeout=600)


def steady(workdir):
    """The metrics of a run without clocks and memory."""
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "sys/"))} for row in metrics.read(workdir)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("whole")
    done = main(workdir)
    assert done.returncode == 0, done.stderr[-3000:]
    return workdir, done


def test_it_finishes_with_a_table_and_a_report(whole):
    workdir, done = whole
    assert "Success@0.9" in done.stdout and "after RL" in done.stdout
    assert str(workdir / "report.html") in done.stdout.replace("\n", "")
    assert (workdir / "report.html").stat().st_size > 10_000
    names = [row["name"] for row in json.loads((workdir / "results.json").read_text())["rows"]]
    # H6: with four optimiser steps an RL step, once each for every due RL step, at both temperatures
    assert names == [name for name in ("untrained", "after SFT", "RL step 2", "after RL") for _ in range(2)]


def test_every_step_and_every_evaluation_is_written_once(whole):
    rows = metrics.read(whole[0])
    cold, rl = [("sft", s) for s in (1, 2, 3, 4)], [("rl", s) for s in (1, 2, 3, 4)]
    expected = [("eval", 0), *cold, ("eval", 0), *rl[:2], ("eval", 2), *rl[2:], ("eval", 4)]
    assert [(row["phase"], row["step"]) for row in rows] == expected
    results = json.loads((whole[0] / "results.json").read_text())["rows"]
    for k, row in enumerate(row for row in rows if row["phase"] == "eval"):
        greedy, sampled = results[2 * k : 2 * k + 2]
        written = {f"eval/heldout_tasks/t0/{name}": value for name, value in greedy["metrics"].items()}
        written |= {f"eval/heldout_tasks/t1/{name}": value for name, value in sampled["metrics"].items()}
        assert (
            len(written) > 50 and {name: row[name] for name in written} == written and row.keys() - written == {"step", "phase"}
        )


def conditional():
    """Names that a short run of an untrained policy on a CPU does not write, from what makes them."""
    two = Rollouts(
        group=np.zeros(2, int), kind=np.array([[TOOL, SUMMARY]] * 2),
        rewards={"tool": np.array([0.0, 1.0]), "summary": np.array([0.0, 1.0]), "total": np.array([0.0, 2.0])},
    )  # fmt: skip
    answered = SimpleNamespace(counts={"ok": 1})  # a judge that was asked
    found = diagnose(two, np.ones((2, 2))) | costs([], 1.0)
    return {
        *(f"rollout/{name}" for name in found), *(f"judge/{kind}" for kind in outcomes({"summary": answered})),
        "sys/mfu", "sys/hbm_max",  # tests/report/test_system.py: on accelerators
    }  # fmt: skip


def test_the_line_of_a_step_and_the_plots_ask_for_what_runs_write(whole):
    names = set(series(metrics.read(whole[0])))
    assert [name for name in HEADLINE if name not in names] == []
    names |= conditional()
    patterns = [pattern for plot in PLOTS for pattern in plot.patterns]
    assert [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)] == []
    assert "kl_ref" in whole[1].stdout and "gap_max" in whole[1].stdout


def test_only_the_printed_programs_were_compiled(whole):
    """Contract 15: the list printed at start, all of it before the first RL step is over, and nothing after it."""
    printed = re.search(r"sampler programs: (.*)", whole[1].stdout).group(1)
    rl = [row for row in metrics.read(whole[0]) if row["phase"] == "rl"]
    assert {row["sys/compiles"] for row in rl} == {printed.count("[")}
    assert {row["sys/compiles_all"] for row in rl[1:]} == {rl[1]["sys/compiles_all"]}
    # two rollouts a mini-batch, of up to 320 tokens each: a row of 384 or of 512 each, in micro-batches of two
    assert "update programs (rows, tokens): [2, 384], [2, 512]" in whole[1].stdout


def test_the_same_command_says_it_is_finished(whole):
    before = steady(whole[0])
    again = main(whole[0])
    assert again.returncode == 0 and "is finished" in again.stdout
    assert steady(whole[0]) == before


def test_another_config_is_shown_as_a_diff_and_refused(whole):
    refused = main(whole[0], **{"optim.lr": 0.5})
    assert refused.returncode == 2
    assert "optim.lr: 0.0002 -> 0.5" in refused.stderr and "Traceback" not in refused.stderr


def test_a_finished_run_goes_on_when_more_steps_are_asked_for(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "run")
    flags = [*command(tmp_path / "run", **{"train.steps": 5}), "--allow-config-change"]
    done = subprocess.run(flags, env=one_device(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [row["step"] for row in metrics.read(tmp_path / "run") if row["phase"] == "rl"] == [1, 2, 3, 4, 5]
    names = [row["name"] for row in json.loads((tmp_path / "run" / "results.json").read_text())["rows"]]
    assert names[-4:] == ["RL step 4", "RL step 4", "after RL", "after RL"]


def test_without_a_split_to_evaluate_on_a_run_goes_on(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "run")
    flags = [*command(tmp_path / "run", **{"train.steps": 6, "eval.splits": "()"}), "--allow-config-change"]
    done = subprocess.run(flags, env=one_device(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = metrics.read(tmp_path / "run")
    assert [row["step"] for row in rows if row["phase"] == "rl"] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in rows if row["phase"] == "eval"] == [0, 0, 2, 4]


def test_other_tasks_are_refused_before_anything_is_touched(whole, tmp_path):
    run = shutil.copytree(whole[0], tmp_path / "run")
    before = (run / "config.json").read_bytes()
    flags = [*command(run, **{"train.steps": 5, "tasks.max_tools": 1}), "--allow-config-change"]
    done = subprocess.run(flags, env=one_device(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "the saved position is of dataset" in done.stderr and "Traceback" not in done.stderr
    assert (run / "config.json").read_bytes() == before


# An evaluation each, in this order: untrained, after SFT, after RL steps 2 and 4, after RL.
JUDGED = """
import slca.train
values = iter((0.9, 0.1, 0.8, 0.2, 0.3))
def judged(name, *_):
    value = next(values)
    row = dict(name=name, split="heldout_tasks", n=1)
    return [row | dict(temperature=t, metrics={"success@0.9": v}) for t, v in ((1.0, value), (0.0, 1.0 - value))]
slca.train.run_stage = judged
"""


def test_the_checkpoint_kept_as_the_best_is_the_one_that_scored_best(tmp_path):
    """Its own parameters: 4 steps of the cold start and the change to RL make RL step 2 number 7, the end is 11. That the untrained policy
    scored higher does not count for those after it; greedy scores, the last of each evaluation, do not count either."""
    done = program(tmp_path, JUDGED, **{"train.steps": 5, "checkpoint.keep": 1})
    assert done.returncode == 0, done.stderr[-3000:]
    assert steps(tmp_path) == [11, 7]


def test_without_rl_a_run_ends_with_its_cold_start_and_can_be_continued_with_rl(whole, tmp_path):
    done = main(tmp_path, **{"train.steps": 0})
    assert done.returncode == 0, done.stderr[-3000:]
    names = [row["name"] for row in json.loads((tmp_path / "results.json").read_text())["rows"]]
    assert names == ["untrained", "untrained", "after SFT", "after SFT"]
    assert steps(tmp_path)[0] == 5 and not (tmp_path / "reference").exists()
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path), load_params(tmp_path / "checkpoints" / "4"))
    again = main(tmp_path, **{"train.steps": 0})
    assert again.returncode == 0 and "is finished" in again.stdout
    flags = [*command(tmp_path), "--allow-config-change"]
    more = subprocess.run(flags, env=one_device(), capture_output=True, text=True, timeout=300)
    assert more.returncode == 0, more.stderr[-3000:]
    assert steady(tmp_path) == steady(whole[0])  # as if both phases had been asked for at once
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path), load_params(whole[0]))


CLOSED = """
import signal, slca.train
from slca.report.metrics import Writer
run, close = slca.train.run, Writer.close
def closed(self, failed=False):
    print("writer closed", failed)
    close(self, failed)
def handlers():
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
def ran(*args, **options):
    before = handlers()  # whoever starts the tests in the background may have set that SIGINT is ignored
    code = run(*args, **options)
    print("handlers as before", handlers() == before)
    return code
Writer.close, slca.train.run = closed, ran
"""


def test_a_run_leaves_its_writer_closed_and_the_signals_to_the_script_that_called_it(whole, tmp_path):
    run = shutil.copytree(whole[0], tmp_path / "run")
    done = program(run, CLOSED)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("writer closed False") == 1 and "handlers as before True" in done.stdout


def test_a_wrong_task_source_is_said_before_the_cold_start(tmp_path):
    done = main(tmp_path, **{"eval.splits": "('nope',)"})
    assert done.returncode == 2 and "nope" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "config.json").exists(), "a refused run must not claim the folder"


@pytest.mark.parametrize("phase", ["sft", "rl"])
def test_killed_and_continued_ends_with_the_same_numbers(whole, tmp_path, phase):
    """Contract 14; R1-R5 (R2: with mu = 2), R8: parameters, sampled tokens (through the metrics and episodes) and metrics are bit-equal."""
    process = subprocess.Popen(command(tmp_path), env=one_device(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while not any(row["phase"] == phase and row["step"] == 3 for row in metrics.read(tmp_path)):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = main(tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert steady(tmp_path) == steady(whole[0])
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads((whole[0] / "results.json").read_text())
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path), load_params(whole[0]))
    stored = sorted(p.name for p in (whole[0] / "episodes").iterdir())
    assert sorted(p.name for p in (tmp_path / "episodes").iterdir()) == stored
    assert all((tmp_path / "episodes" / n).read_bytes() == (whole[0] / "episodes" / n).read_bytes() for n in stored)


def test_a_step_can_be_profiled_and_sigterm_saves_and_exits_0(tmp_path):
    fields = {"train.steps": 10_000, "eval.every": 0, "run.profile_step": 1}
    process = subprocess.Popen(command(tmp_path, **fields), env=one_device(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
    deadline = time.monotonic() + 240
    while not any((row["phase"], row["step"]) == ("rl", 2) for row in metrics.read(tmp_path)):  # the profiled one
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "the same command continues" in out, out[-3000:]
    names = [row["name"] for row in json.loads((tmp_path / "results.json").read_text())["rows"]]
    assert names == ["untrained"] * 2 + ["after SFT"] * 2 and (tmp_path / "report.html").exists()
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def begun(workdir, sign):
    """A run, started, once its output holds `sign`, or its metrics a row of that (phase, step)."""
    process = subprocess.Popen(command(workdir), env=one_device() | {"PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
    if isinstance(sign, str):
        assert any(sign in line for line in process.stdout), (sign, process.wait())
    else:
        deadline = time.monotonic() + 240
        while not any((row["phase"], row["step"]) == sign for row in metrics.read(workdir)):
            assert process.poll() is None and time.monotonic() < deadline, sign
            time.sleep(0.02)
    return process


@pytest.mark.nightly
def test_sigterm_in_every_phase(whole, tmp_path):
    """Each time it leaves with 0, and in the end the run is as if nothing had happened."""
    signs = ("a new run", "untrained ·", ("sft", 1), "after SFT ·", ("rl", 1), "RL step 2 ·", ("rl", 3), "after RL ·")
    for sign in signs:
        process = begun(tmp_path, sign)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0, (sign, out[-3000:])
        assert "the same command continues" in out or "report: " in out, (sign, out)
    done = main(tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert steady(tmp_path) == steady(whole[0])
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads((whole[0] / "results.json").read_text())
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path), load_params(whole[0]))


@pytest.mark.nightly
@pytest.mark.parametrize("sign", ["a new run", ("sft", 1), ("rl", 1)])
def test_interrupted_twice_ends_at_once(tmp_path, sign):
    process = begun(tmp_path, sign)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    out, _ = process.communicate(timeout=30)
    assert process.returncode in (0, 130) and "Traceback" not in out, out[-3000:]
    assert process.returncode == 0 or "the same command continues from the last checkpoint" in out
    done = main(tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


def test_7b_takes_a_step_with_a_folder_of_its_architecture(tmp_path):
    """The paper's recipe on a CPU: random Qwen2 weights from a Hugging Face folder, scripted simulator, rule-based summary grade."""
    folder = tmp_path / "Qwen2.5-7B-Instruct"
    model = ModelConfig(
        family="qwen2", vocab=4096, width=256, layers=2, heads=8, kv_heads=4, head_dim=32, ff=512, max_length=4096, tied=False
    )
    weights.save(folder, model, transformer.init(model, jax.random.key(0)))
    short = {
        "model.source": folder, "chat.tokenizer": "tiny", "tasks.source": "synth", "sgls.backend": "scripted", "reward.summary": "rule",
        "rollout.prompts": 1, "rollout.group": 2, "train.mini_batches": 1, "train.steps": 1, "train.micro_rows": 1,
        "rollout.max_prompt_tokens": 320, "rollout.max_response_tokens": 128, "rollout.max_turn_tokens": 32,
        "rollout.prompt_buckets": "(320,)", "rollout.suffix_buckets": "(64,)", "train.row_lengths": "(512,)", "eval.tasks": 2,
        "rollout.slots": 2, "rollout.tool_threads": 2,
    }  # fmt: skip
    flags = [f"--config.{name}={value}" for name, value in short.items()]
    done = subprocess.run(
        [sys.executable, "-m", "slca.main", "--config=configs/7b.py", f"--workdir={tmp_path / 'run'}", *flags],
        env=one_device(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    row = [row for row in metrics.read(tmp_path / "run") if row["phase"] == "rl"][-1]
    assert row["train/step/taken"] == 1.0


def test_7b_without_its_weights_says_what_is_missing_in_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "slca.main", "--config=configs/7b.py", f"--workdir={tmp_path}"],
        env=one_device(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    line = next(line for line in done.stderr.splitlines() if "model.source" in line)
    assert "models/Qwen2.5-7B-Instruct" in line and "hf download" in line
    assert "Traceback" not in done.stderr


def program(workdir, lines, **overrides):
    """The main program in a process of its own, after `lines` of Python."""
    start = f"from absl import app\nimport slca.main\n{lines}\napp.run(slca.main.main, flags_parser=slca.main.parse)"
    flags = [sys.executable, "-c", start, *command(workdir, **overrides)[3:]]
    return subprocess.run(flags, env=one_device(), capture_output=True, text=True, timeout=300)


def own_traceback(stderr):
    """Whether a traceback passed through this project. Orbax's threads may print one of theirs, for reads that were in flight
    when another one failed."""
    return f'File "{Path(slca.__file__).parent}' in stderr


def damage(step):
    """Cut every array file of the parameters."""
    for file in (step / "params").rglob("*"):
        if file.is_file() and file.parent.name == "d":
            file.write_bytes(file.read_bytes()[:10])


def steps(workdir):
    return sorted((int(p.name) for p in (workdir / "checkpoints").iterdir() if p.name.isdigit()), reverse=True)


def test_a_corrupt_newest_checkpoint_falls_back_and_says_so(whole, tmp_path):
    run = shutil.copytree(whole[0], tmp_path / "run")
    newest = steps(run)[0]
    damage(run / "checkpoints" / str(newest))
    done = main(run)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{newest} is damaged" in done.stdout and f"damaged-{newest}" in done.stdout
    assert steady(run) == steady(whole[0]) and steps(run)[0] == newest


def test_only_damaged_checkpoints_are_no_new_beginning(whole, tmp_path):
    run = shutil.copytree(whole[0], tmp_path / "run")
    for step in steps(run):
        damage(run / "checkpoints" / str(step))
    kept, metrics_kept = steps(run), (run / "metrics.jsonl").read_bytes()
    for _ in range(2):
        done = main(run)
        assert done.returncode == 2 and "all checkpoints are damaged" in done.stderr and not own_traceback(done.stderr)
        assert steps(run) == kept and (run / "metrics.jsonl").read_bytes() == metrics_kept


def test_a_checkpoint_of_another_schema_is_an_error_and_stays(whole, tmp_path):
    run = shutil.copytree(whole[0], tmp_path / "run")
    done = program(run, "import slca.checkpoint; slca.checkpoint.SCHEMA = 99")
    assert done.returncode == 2 and "has checkpoint schema 1, this version reads 99" in done.stderr
    assert "Traceback" not in done.stderr and steps(run) == steps(whole[0])


def test_metrics_shorter_than_the_checkpoint_says(whole, tmp_path):
    run = shutil.copytree(whole[0], tmp_path / "run")
    (run / "metrics.jsonl").write_bytes((run / "metrics.jsonl").read_bytes()[:100])
    done = main(run)
    assert done.returncode == 2 and "metrics.jsonl has 100 bytes but the checkpoint was saved at" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_one_line_and_the_run_continues_afterwards(whole, tmp_path):
    """Files beyond a size fail to be written, as on a full disk: the first checkpoints of the run pass, its metrics then do not."""
    size = sum(len(line) + 1 for line in (whole[0] / "metrics.jsonl").read_text().splitlines()[:8]) + 10
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.RLIM_INFINITY))"
    full = program(tmp_path / "run", limit, **{"run.compile_cache": False})
    assert full.returncode == 1, full.stderr[-3000:]
    assert "File too large" in full.stderr and not own_traceback(full.stderr)
    done = main(tmp_path / "run", **{"run.compile_cache": False})
    assert done.returncode == 0, done.stderr[-3000:]
    assert steady(tmp_path / "run") == steady(whole[0])


@pytest.mark.nightly
def test_nothing_that_the_model_or_a_service_does_ends_a_run(tmp_path):
    """Contract 16: an untrained policy, tools that fail nine times in ten and a judge that is not there; all of it counted by type."""
    kinds = ("timeout", "429", "500", "empty", "malformed", "stale")
    done = main(tmp_path, **{
        "sgls.faults.rate": 0.9, "sgls.faults.kinds": str(kinds), "reward.summary": "judge", "reward.judge_url": "http://127.0.0.1:9/v1",
        "reward.judge_model": "none", "reward.judge_retries": 0, "reward.judge_timeout": 1.0, "sft.steps": 40, "eval.tasks": 1,
    })  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    rl = [row for row in metrics.read(tmp_path) if row["phase"] == "rl"]
    ends = {name: sum(row[name] for row in rl) for name in rl[0] if name.startswith("rollout/end/")}
    assert len(rl) == 4 and sum(ends.values()) == pytest.approx(4.0) and ends["rollout/end/dead"] == 0.0
    assert sum(value for row in rl for name, value in row.items() if name.startswith("rollout/error/")) > 0


@pytest.mark.nightly
def test_twenty_random_kills(whole, tmp_path):
    """kill -9 at random moments, in saves too, the run continued each time: it ends as one that nobody killed."""
    began = time.monotonic()
    assert main(tmp_path / "again").returncode == 0  # its programs are compiled by now, as those of all that follow
    seconds, rng, kills, ended = time.monotonic() - began, np.random.default_rng(0), 0, 0
    assert steady(tmp_path / "again") == steady(whole[0])
    while kills < 20:
        workdir, finished = tmp_path / f"{ended}", False
        while not finished:
            process = subprocess.Popen(command(workdir), env=one_device(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            try:
                _, said = process.communicate(timeout=rng.uniform(0.2, 0.9) * seconds if kills < 20 else 600)
                finished = True
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                kills += 1
        assert process.returncode == 0, said.decode()[-3000:]
        ended += 1
        assert steady(workdir) == steady(whole[0])
        jax.tree.map(np.testing.assert_array_equal, load_params(workdir), load_params(whole[0]))
    print(f"{kills} kills, {ended} runs continued to their end, {seconds:.0f} s an undisturbed run")
