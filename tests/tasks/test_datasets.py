"""Stored tasks and the stream over them."""

import json
import sys

import pytest

from slca.tasks import datasets
from slca.tasks.datasets import evaluation_tasks, read_jsonl, stream, task_from_dict, task_to_dict, write_jsonl
from slca.tasks.schema import ToolSet
from slca.tasks.synthesize import tasks
from slca.types import Task, ToolCall


@pytest.fixture
def section(config):
    config.tasks.train = 50
    return config.tasks


def ids(found):
    return [task.id for task in found]


def test_json_round_trip():
    for task in [
        *tasks(0, "train", 70),
        Task("x", [{"role": "user", "content": "é\u2028"}], [], [[], [ToolCall("f", {"a": None})]], meta={"k": 1}),
    ]:
        assert task_from_dict(json.loads(json.dumps(task_to_dict(task)))) == task


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "must be an object"),
        ({"id": "a"}, "messages is missing"),
        ({"id": "a", "messages": [], "tools": [], "gold_steps": [], "color": 1}, "unknown field color"),
        ({"id": "a", "messages": [], "tools": [], "gold_steps": [[{"tool": 1}]]}, "gold_steps"),
        ({"id": "a", "messages": [], "tools": [], "gold_steps": [], "format": 99}, "format 99"),
    ],
)
def test_bad_rows_say_what_is_wrong(data, message):
    with pytest.raises(ValueError, match=message):
        task_from_dict(data)


def test_jsonl(tmp_path, section):
    path = tmp_path / "tasks.jsonl"
    made = [*tasks(0, "train", 20), *tasks(0, "heldout_tasks", 5)]
    assert write_jsonl(path, made) == 25 and read_jsonl(path) == made
    assert [p.name for p in tmp_path.iterdir()] == ["tasks.jsonl"]  # no partial file left
    section.source = f"jsonl:{path}"
    assert sorted(ids(stream(section, "train", 0).next(20))) == sorted(ids(made[:20]))
    assert evaluation_tasks(section, "heldout_tasks", 100, 0) == made[20:]
    with pytest.raises(ValueError, match="no task of split 'heldout_tools'"):
        stream(section, "heldout_tools", 0)
    write_jsonl(tmp_path / "heldout_tools.jsonl", made[:3])
    section.source = f"jsonl:{tmp_path}/{{split}}.jsonl"
    assert ids(evaluation_tasks(section, "heldout_tools", 2, 0)) == ids(made[:2])
    path.write_text('{"id": 1}\n')
    section.source = f"jsonl:{path}"
    with pytest.raises(ValueError, match=r"tasks.jsonl, line 1: .*messages is missing"):
        stream(section, "train", 0)


def test_order_is_a_function_of_seed_and_epoch(section):  # R5
    one = stream(section, "train", 3)
    epochs = [one.next(50) for _ in range(3)]
    assert all(sorted(ids(epoch)) == sorted(ids(tasks(3, "train", 50))) for epoch in epochs)
    orders = [[task.id for task in epoch] for epoch in epochs]
    assert orders[0] != orders[1] != orders[2] and orders[0] != sorted(orders[0])
    again = stream(section, "train", 3)
    assert [again.next(1)[0] for _ in range(150)] == [task for epoch in epochs for task in epoch]
    section.train = 51
    assert ids(stream(section, "train", 3).next(50)) != orders[0]


def test_another_order_of_the_same_tasks_leaves_the_stream_where_it_is(section):
    tasks = stream(section, "train", 5)
    first = [task.id for task in tasks.next(section.train)]
    other = tasks.shuffled(6)
    again = [other.at(k).id for k in range(section.train)]
    assert again != first and sorted(again) == sorted(first)
    assert other.state()["next_index"] == 0 and tasks.state()["next_index"] == section.train
    assert [task.id for task in other.next(3)] == again[:3]


def test_resume(section):
    whole = stream(section, "train", 0).next(70)
    begun = stream(section, "train", 0)
    begun.next(33)
    state = json.loads(json.dumps(begun.state()))
    assert state["next_index"] == 33 and len(json.dumps(state)) < 200
    resumed = stream(section, "train", 0)
    resumed.restore(state)
    assert resumed.next(37) == whole[33:] and resumed.state()["next_index"] == 70


def test_what_was_taken_back_comes_again(section):
    tasks = stream(section, "train", 0)
    first = tasks.next(5)
    tasks.back(2)
    assert tasks.state()["next_index"] == 3 and tasks.next(2) == first[3:]
    with pytest.raises(ValueError, match="5 tasks were taken"):
        tasks.back(6)


@pytest.mark.parametrize(
    "change", [{"max_tools": 2}, {"made_up": 0.1}, {"kinds": ("single",)}, {"domains": ("weather",)}, {"train": 49}]
)
def test_resume_refuses_another_dataset(section, change):
    state = stream(section, "train", 0).state()
    with pytest.raises(ValueError, match="saved position"):
        stream(section, "train", 1).restore(state)
    section.update(change)
    with pytest.raises(ValueError, match="saved position"):
        stream(section, "train", 0).restore(state)


def test_evaluation_tasks_are_always_the_same(section):
    assert evaluation_tasks(section, "heldout_tools", 9, 5) == list(tasks(5, "heldout_tools", 9))


def test_the_bound_on_the_training_stream_bounds_no_other_split(section, tmp_path):
    """Every source: `train` tasks a pass, the first ones of a file; evaluation has as many as it asks for."""
    section.train = 8
    assert evaluation_tasks(section, "heldout_tools", 30, 5) == list(tasks(5, "heldout_tools", 30))
    assert sorted(ids(stream(section, "train", 5).next(16))) == sorted(2 * ids(tasks(5, "train", 8)))
    made = [*tasks(0, "train", 20), *tasks(0, "heldout_tasks", 12)]
    write_jsonl(tmp_path / "tasks.jsonl", made)
    datasets.materialise(tmp_path / "tfds", 0, {"train": 20, "heldout_tasks": 12})
    for source in (f"jsonl:{tmp_path}/tasks.jsonl", f"tfds:{tmp_path}/tfds"):
        section.source = source
        found = stream(section, "train", 5)
        assert found.unused == 12
        once = ids(found.next(8))
        assert len(set(once)) == 8 and sorted(ids(found.next(8))) == sorted(once)
        assert sorted(ids(evaluation_tasks(section, "train", 100, 0))) == sorted(once)
        assert sorted(ids(evaluation_tasks(section, "heldout_tasks", 100, 0))) == sorted(ids(made[20:]))
    section.source = f"jsonl:{tmp_path}/tasks.jsonl"
    assert sorted(ids(stream(section, "train", 5).next(8))) == sorted(ids(made[:8]))


def test_a_bound_that_cuts_nothing_leaves_the_stream_as_it_is(section, tmp_path):
    write_jsonl(tmp_path / "tasks.jsonl", tasks(0, "train", 20))
    section.source = f"jsonl:{tmp_path}/tasks.jsonl"
    state = stream(section, "train", 0).state()
    for size in (20, 10**9):
        section.train = size
        same = stream(section, "train", 0)
        same.restore(state)
        assert same.unused == 0 and "first" not in same.state()["dataset"]
    section.train = 19
    with pytest.raises(ValueError, match="saved position"):
        stream(section, "train", 0).restore(state)


@pytest.mark.parametrize("source", ["synthetic", "jsonl:", "tfds:", "", "jsonl:/nowhere/x.jsonl", "tfds:/nowhere"])
def test_bad_sources(section, source, tmp_path):
    section.source = source.replace("/nowhere", f"{tmp_path}/nowhere")
    with pytest.raises(ValueError, match=r"tasks\.source"):
        stream(section, "train", 0)
    assert not list(tmp_path.iterdir())  # reading never makes a dataset


def test_botocore(section):
    pytest.importorskip("botocore")
    section.source, section.max_tools = "botocore", 3
    found = stream(section, "train", 0).next(20)
    assert len({tool["function"]["name"].split("_")[0] for task in found for tool in task.tools}) > 5


def test_tfds(tmp_path, section):
    sizes = {"train": 30, "heldout_tasks": 4}
    folder = datasets.materialise(tmp_path, 2, sizes, max_tools=2, kinds=("single", "parallel"))
    assert "tensorflow" not in sys.modules
    made = {task.id: task for task in tasks(2, "train", 30, max_tools=2, kinds=("single", "parallel"))}
    for place in (tmp_path, folder):
        section.source = f"tfds:{place}"
        found = stream(section, "train", 0).next(30)
        assert {task.id: task for task in found} == made
    import tensorflow_datasets as tfds

    data = tfds.data_source("slca_tasks", data_dir=str(tmp_path), split="heldout_tasks")
    assert len(data) == 4 and set(data[0]) == {"id", "kind", "task"}
    assert len(tfds.data_source("slca_tasks", data_dir=str(tmp_path), split="train[:50%]")) == 15
    state = stream(section, "train", 0).state()
    with pytest.raises(ValueError, match="exists already"):
        datasets.materialise(tmp_path, 3, sizes)
    other = datasets.materialise(tmp_path / "other", 3, sizes)
    section.source = f"tfds:{other}"
    with pytest.raises(ValueError, match="saved position"):
        stream(section, "train", 0).restore(state)
    with pytest.raises(ValueError, match="cannot read split 'heldout_tools'"):
        stream(section, "heldout_tools", 0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages must be"),
        ({"messages": []}, "at least one"),
        ({"messages": "hi"}, "messages must be"),
        ({"demo": [{"role": "assistant", "content": 3}]}, "demo must be"),
        ({"tools": ["get_weather"]}, "tools must be a list of objects"),
        ({"gold_steps": [[{"name": "a", "arguments": "{}"}]]}, "`arguments` an object"),
        ({"facts": ["Oslo"]}, "facts must be a list of lists"),
        ({"followups": "again"}, "followups must be"),
        ({"id": 7}, "id must be a text"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"x": 1}]}]}, "messages must be messages whose `tool_calls`"),
        ({"demo": [{"role": "assistant", "content": "", "tool_calls": 5}]}, "demo must be messages whose `tool_calls`"),
        ({"messages": [{"role": "tool", "content": "3"}, {"role": "user", "content": "hi"}]}, "`tool` message follows"),
    ],
)  # fmt: skip
def test_inner_types_of_a_stored_task(tmp_path, changes, named):
    task = {"id": "a", "messages": [{"role": "user", "content": "hi"}], "tools": [], "gold_steps": []}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task) + "\n" + json.dumps(task | changes) + "\n")
    with pytest.raises(ValueError, match="line 2") as error:
        read_jsonl(tmp_path / "tasks.jsonl")
    assert named in str(error.value)


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
GOLD = [[{"name": "weather", "arguments": {}}]]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tools": [{}]}, "tool #0 cannot be used: a name must be"),
        ({"tools": [WEATHER, {"name": "f", "parameters": True}]}, "tool f cannot be used: parameters must be a schema object"),
        ({"tools": [{"name": "f", "parameters": {"$ref": "#"}}]}, "tool f cannot be used: parameters: $ref leads back"),
        ({"tools": [WEATHER, WEATHER]}, "tool weather cannot be used: a tool of this name"),
        ({"tools": []}, "gold_steps call 'weather', which the task does not offer: `tools` is empty"),
        ({"gold_steps": [[{"name": "fly", "arguments": {}}]]}, "gold_steps call 'fly', which the task does not offer: those offered are weather"),
    ],
)  # fmt: skip
def test_a_task_that_nobody_can_do_is_refused(tmp_path, config, changes, named):
    task = {"id": "a", "messages": [{"role": "user", "content": "hi"}], "tools": [WEATHER], "gold_steps": GOLD}
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(task) + "\n" + json.dumps(task | {"gold_steps": []}) + "\n" + json.dumps(task | changes) + "\n")
    config.tasks.source = f"jsonl:{path}"
    for read in (lambda: read_jsonl(path), lambda: stream(config.tasks, "train", 0)):
        with pytest.raises(ValueError, match=r"tasks\.jsonl, line 3: task 'a': ") as error:
            read()
        assert named in str(error.value)


def test_equal_tool_sets_are_vetted_once(tmp_path, monkeypatch):
    loads = []
    monkeypatch.setattr(ToolSet, "load", lambda specs: loads.append(specs) or ToolSet({"weather": None}))
    write_jsonl(tmp_path / "tasks.jsonl", [Task(str(i), [{"role": "user", "content": "hi"}], [WEATHER], []) for i in range(50)])
    assert len(read_jsonl(tmp_path / "tasks.jsonl")) == 50 and len(loads) == 1


def test_a_line_that_is_no_json_says_the_column(tmp_path):
    (tmp_path / "tasks.jsonl").write_text('\n{"id": "a", }\n')
    with pytest.raises(ValueError, match=r"tasks\.jsonl, line 2: not JSON: .* \(column \d+\)$"):
        read_jsonl(tmp_path / "tasks.jsonl")


def test_a_bad_line_of_a_split_file_is_found_when_it_is_opened(tmp_path, config):
    task = {"id": "a", "messages": [{"role": "user", "content": "hi"}], "tools": [], "gold_steps": []}
    (tmp_path / "train.jsonl").write_text(json.dumps(task) + "\n" + "{\n")
    config.tasks.source = f"jsonl:{tmp_path}/{{split}}.jsonl"
    with pytest.raises(ValueError, match=r"train\.jsonl, line 2"):
        stream(config.tasks, "train", 0)
    with pytest.raises(ValueError, match=r"cannot read .*heldout_tasks\.jsonl"):
        evaluation_tasks(config.tasks, "heldout_tasks", 1, 0)


def test_a_file_in_another_encoding(tmp_path, config):
    (tmp_path / "tasks.jsonl").write_bytes('{"id": "é"}'.encode("latin-1"))
    config.tasks.source = f"jsonl:{tmp_path}/tasks.jsonl"
    with pytest.raises(ValueError, match=r"is not UTF-8 .byte 8"):
        stream(config.tasks, "train", 0)
