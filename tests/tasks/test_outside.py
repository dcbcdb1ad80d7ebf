"""Rows in the shape of three public sets, written by hand."""

import json

import pytest

from slca.tasks.datasets import read_jsonl
from slca.tasks.dialogues import Unusable
from slca.tasks.outside import _spec, api_bank, main, nestful, seal_tools
from slca.tasks.schema import ToolSet
from slca.types import ToolCall

SEAL = [
    {"api_name": name, "api_description": f"does {name}", "field": "Art/Bees", "required": ["title"],
     "parameters": {"title": {"type": "str", "description": "a title"}, "year": {"type": "int", "description": ""}},
     "responses": {"id": {"type": "str", "description": "an id"}}}
    for name in ("findFilm", "rateFilm", "findSong", "findBook", "findGame", "findPlay")
]  # fmt: skip
NESTFUL = [
    {"name": "area", "description": "an area", "query_parameters": {"side": {"type": "number", "required": True}, "unit": {"type": "string", "required": False, "enum": ["m"]}},
     "output_parameters": {"area": {"type": "number"}, "plan": {"type": "file"}}},
    {"name": "paint", "description": "paint for an area", "query_parameters": {"area": {"type": "number", "required": True}}, "output_parameters": {}},
]  # fmt: skip


def by_name(tools):
    return {spec["function"]["name"]: spec for spec in map(_spec, tools)}


def seal_row(*calls):
    made = [{"api": name, "parameters": values, "responses": [f"API_call_{i}"]} for i, (name, values) in enumerate(calls)]
    return {"id": "test_out_domain-easy-0", "query": "Rate the film.", "calling": made}


def test_specs_become_json_schema():
    tools = ToolSet.load([*map(_spec, SEAL), *map(_spec, NESTFUL)])
    assert not tools.refused and len(tools.tools) == 8
    area = tools.tools["area"]
    assert area.parameters["required"] == ["side"] and area.response["properties"]["plan"] == {"type": "string"}
    assert tools.tools["findFilm"].parameters["properties"]["year"]["type"] == "integer"
    assert not tools.check(ToolCall("findFilm", {"title": "Bees", "year": 1990})) and tools.check(ToolCall("findFilm", {}))


def test_seal_tools_nested_and_parallel():
    tools = by_name(SEAL)
    nested = seal_tools(seal_row(("findFilm", {"title": "Bees"}), ("rateFilm", {"title": "API_call_0"})), tools)
    assert nested.gold_steps == [[ToolCall("findFilm", {"title": "Bees"})], [ToolCall("rateFilm", {"title": "API_call_0"})]]
    assert nested.meta["flags"] == ["references"] and nested.kind == "sequential" and nested.split == "heldout_tools"
    names = [spec["function"]["name"] for spec in nested.tools]
    assert len(names) == 5 and {"findFilm", "rateFilm"} < set(names)
    assert (
        seal_tools(seal_row(("findFilm", {"title": "Bees"})), tools).tools
        == seal_tools(seal_row(("findFilm", {"title": "Bees"})), tools).tools
    )
    parallel = seal_tools(seal_row(("findFilm", {"title": "Bees"}), ("findSong", {"title": "Bees"})), tools, offered=2)
    assert (
        len(parallel.gold_steps) == 1
        and parallel.kind == "parallel"
        and parallel.meta["flags"] == []
        and len(parallel.tools) == 2
    )
    with pytest.raises(Unusable, match="not described"):
        seal_tools(seal_row(("fly", {})), tools)


def nestful_row():
    output = [
        {"name": "area", "arguments": {"side": 3}, "label": "var1"}, {"name": "area", "arguments": {"side": 4}, "label": "var2"},
        {"name": "paint", "arguments": {"area": "$var1.area$"}, "label": "var3"},
        {"name": "var_result", "arguments": {"paint": "$var3$"}},
    ]  # fmt: skip
    return {"input": "How much paint for a square of 3?", "output": output}


@pytest.mark.parametrize("own", [False, True])
def test_nestful_with_a_specification_or_tools_of_its_own(own):
    row = (
        {**nestful_row(), "sample_id": "n7", "output": json.dumps(nestful_row()["output"]), "tools": json.dumps(NESTFUL)}
        if own
        else nestful_row()
    )
    task = nestful(row, {} if own else by_name(NESTFUL), 7)
    first, second = task.gold_steps
    assert first == [ToolCall("area", {"side": 3}), ToolCall("area", {"side": 4})] and second == [
        ToolCall("paint", {"area": "$var1.area$"})
    ]
    assert task.id == ("n7" if own else "nestful-7") and task.meta["flags"] == ["references"] and len(task.tools) == 2


def bank_row(request="API-Request: [QueryHealth(user_id='J4', day=3)]"):
    described = {"name": "QueryHealth", "description": "health data", "input_parameters": {"user_id": {"type": "str"}, "day": {"type": "int"}}, "output_parameters": {"steps": {"type": "int"}}}  # fmt: skip
    dialogue = "User: My steps, please.\nAI: Who are you?\nUser: J4, on\nday 3.\nGenerate API Request: "
    return {"instruction": f"Generate an API request.\n{json.dumps(described)}", "input": dialogue, "output": request}


def test_api_bank():
    task = api_bank(bank_row(), 2)
    assert task.gold_steps == [[ToolCall("QueryHealth", {"user_id": "J4", "day": 3})]] and task.id == "api-bank-2"
    assert task.messages == [
        {"role": "user", "content": "My steps, please."}, {"role": "assistant", "content": "Who are you?"},
        {"role": "user", "content": "J4, on\nday 3."},
    ]  # fmt: skip
    for request in (
        "API-Request: [QueryHealth(user_id=open('x'))]",
        "API-Request: [QueryHealth('J4')]",
        "AI: hello",
        "API-Request: [Fly()]",
    ):
        with pytest.raises(Unusable):
            api_bank(bank_row(request))


def test_the_command(tmp_path, capsys):
    (tmp_path / "rows.json").write_text(
        json.dumps([nestful_row(), {"input": "?"}, {"input": "?", "output": [{"name": "fly", "arguments": {}}]}])
    )
    (tmp_path / "spec.json").write_text(json.dumps(NESTFUL))
    flags = [
        "nestful",
        str(tmp_path / "rows.json"),
        "--tools",
        str(tmp_path / "spec.json"),
        "--out",
        str(tmp_path / "out.jsonl"),
    ]
    assert main(flags) == 0
    said = capsys.readouterr().out
    assert "1  tasks, 1 of them with references" in said and "not a nestful row" in said and "not described" in said
    (task,) = read_jsonl(tmp_path / "out.jsonl")
    assert task == nestful(nestful_row(), by_name(NESTFUL), 0)
    assert main([*flags[:1], str(tmp_path / "missing.json"), *flags[2:]]) == 2
    with pytest.raises(SystemExit):
        main(["seal-tools", "rows.jsonl", "--out", "x"])


@pytest.mark.parametrize(
    ("rows", "tools", "said"),
    [
        ("3", json.dumps(NESTFUL), "rows.json: must be a list of rows"),
        (json.dumps([nestful_row()]), "[3]", "spec.json: row 0 must be an object"),
        (json.dumps([nestful_row()]), json.dumps([{"name": "area", "parameters": 5}]), "spec.json: row 0 describes no tool"),
    ],
)
def test_files_of_something_else_are_named(tmp_path, capsys, rows, tools, said):
    (tmp_path / "rows.json").write_text(rows)
    (tmp_path / "spec.json").write_text(tools)
    flags = [
        "nestful",
        str(tmp_path / "rows.json"),
        "--tools",
        str(tmp_path / "spec.json"),
        "--out",
        str(tmp_path / "out.jsonl"),
    ]
    assert main(flags) == 2
    error = capsys.readouterr().err
    assert error.startswith("slca.tasks.outside: ") and said in error and error.count("\n") == 1


def test_seal_tools_with_a_number_for_id_and_a_number_of_tools(tmp_path, capsys):
    tools = by_name(SEAL)
    row = seal_row(("findFilm", {"title": "Bees"}))
    assert seal_tools(row | {"id": 7}, tools) == seal_tools(row | {"id": "7"}, tools)
    with pytest.raises(SystemExit) as left:
        main(["seal-tools", "rows.jsonl", "--tools", "tool.jsonl", "--offered", "-3", "--out", str(tmp_path / "x")])
    assert left.value.code == 2 and "--offered -3: a number of tools" in capsys.readouterr().err


def test_a_call_of_a_tool_that_cannot_be_used_is_dropped():
    with pytest.raises(Unusable, match="cannot be used"):
        seal_tools(seal_row(("", {"title": "Bees"})), by_name([{**SEAL[0], "api_name": ""}]))
