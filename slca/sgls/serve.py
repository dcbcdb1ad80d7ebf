"""The simulated tools as an MCP server on standard input and output, for any agent framework (extra: `mcp`)."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slca.sgls.simulator import Simulator
    from slca.tasks.schema import ToolSet
    from slca.types import Context


def serve(simulator: Simulator, toolset: ToolSet, context: Context) -> int:
    """Serve until the client closes the pipe; one connection is one rollout. Returns an exit code (2: mcp is not installed)."""
    try:
        from mcp.server.stdio import stdio_server
    except ImportError:
        print("slca.sgls: --serve needs the package mcp: pip install 'slca[mcp]'", file=sys.stderr)
        return 2
    server = build(simulator, toolset, context)

    async def run() -> None:
        async with stdio_server() as (source, sink):
            await server.run(source, sink, server.create_initialization_options())

    asyncio.run(run())
    return 0


def build(simulator: Simulator, toolset: ToolSet, context: Context) -> Any:
    """An `mcp` low-level server: `tools/list` shows the tools, `tools/call` simulates and appends to `context.transcript`."""
    from mcp import types
    from mcp.server.lowlevel import Server

    from slca.types import ToolCall

    turn = asyncio.Lock()  # calls of one rollout come one by one

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        tools = [
            types.Tool(name=tool.name, description=tool.description, input_schema=tool.parameters)
            for tool in toolset.tools.values()
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        call = ToolCall(params.name, params.arguments or {})
        async with turn:
            observation = await asyncio.to_thread(simulator.simulate, call, toolset, context)
            context.transcript.append((call, observation))
        block = types.TextContent(type="text", text=observation.text)
        return types.CallToolResult(content=[block], is_error=observation.status != "ok")

    return Server("slca-sgls", on_list_tools=list_tools, on_call_tool=call_tool)
