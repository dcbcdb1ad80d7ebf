"""What an evaluation finds over all processes, and what it says in the metrics and of a checkpoint."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from slca import processes, stages
from slca.stages import named_scores, score


def rows(*found):
    return [
        {"name": "x", "split": split, "temperature": t, "n": 2, "metrics": {"success@0.9": value, "summary": value / 2}}
        for split, t, value in found
    ]


def test_scores_are_named_by_split_and_temperature():
    assert named_scores(rows(("heldout_tasks", 0.0, 0.5), ("heldout_tools", 0.25, 1.0))) == {
        "eval/heldout_tasks/t0/success@0.9": 0.5, "eval/heldout_tasks/t0/summary": 0.25,
        "eval/heldout_tools/t0.25/success@0.9": 1.0, "eval/heldout_tools/t0.25/summary": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([("a", 0.0, 0.1), ("a", 1.0, 0.2), ("b", 0.0, 0.3), ("b", 1.0, 0.4)], 0.2),  # the first split, sampled
        ([("a", 1.0, 0.2), ("a", 0.0, 0.1)], 0.2),  # in whatever order the temperatures come
        ([("a", 0.0, 0.1)], 0.1),  # where nothing is sampled, greedy
        ([], None),  # nothing evaluated
    ],
)
def test_a_checkpoint_is_scored_by_its_first_split_at_the_highest_temperature(found, expected):
    assert score(rows(*found)) == expected


def test_what_was_not_measured_is_no_score():
    (row,) = rows(("a", 1.0, 0.5))
    del row["metrics"]["success@0.9"]
    assert score([row]) is None


@contextmanager
def phase(name, total):
    yield lambda n: None


def run(monkeypatch, config, *found):
    """The row of one split and temperature where each process found one of these tables."""
    config.eval.update(splits=("heldout_tasks",), temperatures=(0.0,), tasks=4)
    monkeypatch.setattr(stages, "evaluate", lambda *_, **__: found[0])
    monkeypatch.setattr(processes, "gather_json", lambda mine: [mine, *found[1:]])
    simulator = SimpleNamespace(metrics=lambda reset: None)
    parts = SimpleNamespace(sampler=None, template=None, simulator=simulator)
    (row,) = stages.run_stage("after RL", None, config, parts, phase, lambda: None)
    return row["metrics"]


def test_what_a_process_spent_without_solving_anything_counts(monkeypatch, config):
    """20 calls and 2 solved beside 30 calls and none: 25 calls a solved task, whoever rolled out which."""
    two = run(monkeypatch, config, {"cost/calls_per_solved": (20.0, 2)}, {"cost/calls_per_solved": (30.0, 0)})
    one = run(monkeypatch, config, {"cost/calls_per_solved": (50.0, 2)})
    assert two == one == {"cost/calls_per_solved": 25.0}


def test_means_weigh_every_task_alike_and_what_nobody_measured_is_left_out(monkeypatch, config):
    tables = {"name": (3.0, 3), "solved": (0.0, 0)}, {"name": (0.0, 1), "only here": (1.0, 2), "solved": (0.0, 0)}
    assert run(monkeypatch, config, *tables) == {"name": 0.75, "only here": 0.5}
    assert run(monkeypatch, config, tables[0]) == {"name": 1.0}
