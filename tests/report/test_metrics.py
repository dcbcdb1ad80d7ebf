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
        writer.write(0, {"train/loss": 0.25, "train/kl": math.nan, "train/gap": math.inf})
        on_disk = (tmp_path / "metrics.jsonl").read_text()  # flushed before close
    assert json.loads(on_disk) == {
        "step": 0,
        "phase": "rl",
        "train/loss": 0.25,
        "train/kl": None,
        "train/gap": None,
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


def test_tensorboard_sees_the_finite_numbers_and_purges_after_a_resume(tmp_path, monkeypatch):
    seen = []

    class SummaryWriter:
        def __init__(self, logdir, purge_step):
            seen.append(("open", purge_step))

        def add_scalar(self, name, value, step):
            seen.append((name, value, step))

        def flush(self): ...
        def close(self): ...

    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=SummaryWriter))
    with Writer(tmp_path, tensorboard=True) as writer:
        writer.write(7, {"train/loss": 0.5, "train/kl": math.nan})
    with Writer(tmp_path, tensorboard=True):
        pass
    assert seen == [("open", 0), ("train/loss", 0.5, 7), ("sys/nonfinite", 1, 7), ("open", 8)]


def test_wandb_gets_the_config_without_the_key(tmp_path, monkeypatch, config):
    calls = {}

    class Run:
        def define_metric(self, *_, **__): ...
        def log(self, row):
            calls["row"] = row

        def finish(self): ...

    def init(**kwargs):
        calls.update(kwargs)
        return Run()

    module = types.SimpleNamespace(init=init, util=types.SimpleNamespace(generate_id=lambda: "abc123"))
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setenv("SLCA_JUDGE_KEY", "canary-31337-key")
    config.reward.judge_url = "http://judge/?key=canary-31337-key"
    with Writer(tmp_path, wandb=True, config=config) as writer:
        writer.write(3, {"train/loss": 0.5})
    assert calls["row"] == {"train/loss": 0.5, "step/rl": 3}
    assert calls["id"] == "abc123" and calls["config"]["run"]["seed"] == 0
    assert "canary" not in str(calls)
