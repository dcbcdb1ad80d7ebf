"""Pairs merge exactly; the metrics file continues over a kill without a gap or a double step (R8)."""

import json
import math
import sys
import types

import numpy as np
import pytest

from slca.report.metrics import Writer, finalize, merge, pair, read


def test_merged_mean_is_the_mean_of_all_not_the_mean_of_means():
    left, right = np.array([1.0, 0.0, 1.0, 1.0]), np.array([0.0])
    merged = finalize(merge({"reward": pair(left)}, {"reward": pair(right)}))
    assert merged["reward"] == 3 / 5  # the mean of means would be 0.375


def test_merge_does_not_depend_on_the_order_of_parts():
    parts = [{"x": (value, 1.0)} for value in (1e16, 1.0, -1e16, 1.0)]
    assert merge(*parts)["x"] == merge(*reversed(parts))["x"] == (2.0, 4.0)


def test_opposite_infinities_are_not_a_number_and_no_end_of_the_run():
    assert math.isnan(merge({"x": (math.inf, 1.0)}, {"x": (-math.inf, 1.0)})["x"][0])
    assert math.isnan(pair([math.inf, -math.inf, 1.0])[0]) and pair([math.inf, 1.0]) == (math.inf, 2.0)


def test_weights_unscored_values_and_extremes():
    assert pair([1.0, math.nan, 3.0], [1.0, 5.0, 3.0]) == (10.0, 4.0)
    merged = merge(
        {"gap_max": (0.5, 1.0), "r_min": (4.0, 2.0)}, {"gap_max": (0.25, 1.0), "r_min": (3.0, 1.0)}, {"gap_max": (0, 0)}
    )
    assert finalize(merged) == {"gap_max": 0.5, "r_min": 2.0}


def test_nothing_measured_is_left_out_and_a_number_is_refused_as_a_pair():
    assert finalize({"summary": (0.0, 0.0), "loss": (3.0, 2.0)}) == {"loss": 1.5}
    with pytest.raises(TypeError, match=r"'loss' must be a .* pair"):
        merge({"loss": 0.5})


def test_one_object_a_step_with_null_for_what_is_not_finite(tmp_path):
    with Writer(tmp_path) as writer:
        writer.write(0, {"train/loss": 0.25, "train/kl/old": math.nan, "train/sampler_gap": math.inf})
        on_disk = (tmp_path / "metrics.jsonl").read_text()  # flushed before close
    assert json.loads(on_disk) == {
        "step": 0,
        "phase": "rl",
        "train/loss": 0.25,
        "train/kl/old": None,
        "train/sampler_gap": None,
        "sys/nonfinite": 2,
    }
    assert "NaN" not in on_disk


def test_resume_at_the_saved_offset_has_no_gap_and_no_double_step(tmp_path):
    with Writer(tmp_path) as writer:
        for step in range(3):
            writer.write(step, {"x": step})
        saved = writer.offset()
        writer.write(3, {"x": -1})  # written after the checkpoint, then killed in the middle of a line
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 4, "x')
    with Writer(tmp_path, offset=saved) as writer:
        writer.write(3, {"x": 3})
        writer.write(4, {"x": 4})
    assert [(row["step"], row["x"]) for row in read(tmp_path)] == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]


def test_no_offset_appends_after_the_last_whole_line_and_zero_starts_over(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 0, "x": 1}\n{"step": 1, "x"')
    with Writer(tmp_path) as writer:
        writer.write(1, {"x": 2})
    assert [row["x"] for row in read(tmp_path)] == [1, 2]
    with Writer(tmp_path, offset=0) as writer:
        writer.write(0, {"x": 9})
    assert [row["x"] for row in read(tmp_path)] == [9]


@pytest.mark.parametrize(("offset", "message"), [(999, "has 20 bytes"), (5, "inside a line")])
def test_a_foreign_offset_is_refused(tmp_path, offset, message):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 0, "x": 1}\n')
    with pytest.raises(ValueError, match=message):
        Writer(tmp_path, offset=offset)
    assert len(read(tmp_path)) == 1  # nothing was cut


def test_steps_count_up_within_a_phase(tmp_path):
    with Writer(tmp_path) as writer:
        writer.write(5, {"sft/loss": 1.0}, phase="sft")
        writer.write(0, {"train/loss": 1.0})
        with pytest.raises(ValueError, match="rl step 0 after 0"):
            writer.write(0, {"train/loss": 1.0})
        with pytest.raises(TypeError, match="finalize"):
            writer.write(1, {"train/loss": (1.0, 2.0)})
    assert [row["step"] for row in read(tmp_path)] == [5, 0]


def test_a_damaged_line_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\nnot json\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2"):
        read(tmp_path)
    assert read(tmp_path / "absent.jsonl") == []


@pytest.mark.parametrize(("sink", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_missing_sink_says_what_to_install(tmp_path, monkeypatch, sink, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"slca\[{sink}\]"):
        Writer(tmp_path, **{sink: True})


def boards(monkeypatch):
    """What TensorBoard's writers were told, in order: (phase, "open", purge step), (phase, name, value, step), (phase, "close")."""
    told = []

    class SummaryWriter:
        def __init__(self, logdir, purge_step):
            self.phase = logdir.rpartition("/tensorboard/")[2]
            told.append((self.phase, "open", purge_step))

        def add_scalar(self, name, value, step):
            told.append((self.phase, name, value, step))

        def flush(self): ...
        def close(self):
            told.append((self.phase, "close"))

    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=SummaryWriter))
    return told


def test_tensorboard_sees_the_finite_numbers(tmp_path, monkeypatch):
    told = boards(monkeypatch)
    with Writer(tmp_path, tensorboard=True) as writer:
        writer.write(7, {"train/loss": 0.5, "train/kl/old": math.nan})
    assert told == [("rl", "open", 0), ("rl", "train/loss", 0.5, 7), ("rl", "sys/nonfinite", 1, 7), ("rl", "close")]


def test_tensorboard_hides_of_each_phase_what_was_not_kept(tmp_path, monkeypatch):
    """Cold start to step 50, evaluated; saved at RL step 2, killed at 3. What is resumed hides RL from step 3 on, no step of the cold
    start, and evaluations after that of step 0."""
    with Writer(tmp_path) as writer:
        for step in (49, 50):
            writer.write(step, {"sft/loss": 1.0}, phase="sft")
        writer.write(0, {"eval/x/t0/summary": 0.5}, phase="eval")
        for step in (1, 2):
            writer.write(step, {"train/loss": 1.0})
        saved = writer.offset()
        writer.write(3, {"train/loss": 1.0})
    told = boards(monkeypatch)
    with Writer(tmp_path, offset=saved, tensorboard=True) as writer:
        writer.write(3, {"train/loss": 1.0})
        writer.write(3, {"eval/x/t0/summary": 0.75}, phase="eval")
        writer.write(51, {"sft/loss": 1.0}, phase="sft")
    assert [line for line in told if line[1] == "open"] == [("rl", "open", 3), ("eval", "open", 1), ("sft", "open", 51)]
    told.clear()
    with Writer(tmp_path, offset=0, tensorboard=True) as writer:  # starting over
        writer.write(1, {"sft/loss": 1.0}, phase="sft")
    assert told[0] == ("sft", "open", 0)


def test_evaluations_have_a_row_each_and_may_share_a_step(tmp_path):
    """The untrained policy and the one after the cold start are both at step 0; none may come before the last."""
    with Writer(tmp_path) as writer:
        for score in (0.0, 0.5):
            writer.write(0, {"eval/x/t1/summary": score}, phase="eval")
        writer.write(2, {"eval/x/t1/summary": 0.75}, phase="eval")
        with pytest.raises(ValueError, match="eval step 1 after 2"):
            writer.write(1, {"eval/x/t1/summary": 0.0}, phase="eval")
    assert [(row["phase"], row["step"], row["eval/x/t1/summary"]) for row in read(tmp_path)] == [
        ("eval", 0, 0.0), ("eval", 0, 0.5), ("eval", 2, 0.75),
    ]  # fmt: skip


@pytest.fixture
def wandb(monkeypatch):
    """Weights & Biases, noting what it is told."""
    calls = {"steps": {}}

    class Run:
        def define_metric(self, glob, step_metric):
            calls["steps"][glob] = step_metric

        def log(self, row):
            calls["row"] = row

        def finish(self, exit_code):
            calls["finished"] = exit_code

    def init(**kwargs):
        calls.update(kwargs)
        return Run()

    module = types.SimpleNamespace(init=init)
    monkeypatch.setitem(sys.modules, "wandb", module)
    return calls


def test_wandb_gets_the_config_without_the_key(tmp_path, monkeypatch, config, wandb):
    monkeypatch.setenv("SLCA_JUDGE_KEY", "canary-31337-key")
    config.reward.judge_url = "http://judge/?key=canary-31337-key"
    with Writer(tmp_path, wandb=True, config=config) as writer:
        writer.write(3, {"train/loss": 0.5})
        assert wandb["row"] == {"train/loss": 0.5, "step/rl": 3}
        writer.write(3, {"eval/x/t0/summary": 0.25}, phase="eval")
    assert wandb["row"] == {"eval/x/t0/summary": 0.25, "step/eval": 3}
    assert wandb["steps"] == {"sft/*": "step/sft", "eval/*": "step/eval", "*": "step/rl"}
    known = wandb["id"]
    assert known == (tmp_path / "wandb_id").read_text() != "" and wandb["config"]["run"]["seed"] == 0
    assert "canary" not in str(wandb)
    with Writer(tmp_path, wandb=True):
        assert wandb["id"] == known  # a run that continues stays the same one there
    with Writer(tmp_path / "another", wandb=True):
        assert wandb["id"] != known


def test_a_wandb_that_refuses_is_said_in_a_line(tmp_path, wandb):
    class UsageError(Exception):
        """Its errors are of no built-in kind."""

    def init(**kwargs):
        raise UsageError("No API key configured.\nUse `wandb login` to log in.")

    sys.modules["wandb"].init = init
    with pytest.raises(OSError, match=r"^report\.wandb=True: UsageError: No API key configured\. Use .*WANDB_MODE=offline"):
        Writer(tmp_path, wandb=True)


def test_the_real_wandb_takes_a_run_and_its_continuation(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for step in (1, 2):
        with Writer(tmp_path, wandb=True, config={"a": 1}) as writer:
            writer.write(step, {"train/loss": 0.5})
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 2


@pytest.mark.parametrize(("fault", "code"), [(None, 0), (RuntimeError, 1), (KeyboardInterrupt, None)])
def test_wandb_learns_how_a_run_ended_and_whoever_presses_ctrl_c_does_not_wait(tmp_path, wandb, fault, code):
    try:
        with Writer(tmp_path, wandb=True):
            if fault:
                raise fault
    except (RuntimeError, KeyboardInterrupt):
        pass
    assert wandb.get("finished") == code
