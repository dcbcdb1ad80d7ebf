"""Evaluations of a run: one table from what every process found."""

from contextlib import contextmanager
from types import SimpleNamespace

from slca import processes, stages


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
