"""Rows in the shape of the Toucan files, written by hand: the paper's RL and SFT forms and raw dialogues."""

import json

import pytest

from slca.tasks.datasets import evaluation_tasks, read_jsonl
from slca.tasks.dialogues import Unusable, conversation, steps_of
from slca.tasks.toucan import gold_steps, main, raw_tasks, rl_task, sft_task, sides
from slca.types import ToolCall


def tool(name, *fields):
    properties = {field: {"type": "string"} for field in fields}
    return {
        "type": "function",
        "function": {"name": name, "description": name, "parameters": {"type": "object", "properties": properties}},
    }


TOOLS = [tool("museum-search", "query"), tool("museum-open", "id")]
SEARCH, OPEN = ToolCall("museum-search", {"query": "bees"}), ToolCall("museum-open", {"id": "7"})
SYSTEM = "You are a helpful assistant.\n\n# Instructions\nWrite calls in <tool_call></tool_call> tags.\n<tools>\n{}\n</tools>"


def rl_row(gold, **truth):
    return {
        "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Any pictures of bees?"}],
        "data_source": "toucan", "tools": json.dumps(TOOLS), "extra_info": {"has_history": False, "turn_index": None},
        "reward_model": {"style": "rule", "ground_truth": {
            "allowed_tools": ["museum-search", "museum-open"], "gold_tool_calls": gold, "question_content": "Any pictures of bees?",
            "tool_schemas": None, "subset_name": "single-turn-original", **truth}},
    }  # fmt: skip


def gold(*steps):
    return json.dumps([[{"name": call.name, "arguments": dict(call.arguments)} for call in step] for step in steps])


def test_an_rl_row():
    task = rl_task(rl_row(gold([SEARCH, SEARCH], [OPEN])), "t0")
    assert task.gold_steps == [[SEARCH, SEARCH], [OPEN]] and task.kind == "sequential" and task.split == "train"
    assert [message["content"] for message in task.messages] == ["You are a helpful assistant.", "Any pictures of bees?"]
    assert [spec["function"]["name"] for spec in task.tools] == ["museum-search", "museum-open"]
    assert (
        task.meta["flags"] == []
        and task.meta["subset"] == "single-turn-original"
        and task.meta["extra"] == {"has_history": False}
    )


@pytest.mark.parametrize(
    ("value", "steps", "flags"),
    [
        ([[{"name": "f", "parameters": {"a": 1}}]], [[ToolCall("f", {"a": 1})]], []),
        ([[{"function": {"name": "f", "arguments": '{"a": 1}'}}]], [[ToolCall("f", {"a": 1})]], []),
        ('[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]', [[ToolCall("f", {})], [ToolCall("g", {})]], ["flat_gold"]),
        ([["f", "g"]], [[ToolCall("f", {}), ToolCall("g", {})]], ["names_only_gold"]),
        (["f", "g"], [[ToolCall("f", {})], [ToolCall("g", {})]], ["flat_gold", "names_only_gold"]),
        ([[{"name": "f"}]], [[ToolCall("f", {})]], ["names_only_gold"]),
        ([], [], ["empty_gold"]),
    ],
)  # fmt: skip
def test_gold_nested_flat_and_by_name(value, steps, flags):
    assert gold_steps(value) == (steps, flags)


@pytest.mark.parametrize("value", [None, "f", {"name": "f"}, [[{"arguments": {}}]], [[{"name": "f", "arguments": "[1]"}]]])
def test_gold_that_is_no_gold(value):
    with pytest.raises(Unusable):
        gold_steps(value)


def test_tools_may_lie_in_the_ground_truth():
    task = rl_task(rl_row(gold([OPEN]), tool_schemas=[json.dumps(TOOLS[1])]), "t0")
    assert [spec["function"]["name"] for spec in task.tools] == ["museum-open"]
    with pytest.raises(Unusable, match="no usable tool"):
        rl_task(rl_row(gold([OPEN])) | {"tools": "[]"}, "t0")


def call_turn(*calls):
    return {"role": "assistant", "content": "\n".join(f"<tool_call>\n{json.dumps({'name': c.name, 'arguments': dict(c.arguments)})}\n</tool_call>" for c in calls)}  # fmt: skip


SHAPES = {
    "openai": [
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}} for call in (SEARCH, OPEN)]},
        {"role": "tool", "content": "found 7"}, {"role": "tool", "content": "opened"},
    ],
    "function_call": [
        {"role": "assistant", "content": "", "function_call": {"name": "museum-search", "arguments": '{"query": "bees"}'}},
        {"role": "assistant", "content": "", "function_call": {"name": "museum-open", "arguments": '{"id": "7"}'}},
        {"role": "function", "name": "museum-search", "content": "found 7"}, {"role": "function", "content": "opened"},
    ],
    "turns of their own": [
        {"role": "tool_call", "content": "{'name': 'museum-search', 'arguments': '{\"query\": \"bees\"}'}"},
        {"role": "tool_call", "content": '{"name": "museum-open", "arguments": {"id": "7"}}'},
        {"role": "tool_response", "content": "found 7"}, {"role": "tool_response", "content": "opened"},
    ],
    "tags in text": [
        call_turn(SEARCH, OPEN),
        {"role": "user", "content": "<tool_response>\nfound 7\n</tool_response>\n<tool_response>\nopened\n</tool_response>"},
    ],
    "a list in one block": [
        {"from": "gpt", "value": '<tool_call>\n[{"name": "museum-search", "arguments": {"query": "bees"}}, {"name": "museum-open", "arguments": {"id": "7"}}]\n</tool_call>'},
        {"from": "observation", "value": "<tool_response>found 7</tool_response><tool_response>opened</tool_response>"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gives_the_same_conversation(shape):
    messages = conversation([{"role": "user", "content": "Bees?"}, *SHAPES[shape], {"role": "assistant", "content": "Here."}])
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert steps_of(messages) == [[SEARCH, OPEN]]
    ids = [call["id"] for call in messages[1]["tool_calls"]]
    assert [message["tool_call_id"] for message in messages[2:4]] == ids and len(set(ids)) == 2
    assert [message["content"] for message in messages[2:]] == ["found 7", "opened", "Here."]


def test_thoughts_leave_the_text():
    (message,) = conversation([{"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}])
    assert (message["content"], message["reasoning_content"]) == ("Yes.", "hm")


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        ({"role": "narrator", "content": "x"}, "unknown role"),
        ({"role": "tool_call", "content": "__import__('os')"}, "cannot be read"),
        ({"role": "tool", "content": "x"}, "no call"),
        ({"role": "assistant", "content": "<tool_call>\n{broken\n</tool_call>"}, "cannot be read"),
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}, "no name"),
    ],
)
def test_what_cannot_be_a_conversation(turn, reason):
    with pytest.raises(Unusable, match=reason):
        conversation([{"role": "user", "content": "Bees?"}, turn])


def test_sft_rows_in_both_forms():
    turns = [{"role": "user", "content": "Bees?"}, *SHAPES["openai"], {"role": "assistant", "content": "Here."}]
    shared = [{"from": "human", "value": "Bees?"}, *SHAPES["a list in one block"], {"from": "gpt", "value": "Here."}]
    for row in ({"messages": json.dumps(turns)}, {"conversations": shared, "system": "Be kind."}):
        task = sft_task({**row, "tools": json.dumps(TOOLS)}, "s0")
        assert task.gold_steps == [[SEARCH, OPEN]] and task.demo[-1]["content"] == "Here."
        assert task.messages[-1] == {"role": "user", "content": "Bees?"}
    assert task.messages[0] == {"role": "system", "content": "Be kind."}


def dialogue(uuid, turns=1, subset="single-turn-original", **changes):
    messages = [{"role": "system", "content": "<|im_system|>tool_declare<|im_middle|>[]"}]
    for _ in range(turns):
        messages += [{"role": "user", "content": "Bees?"}, *SHAPES["function_call"], {"role": "assistant", "content": "Here."}]
    row = {"uuid": uuid, "subset_name": subset, "messages": messages, "available_tools": TOOLS, "target_tools": "museum-search"}
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in (row | changes).items()}


def test_raw_dialogues_become_samples():
    (task,) = raw_tasks(dialogue("a"))
    assert task.gold_steps == [[SEARCH, OPEN]] and [m["role"] for m in task.messages] == ["user"] and task.meta["turn"] == 0
    second, third = raw_tasks(dialogue("b", turns=3))
    assert (second.id, third.id) == ("b-1", "b-2") and [m["role"] for m in second.messages] == [
        "user", "assistant", "tool", "tool", "assistant", "user",
    ]  # fmt: skip
    assert len(third.messages) == 11 and third.demo == second.demo[:0] + third.demo and len(third.demo) == 4


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (dialogue("a", available_tools=[TOOLS[0]]), "not offered"),
        (dialogue("a", messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hi."}]), "no user turn that needs"),
        (dialogue("a", messages=[{"role": "user", "content": "Hi"}, call_turn(SEARCH)]), "no result"),
        (dialogue("a", messages=[{"role": "user", "content": "Hi"}, call_turn(SEARCH), {"role": "tool", "content": ""}]), "no final answer"),
        (dialogue("a", messages="nothing"), "unknown role"),
        (dialogue(""), "no uuid"),
    ],
)  # fmt: skip
def test_raw_dialogues_that_are_dropped(row, reason):
    if reason == "unknown role":
        row = {**row, "messages": json.dumps([{"content": "x"}])}
    with pytest.raises(Unusable, match=reason):
        raw_tasks(row)


def test_sides_hold_out_first_then_four_to_three():
    dialogues = {f"s{i}": (False, 1) for i in range(100)} | {f"m{i}": (True, 3) for i in range(20)}
    side = sides(dialogues, 0, (30, 10))
    assert side == sides(dict(reversed(dialogues.items())), 0, (30, 10)) != sides(dialogues, 1, (30, 10))
    held = {name: n for name, (where, n) in side.items() if where == "held out"}
    assert (
        sum(n for name, n in held.items() if name[0] == "s") == 30
        and sum(n for name, n in held.items() if name[0] == "m") == 10
    )
    sft, rl = (sum(n for where, n in side.values() if where == wanted) for wanted in ("sft", "rl"))
    assert sft + rl == 70 + 16 * 3 and abs(sft - (sft + rl) * 4 / 7) <= 3


def test_the_command_from_raw_rows(tmp_path, capsys):
    rows = [dialogue(f"s{i}") for i in range(12)] + [dialogue(f"m{i}", turns=3) for i in range(4)]
    rows += [dialogue("x", subset="irrelevant"), dialogue("y", available_tools=[TOOLS[0]]), dialogue("s3")]
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["--raw", str(tmp_path / "raw.jsonl"), "--out", str(tmp_path), "--held-out", "3", "2"]) == 0
    said = capsys.readouterr().out
    assert "1  dropped: irrelevant" in said and "1  dropped: a call of a tool that is not offered" in said
    sft, rl = read_jsonl(tmp_path / "toucan_sft.jsonl"), read_jsonl(tmp_path / "toucan_rl.jsonl")
    held = [task for task in rl if task.split == "heldout_tasks"]
    assert len(held) == 5 and len(sft) + len(rl) - 5 == 15 and all(task.demo for task in sft)
    of = [{task.meta["dialogue"] for task in tasks} for tasks in (sft, [t for t in rl if t.split == "train"], held)]
    assert not of[0] & of[1] and not of[0] & of[2] and not of[1] & of[2]

    from configs.default import get_config

    config = get_config()
    config.tasks.source = f"jsonl:{tmp_path}/toucan_rl.jsonl"
    assert len(evaluation_tasks(config.tasks, "heldout_tasks", 10, 0)) == 5


def test_the_command_on_the_papers_rows(tmp_path, capsys):
    pytest.importorskip("pyarrow", reason="parquet files need pyarrow")
    from pyarrow import Table, parquet

    rows = [rl_row(gold([SEARCH])), rl_row('["museum-open"]'), rl_row("[]")]
    parquet.write_table(Table.from_pylist(rows), tmp_path / "rl.parquet")
    parquet.write_table(Table.from_pylist(rows[:1]), tmp_path / "eval.parquet")
    flags = ["--rl", str(tmp_path / "rl.parquet"), "--eval", str(tmp_path / "eval.parquet"), "--out", str(tmp_path)]
    assert main(flags) == 0
    said = capsys.readouterr().out
    assert "1  flag: flat_gold" in said and "1  flag: names_only_gold" in said and "1  flag: empty_gold" in said
    tasks = read_jsonl(tmp_path / "toucan_rl.jsonl")
    assert [task.split for task in tasks] == ["train"] * 3 + ["heldout_tasks"] and tasks[0].gold_steps == [[SEARCH]]
    assert main([*flags, "--drop-flagged"]) == 0
    assert len(read_jsonl(tmp_path / "toucan_rl.jsonl")) == 3


def test_gold_of_a_tool_that_is_not_offered_is_dropped_and_counted(tmp_path, capsys):
    rows = [rl_row(gold([SEARCH])), rl_row(gold([ToolCall("fly", {})])), rl_row('["fly"]')]
    (tmp_path / "rl.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["--rl", str(tmp_path / "rl.jsonl"), "--out", str(tmp_path)]) == 0
    assert "2  dropped: a call of a tool that is not offered" in capsys.readouterr().out
    assert [task.gold_steps for task in read_jsonl(tmp_path / "toucan_rl.jsonl")] == [[[SEARCH]]]


@pytest.mark.parametrize("content", ["", '{"id": 1}\n'])
@pytest.mark.parametrize(
    ("flag", "kept"), [("--rl", "toucan_rl.jsonl"), ("--sft", "toucan_sft.jsonl"), ("--raw", "toucan_rl.jsonl")]
)
def test_files_without_a_usable_row_leave_what_was_there(tmp_path, capsys, flag, kept, content):
    (tmp_path / "empty.jsonl").write_text(content)
    (tmp_path / kept).write_text("old")
    assert main([flag, str(tmp_path / "empty.jsonl"), "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "no usable row in" in said and f"{kept}: left as before" in said and said.count("\n") == 1
    assert (tmp_path / kept).read_text() == "old" and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", '{"id": 1}\n[1,2]\n', "line 2 must be an object; it is a list"),
        ("a.jsonl", '"x"\n', "line 1 must be an object; it is a text"),
        ("a.jsonl", '{"id": 1}\n{"id" 1}\n', "line 2: not JSON: Expecting ':' delimiter (column 7)"),
        ("a.json", '{"id": 1}', "must be a list of rows, each an object; it is an object"),
        ("a.json", "3", "must be a list of rows, each an object; it is a number"),
        ("a.json", "[{}, 3]", "row 1 must be an object; it is a number"),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.jsonl", b'{"id": "\xe9"}', "not UTF-8"),
    ],
)
@pytest.mark.parametrize("flag", ["--rl", "--sft", "--raw"])
def test_files_of_something_else_are_named(tmp_path, capsys, flag, name, content, said):
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    assert main([flag, str(tmp_path / name), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("slca.tasks.toucan: ") and f"{name}: {said}" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "changes", [{"extra_info": [1]}, {"prompt": 5}, {"prompt": [5]}, {"reward_model": 5}, {"tools": 5}, {"reward_model": {"ground_truth": {"gold_tool_calls": [], "tool_schemas": 5}}}]
)  # fmt: skip
def test_rows_with_parts_of_another_type_are_counted(tmp_path, capsys, changes):
    (tmp_path / "rl.json").write_text(json.dumps([rl_row(gold([SEARCH])), rl_row(gold([SEARCH])) | changes]))
    assert main(["--rl", str(tmp_path / "rl.json"), "--out", str(tmp_path)]) == 0
    assert "1  dropped: not a Toucan row" in capsys.readouterr().out
    raw = [dialogue("a"), dialogue("a"), dialogue("b") | {"messages": 5}, dialogue("a") | {"available_tools": 5}]
    (tmp_path / "raw.json").write_text(json.dumps([raw[3], *raw]))
    assert main(["--raw", str(tmp_path / "raw.json"), "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "3  dropped: not a Toucan row" in said and "1  samples: held out" in said


def test_wrong_commands(tmp_path, capsys):
    for flags in ([], ["--raw", "a", "--rl", "b"], ["--eval", "a"]):
        with pytest.raises(SystemExit):
            main(flags)
    assert main(["--rl", str(tmp_path / "none.jsonl"), "--out", str(tmp_path)]) == 2
    assert "none.jsonl" in capsys.readouterr().err and not list(tmp_path.glob("*.partial"))
