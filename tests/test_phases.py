"""Where a run stands: when it has ended, how it goes on from its end, and which tasks come next."""

import pytest

from slca.phases import Position, phase_tasks


@pytest.mark.parametrize(
    ("phase", "rl_steps", "ended"),
    [("sft", 0, False), ("rl", 0, False), ("done", 4, True), ("sft_done", 0, True), ("sft_done", 4, False)],
)
def test_a_run_has_ended_when_nothing_is_left_to_train(config, phase, rl_steps, ended):
    config.train.steps = rl_steps
    assert Position(phase, 4).ended(config) is ended


@pytest.mark.parametrize(
    ("asked", "phase", "names"), [(4, "done", ["after SFT", "after RL"]), (5, "rl", ["after SFT", "RL step 4"])]
)
def test_more_steps_go_on_from_the_end_whose_evaluation_becomes_one_on_the_way(config, asked, phase, names):
    config.train.steps = asked
    position = Position("done", 4, results=[{"name": "after SFT"}, {"name": "after RL"}])
    position.extend(config)
    assert (position.phase, position.step, [row["name"] for row in position.results]) == (phase, 4, names)


def test_each_phase_has_a_stream_of_its_own_and_goes_on_where_it_stood(config):
    ids = {
        phase: [task.id for task in phase_tasks(config.copy_and_resolve_references(), Position(phase)).next(4)]
        for phase in ("sft", "rl")
    }
    assert ids["sft"] != ids["rl"]
    tasks = phase_tasks(config, Position("rl"))
    tasks.next(3)
    position = Position("rl", 1, 1, tasks.state())
    assert [task.id for task in phase_tasks(config, position).next(1)] == ids["rl"][3:]
    config.tasks.max_tools = 1
    with pytest.raises(ValueError, match="the saved position is of dataset"):
        phase_tasks(config, position)
