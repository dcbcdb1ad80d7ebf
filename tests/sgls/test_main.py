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


@pytest.mark.parametrize(
    "text",
    [b"", b"not json", b"[]", b'[{"name": 3}]', b'{"tools": []}', b"null", b"[" * 200_000, b"\xff\xfe[1]", b'[{"name": "\\ud800"}]', b'[{"name": "a", "parameters": {"const": NaN}}]'],
)  # fmt: skip
def test_tools_files_that_are_wrong(tmp_path, capsys, text):
    path = tmp_path / "tools.json"
    path.write_bytes(text)
    assert command.main(["--tools", str(path), "--call", CALL]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("slca.sgls:") and (str(path) in line or "function specs" in line)


def test_a_tools_file_of_ten_megabytes(tmp_path, capsys):
    """One tool beyond the size limit, ten thousand small ones, names that come twice: what is usable is used."""
    small = [
        {"name": f"tool_{i % 9000}", "description": "word " * 100, "parameters": {"type": "object"}} for i in range(10_000)
    ]
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([*SPECS, {"name": "huge", "description": "x" * 5_000_000}, *small]), encoding="utf-8-sig")
    assert path.stat().st_size > 10_000_000
    assert command.main(["--tools", str(path), "--call", CALL]) == 0
    err = capsys.readouterr().err
    assert "refused huge" in err and err.count("already loaded") == 1000


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
    began = time.monotonic()
    shown = subprocess.run([sys.executable, "-m", "slca.sgls", "--help"], capture_output=True, text=True, timeout=30)
    assert shown.returncode == 0
    assert time.monotonic() - began < 10  # seconds on a busy machine; 0.2 on a quiet one
    for words in ("--call", "Exit codes", "python -m slca.sgls --tools"):
        assert words in shown.stdout


def test_without_arguments_the_built_in_tools_are_there():
    lines = b'{"name": "get_weather", "arguments": {"city": "Oslo"}}\n:tools\n\xff\n:quit\n'
    shown = subprocess.run([sys.executable, "-m", "slca.sgls"], input=lines, capture_output=True, timeout=60)
    assert shown.returncode == 2 and b"a call is" in shown.stderr and b"Traceback" not in shown.stderr
    assert b"status:     ok" in shown.stdout and shown.stdout.count(b"\n") > 80


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--backend", "magic"], "magic"),
        (["--backend", "openai"], "sgls.url is empty"),
        (["--backend", "openai", "--url", "ftp://x"], "endpoint url"),
        (["--timeout", "0"], "sgls.timeout"),
        (["--timeout", "soon"], "--timeout"),
        (["--fault-rate", "2"], "sgls.faults.rate"),
        (["--store", "/no/such/folder/s.db"], "unable to open"),
        (["--tools", "a", "--mcp", "b"], "--tools and --mcp"),
        *[
            (["--mcp", "b", flag, value], f"{flag} and --mcp")
            for flag, value in (
                ("--fault-rate", "0.5"),
                ("--state", "kv"),
                ("--cache", "none"),
                ("--store", "s.db"),
                ("--replays", "r.jsonl"),
                ("--mode", "paper"),
                ("--backend", "openai"),
                ("--url", "http://x"),
                ("--model", "m"),
                ("--key-env", "K"),
                ("--group", "g"),
                ("--export", "out.jsonl"),
            )
        ],
        (["--mcp", "b", "--tools", "a", "--state", "kv"], "--tools and --state and --mcp"),
        (["--mcp", "/no/such/program"], "MCP server"),
        (["--mcp", "'"], "quotation"),
        (["--mcp", ""], "an MCP server needs a command"),
        (["--replays", "none.jsonl"], "none.jsonl"),
        (["--unknown"], "--unknown"),
    ],
)
def test_mistakes_are_one_clear_line(capsys, flags, words):
    if words in ("MCP server", "an MCP server needs a command"):
        pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
    try:
        code = command.main([*flags, "--call", CALL])
    except SystemExit as ended:
        code = ended.code
    err = capsys.readouterr().err
    assert code == 2 and words in err.splitlines()[-1] and len(err.splitlines()) <= 2, err


@pytest.mark.parametrize("flags", [["--mcp", "x"], ["--serve"]])
def test_a_missing_extra_is_named(monkeypatch, capsys, flags):
    for name in ("mcp", "mcp.server", "mcp.server.stdio"):
        monkeypatch.setitem(sys.modules, name, None)
    assert command.main(flags) == 2
    assert "pip install 'slca[mcp]'" in capsys.readouterr().err
