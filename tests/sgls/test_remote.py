"""Real MCP servers as executable tools, over stdio."""

import json
import sys

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

from slca.sgls import __main__ as command
from slca.sgls.remote import ToolServer
from slca.sgls.simulator import Simulator
from slca.types import Context, ToolCall
from tests.sgls.test_episode import caller, play
from tests.sgls.tools import SPECS, TOOLS

CALL = ToolCall("get_weather", {"city": "Oslo"})


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    tools = tmp_path_factory.mktemp("mcp") / "tools.json"
    tools.write_text(json.dumps(SPECS))
    with ToolServer([sys.executable, "-m", "slca.sgls", "--tools", str(tools), "--group", "g", "--serve"]) as one:
        yield one


def test_listed_tools_are_usable_and_calls_are_made(server):
    assert list(server.toolset.tools) == list(TOOLS.tools) and not server.toolset.refused
    seen = server.simulate(CALL, server.toolset, Context("g"))
    assert seen.status == "ok" and seen.provenance == {"source": "mcp"} and seen.cost["seconds"] > 0
    assert seen.text == Simulator().simulate(CALL, TOOLS, Context("g")).text


def test_bad_calls_are_refused_before_the_server_is_asked(server):
    assert server.simulate(ToolCall("get_weather", {"city": 3}), server.toolset).provenance == {"source": "check"}
    assert server.simulate(ToolCall("nope", {}), server.toolset).status == "unknown_tool"
    assert server.simulate(ToolCall(None, None), None).status == "sim_failed"


def test_the_engine_takes_a_tool_server_for_a_simulator(server, config):
    good, bad = ({"name": "get_weather", "arguments": {"city": city}} for city in ("Oslo", 4))
    episodes = play(config, caller([good, bad]), server, server.toolset.specs)
    assert {episode.end for episode in episodes} == {"answered"}
    assert {e.observations[0][0].status for e in episodes} == {"ok", "invalid_arguments"}


def test_a_dead_server_fails_its_calls_and_nothing_hangs(tmp_path):
    script = tmp_path / "server.py"
    script.write_text(
        "import anyio, os, time\n"
        "from mcp.server.mcpserver import MCPServer\n"
        "from mcp.server.mcpserver.exceptions import ToolError\n"
        "server = MCPServer('sick')\n"
        "@server.tool()\ndef ends() -> str:\n    os._exit(3)\n"
        "@server.tool()\ndef hangs() -> str:\n    time.sleep(60)\n    return 'late'\n"
        "@server.tool()\ndef fails() -> str:\n    raise ToolError('no such thing')\n"
        "anyio.run(server.run_stdio_async)\n"
    )
    with ToolServer([sys.executable, str(script)], timeout=3.0) as one:
        statuses = [one.simulate(ToolCall(name, {}), one.toolset).status for name in ("fails", "hangs", "ends", "fails")]
        assert statuses[:2] == ["tool_error", "timeout"]
        assert set(statuses[2:]) <= {"sim_failed", "timeout"}
        assert one.metrics()["calls"] == 4


LISTING = """
import asyncio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

PAGES, ENDLESS = 3, {endless}

async def tools(ctx, params):
    page = int(params.cursor or 0) if params else 0
    tool = types.Tool(name=f"tool_{{page}}", input_schema={{"type": "object", "properties": {{}}}})
    return types.ListToolsResult(tools=[tool], next_cursor=str(page + 1) if ENDLESS or page + 1 < PAGES else None)

async def call(ctx, params):
    resource = types.TextResourceContents(uri="file:///a.txt", text="inside")
    link = types.ResourceLink(name="more", uri="file:///b.txt")
    content = {{
        "tool_0": [types.TextContent(text="seen"), types.ImageContent(data="aGk=", mime_type="image/png")],
        "tool_1": [types.EmbeddedResource(resource=resource), link],
        "tool_2": [],
    }}[params.name]
    return types.CallToolResult(content=content, structured_content={{"degrees": 4}})

async def main():
    server = Server("pages", on_list_tools=tools, on_call_tool=call)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

asyncio.run(main())
"""


def test_every_page_of_tools_is_read_and_no_part_of_a_result_vanishes(tmp_path):
    (tmp_path / "server.py").write_text(LISTING.format(endless=False))
    with ToolServer([sys.executable, str(tmp_path / "server.py")]) as one:
        assert list(one.toolset.tools) == ["tool_0", "tool_1", "tool_2"]
        texts = [one.simulate(ToolCall(name, {}), one.toolset).text for name in one.toolset.tools]
        assert texts == ["seen\n[image image/png]", "inside\n[resource_link file:///b.txt]", '{"degrees": 4}']


def test_a_list_of_tools_without_an_end_is_refused(tmp_path):
    (tmp_path / "server.py").write_text(LISTING.format(endless=True))
    with pytest.raises(OSError, match="pages of tools"):
        ToolServer([sys.executable, str(tmp_path / "server.py")])


@pytest.mark.parametrize("words", [[], ["/no/such/program"], [sys.executable, "-c", "raise SystemExit(1)"]])
def test_what_does_not_start(words):
    with pytest.raises(OSError, match="MCP server"):
        ToolServer(words)


@pytest.mark.nightly
def test_a_published_server_end_to_end(capsys):
    pytest.importorskip("mcp_server_time", reason="PyPI mcp-server-time is not installed")
    call = json.dumps({"name": "get_current_time", "arguments": {"timezone": "Europe/Oslo"}})
    assert command.main(["--mcp", f"{sys.executable} -m mcp_server_time", "--call", call]) == 0
    assert '"timezone": "Europe/Oslo"' in capsys.readouterr().out
