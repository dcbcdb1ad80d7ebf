"""The built-in catalogue and the command that lists tools."""

import json
import subprocess
import sys
import time

import pytest

from slca.tasks import catalog
from slca.tasks.entry import argument_schema, result_schema
from slca.tasks.schema import ToolSet
from slca.tasks.skills import fill, mentioned

ENTRIES = [(domain, entry) for domain, entries in catalog.domains().items() for entry in entries]


def test_size():
    assert len(ENTRIES) >= 40 and len(catalog.domains()) >= 8
    assert len({entry.name for _, entry in ENTRIES}) == len(ENTRIES)
    held_out = [domain for domain, entry in ENTRIES if entry.held_out]
    assert len(held_out) >= 8 and set(held_out) == set(catalog.domains())
    assert len(catalog.specs(held_out=True)) == len(held_out)
    assert len(catalog.specs(held_out=True)) + len(catalog.specs(held_out=False)) == len(catalog.specs())


def test_every_tool_loads_with_a_response_schema_and_is_short():
    tools = ToolSet.load(catalog.specs())
    assert not tools.refused and len(tools.tools) == len(ENTRIES)
    for tool in tools.tools.values():
        assert tool.response["properties"] and 1 <= len(tool.parameters["properties"]) <= 3
        assert len(tool.description) <= 60 and len(json.dumps(tool.parameters)) <= 320


@pytest.mark.parametrize(("domain", "entry"), ENTRIES, ids=lambda x: getattr(x, "name", x))
def test_wordings_fit_the_tool(domain, entry):
    required = {name for name, kind in entry.args.items() if not kind.startswith("?")}
    assert len(entry.asks) >= 3 and entry.unseen
    assert not set(entry.asks) & set(entry.unseen)
    for template in (*entry.asks, *entry.unseen):
        assert required <= mentioned(template) <= set(entry.args)
        assert mentioned(fill(template, dict.fromkeys(required, "x"))) == set()  # optional ones are all in brackets
    missing, *without = entry.gap
    assert missing in required
    for template in without:
        assert mentioned(template) <= set(entry.args) - {missing}
    stated = mentioned(entry.says)
    assert stated & set(entry.out) and stated <= required | set(entry.out)


def test_links_join_tools_of_the_same_side():
    by_name = {entry.name: entry for _, entry in ENTRIES}
    assert any(by_name[link.first].held_out for link in catalog.links())
    for link in catalog.links():
        first, second = by_name[link.first], by_name[link.second]
        assert first.held_out == second.held_out and link.asks and link.unseen
        assert first.out[link.field] == second.args[link.argument]
        given = {name for name, kind in {**first.args, **second.args}.items() if not kind.startswith("?")} - {link.argument}
        for template in (*link.asks, *link.unseen):
            assert given <= mentioned(template) <= given | set(first.args)


def test_schemas_of_kinds():
    assert argument_schema("?red|blue") == {"type": "string", "enum": ["red", "blue"]}
    assert argument_schema("int 1..9") == {"type": "integer"}
    assert argument_schema("date") == {"type": "string", "format": "date"}
    assert argument_schema("city") == argument_schema("id F") == {"type": "string"}
    assert result_schema("num 1..9.5") == {"type": "number", "minimum": 1.0, "maximum": 9.5}
    assert result_schema("id F") == {"type": "string", "pattern": "^F[0-9]{4}$"}
    assert result_schema("time") == {"type": "string", "format": "clock"}


def test_help_is_fast_and_says_what_matters():
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "slca.tasks.catalog", "--help"], capture_output=True, text=True, check=True)
    assert time.perf_counter() - begin < 10  # seconds on a busy machine; 0.3 on a quiet one
    assert "example:" in done.stdout and "exit codes:" in done.stdout


def test_command(tmp_path, capsys):
    assert catalog.main([]) == 0
    assert "get_weather(city)" in capsys.readouterr().out
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([{"name": "ok", "parameters": None}, {"name": "bad", "parameters": {"$ref": "http://x"}}]))
    assert catalog.main(["--functions", str(path)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("ok()") and "refused bad: parameters: $ref" in shown.err and "1 tools, 1 refused" in shown.err
    assert catalog.main(["--functions", str(path), "--json"]) == 0
    assert [spec["function"]["name"] for spec in json.loads(capsys.readouterr().out)] == ["ok"]
    path.write_text('[{"name": 3}]')
    assert catalog.main(["--functions", str(path)]) == 1
    path.write_text("{")
    assert catalog.main(["--functions", str(path)]) == 2
    assert catalog.main(["--openapi", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        catalog.main(["--nonsense"])
    assert stop.value.code == 2


def test_yaml(tmp_path, capsys):
    path = tmp_path / "api.yaml"
    path.write_text(
        "openapi: 3.0.3\npaths:\n  /pets/{id}:\n    get:\n      operationId: getPet\n      parameters:\n        - {name: id, in: path, required: true, schema: {type: string}}\n"
    )
    assert catalog.main(["--openapi", str(path)]) == 0
    assert capsys.readouterr().out.startswith("getPet(id)")
    path.write_text("a: [")
    assert catalog.main(["--openapi", str(path)]) == 2


ALIASES = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("a.json", b"\xff\xfe[1]", "not UTF-8"),
        ("a.json", b"[" * 200_000, "nested too deeply"),
        ("a.yaml", b"a0: &a0 x\n" + ALIASES.encode(), "values once its aliases are expanded"),
        ("a.yaml", b"a: &a {b: *a}", "an alias inside itself"),
        ("a.yaml", b"paths: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
    ],
)
def test_hostile_files_are_named_in_one_line(tmp_path, capsys, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    assert catalog.main(["--openapi", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line and words in line
