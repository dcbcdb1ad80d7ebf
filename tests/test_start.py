"""What is looked at before the first step, and what a run says of itself."""

import logging
from types import SimpleNamespace

import pytest

from configs import default
from slca.algorithm_fit import apply_record
from slca.start import announce, check_tasks
from slca.tasks.datasets import write_jsonl
from slca.tasks.synthesize import tasks


def said(caplog, name, reward=None, **credit):
    config = default.get_config(name)
    config.credit.update(credit)
    config.reward.update(reward or {})
    sampler = SimpleNamespace(slots=8, nbytes=lambda: 2**20, programs=())
    parts = SimpleNamespace(
        algorithm=apply_record(config), model=SimpleNamespace(family="qwen3"), sampler=sampler, mesh=None
    )  # fmt: skip
    with caplog.at_level(logging.INFO, "slca"):
        announce(config, parts, 1_500_000)
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_a_plain_run_is_one_line(caplog):
    ((level, line),) = said(caplog, "slca", tool_weight=2.0, presence="floor", norm="center")
    assert level == "INFO" and line.startswith("slca · qwen3 1.50 M parameters")


@pytest.mark.parametrize(
    "name, given, unread",
    [
        ("grpo", {"tool_weight": 2.0, "ddof": 0}, "credit.tool_weight=2.0"),
        ("dr_grpo", {"norm": "rloo"}, "credit.norm=rloo"),
        ("toolpo", {"presence": "floor", "norm": "center"}, "credit.norm=center, credit.presence=floor"),
        ("rltr", {"summary_weight": 0.5}, "credit.summary_weight=0.5"),
    ],
)
def test_options_that_the_record_does_not_read_are_named(caplog, name, given, unread):
    assert ("WARNING", f"{unread}: no effect on credit.algorithm={name}") in said(caplog, name, **given)


def test_what_the_record_sets_and_needs(caplog):
    assert ("INFO", "dr_grpo sets loss.aggregation=constant") in said(caplog, "dr_grpo")
    expected = "slca+llds needs 2 updates or more a rollout batch: train.mu=2 x train.mini_batches=1"
    assert ("INFO", expected) in said(caplog, "slca+llds")


@pytest.mark.parametrize(
    ("train", "lines"), [(5, ["tasks.train=5: the first 5 of 8 tasks are trained on"]), (8, []), (20_000, [])]
)
def test_tasks_that_nobody_will_be_trained_on_are_said(tmp_path, config, caplog, train, lines):
    write_jsonl(tmp_path / "tasks.jsonl", tasks(0, "train", 8))
    config.tasks.update(source=f"jsonl:{tmp_path}/tasks.jsonl", train=train)
    config.eval.splits = ()
    with caplog.at_level(logging.WARNING, "slca"):
        check_tasks(config)
    assert caplog.messages == lines


def test_reward_weights_without_a_total_reward_are_named(caplog):
    given = {"process_weight": 2.0, "summary_weight": 0.0}
    line = (
        "reward.process_weight=2.0, reward.summary_weight=0.0: weighs scores alone; credit.algorithm=slca reads no total reward"
    )
    assert ("WARNING", line) in said(caplog, "slca", given)
    caplog.clear()
    assert [level for level, _ in said(caplog, "grpo", given)] == ["INFO"]
