"""The command: one call, a prompt, replays, export, and its exit codes."""

import io
import json
import subprocess
import sys
import time

import pytest

from slca.sgls import __main__ as command
from slca.sgls.simulator import Simulator
from slca.types import Context
from tests.sgls.tools import SPECS, TOOLS

CALL = json.dumps({"name": "get_weather", "arguments": {"city": "Oslo"}})


@pytest.fixture
def tools(tmp_path):
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([*SPECS, {"name": "bad", "parameters": {"$ref": "http://schemas.invalid/t"}}]))
    return str(path)


def test_one_call(tools, capsys):
    assert command.main(["--tools", tools, "--call", CALL]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["status:", "ok"] and '"source": "scripted"' in lines[1]
    assert json.loads(lines[-1])["city"] == "Oslo" and "refused bad" in err


@pytest.mark.parametrize(
    "call, code, words",
    [
        ('{"name": "nope", "arguments": {}}', 1, "unknown_tool"),
        ('{"name": "get_weather", "arguments": {"city": 3}}', 1, "city: wrong type"),
        ("{", 2, "a call is"),
        ("[1]", 2, "a call is"),
        ('{"name": "get_weather", "arguments": []}', 2, "a call is"),
        ("[" * 100_000, 2, "a call is"),
    ],
)
def test_refused_calls(tools, capsys, call, code, words):
    assert command.main(["--tools", tools, "--call", call]) == code
    assert words in "".join(capsys.readouterr())


def test_the_group_chooses_the_world(tools, capsys):
    texts = []
    for group in ("a", "a", "b", "c", "d"):
        command.main(["--tools", tools, "--call", CALL, "--group", group])
        texts.append(capsys.readouterr().out.splitlines()[-1])
    assert texts[0] == texts[1] and len(set(texts)) > 2


def test_replays_store_and_export(tools, tmp_path, capsys):
    replays, store, out = tmp_path / "replays.jsonl", tmp_path / "s.db", tmp_path / "out.jsonl"
    replays.write_text(json.dumps({"name": "get_weather", "arguments": {"city": "Oslo"}, "text": {"recorded": True}}) + "\n")
    assert command.main(["--tools", tools, "--call", CALL, "--replays", str(replays), "--store", str(store)]) == 0
    assert '{"recorded": true}' in capsys.readouterr().out
    assert command.main(["--store", str(store), "--export", str(out)]) == 0
    assert [json.loads(line)["tool"] for line in out.read_text().splitlines()] == ["get_weather"]
    assert command.main(["--store", str(tmp_path / "none.db"), "--export", str(out)]) == 2


@pytest.mark.parametrize("text", ["", "not json", "[]", '[{"name": 3}]', '{"tools": []}'])
def test_tools_files_that_are_wrong(tmp_path, capsys, text):
    path = tmp_path / "tools.json"
    path.write_text(text)
    assert command.main(["--tools", str(path), "--call", CALL]) == 2
    assert "slca.sgls:" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["lines", "object", "mcp"])
def test_forms_of_a_tools_file(tmp_path, form):
    path = tmp_path / "tools.json"
    mcp = {"tools": [{"name": "get_weather", "inputSchema": SPECS[0]["function"]["parameters"]}]}
    text = {"lines": "\n".join(map(json.dumps, SPECS)), "object": json.dumps(SPECS[0]), "mcp": json.dumps(mcp)}[form]
    path.write_text(text)
    assert "get_weather" in command.load_tools(path).tools


def test_the_prompt():
    out = io.StringIO()
    lines = [":tools", CALL, "", "oops", '{"name": "notes.save", "arguments": {"id": "1", "title": "t", "body": "b"}}']
    lines += ['{"name": "notes.get", "arguments": {"id": "1"}}', ":metrics", ":quit", CALL]
    code = command.repl(Simulator(state="kv"), TOOLS, Context("g"), io.StringIO("\n".join(lines) + "\n"), out)
    text = out.getvalue()
    assert code == 0 and "get_weather: get_weather." in text and '{"id": "1", "title": "t", "body": "b"}' in text
    assert "calls: 3" in text


def test_help_is_quick_and_says_what_matters():
    begun = time.monotonic()
    shown = subprocess.run([sys.executable, "-m", "slca.sgls", "--help"], capture_output=True, text=True, timeout=30)
    assert time.monotonic() - begun < 2 and shown.returncode == 0
    for words in ("--call", "Exit codes", "python -m slca.sgls --tools"):
        assert words in shown.stdout
    missing = subprocess.run([sys.executable, "-m", "slca.sgls"], capture_output=True, text=True, timeout=30)
    assert missing.returncode == 2 and "--tools" in missing.stderr
