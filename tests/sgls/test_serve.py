"""The simulated tools as an MCP server: what a client sees."""

import asyncio
import json

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

from slca.sgls import serve
from slca.sgls.simulator import Simulator
from slca.types import Context, ToolCall
from tests.sgls.tools import TOOLS


def talk(conversation, simulator=None, context=None):
    from mcp import Client

    async def run():
        async with Client(serve.build(simulator or Simulator(), TOOLS, context or Context("g"))) as client:
            return await conversation(client)

    return asyncio.run(run())


def test_tools_are_listed_with_their_parameters_and_not_their_responses():
    listed = talk(lambda client: client.list_tools()).tools
    assert [tool.name for tool in listed] == list(TOOLS.tools)
    assert listed[0].input_schema == TOOLS.tools["get_weather"].parameters
    assert "temp_c" not in listed[0].model_dump_json()


def test_calls_are_simulated_and_make_one_transcript():
    async def conversation(client):
        good = await client.call_tool("get_weather", {"city": "Oslo"})
        bad = await client.call_tool("get_weather", {"city": 4})
        return good, bad

    context = Context("g")
    good, bad = talk(conversation, context=context)
    expected = Simulator().simulate(ToolCall("get_weather", {"city": "Oslo"}), TOOLS, Context("g")).text
    assert good.content[0].text == expected and not good.is_error
    assert bad.is_error and bad.content[0].text == "error: invalid_arguments: city: wrong type"
    assert [observation.status for _, observation in context.transcript] == ["ok", "invalid_arguments"]


def test_a_session_keeps_its_state():
    async def conversation(client):
        await client.call_tool("notes.save", {"id": "n1", "title": "t", "body": "kept"})
        return await client.call_tool("notes.get", {"id": "n1"})

    assert json.loads(talk(conversation, Simulator(state="kv")).content[0].text)["body"] == "kept"
