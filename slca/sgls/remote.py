"""An MCP server's tools, called for real, where the engine expects a simulator (extra: `mcp`).

with ToolServer(["python", "-m", "mcp_server_time"]) as server:
    server.simulate(ToolCall("get_current_time", {"timezone": "Europe/Oslo"}), server.toolset, context)
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import Any

from slca.sgls import validation
from slca.sgls.meter import Meter
from slca.sgls.response import cut_middle
from slca.sgls.simulator import FAILED_TEXT
from slca.tasks import imports
from slca.tasks.schema import ToolSet
from slca.types import Context, Observation, ToolCall

START_SECONDS = 30.0  # for the server to start and list its tools
MAX_PAGES = 100  # of its list of tools


class ToolServer:
    """A running MCP server (stdio) and its tools; thread-safe. Calls are validated first, as in the simulator.

    command: program and arguments; env: its environment, by default only what is safe to hand on (no keys);
    timeout: seconds a call; max_chars: longer results are cut in the middle. Raises OSError when it does not start or lists
    nothing usable, ImportError without `mcp`.
    """

    deterministic = False

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 30.0, max_chars: int = 2048
    ):
        try:
            import mcp
        except ImportError:
            raise ImportError("the tools of an MCP server need the package mcp: pip install 'slca[mcp]'") from None
        if not command:
            raise OSError("an MCP server needs a command")
        self._timeout, self._max_chars = timeout, max_chars
        self._meter = Meter()
        self._loop = asyncio.new_event_loop()
        self._stop: asyncio.Event | None = None
        self._client: Any = None
        self._thread = threading.Thread(target=self._run, name="slca-mcp", daemon=True)
        parameters = mcp.StdioServerParameters(command=command[0], args=list(command[1:]), env=dict(env) if env else None)
        ready: Future[list[dict[str, Any]]] = Future()
        self._task = self._live(mcp.stdio_client(parameters), ready)
        self._thread.start()
        try:
            self.toolset = ToolSet.load(imports.mcp(ready.result(START_SECONDS)))
        except Exception as error:
            self.close()
            raise OSError(f"MCP server {command[0]!r}: {type(error).__name__}: {error}"[:300]) from None
        if not self.toolset.tools:
            self.close()
            raise OSError(f"MCP server {command[0]!r}: no usable tool {self.toolset.refused[:3]}")

    def simulate(self, call: ToolCall, toolset: ToolSet, context: Context | None = None) -> Observation:
        """Make the call. Never raises: tool_error is the tool's own, sim_failed and timeout are ours."""
        begun = time.monotonic()
        try:
            observation = validation.jsonschema(call, toolset) or self._call(call)
        except Exception as error:  # one broken call must not end a run
            observation = _failed("sim_failed", type(error).__name__)
        seconds = time.monotonic() - begun
        self._meter.observe(observation, seconds)
        return replace(observation, cost={"seconds": seconds})

    def metrics(self, reset: bool = False) -> dict[str, float]:
        """As `Simulator.metrics`."""
        values = self._meter.values()
        if reset:
            self._meter.reset()
        return values

    def close(self) -> None:
        """Stop the server; its process ends within seconds."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set if self._stop else self._loop.stop)
            self._thread.join(10.0)

    def __enter__(self) -> ToolServer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _call(self, call: ToolCall) -> Observation:
        if self._client is None:
            return _failed("sim_failed", "server_gone")
        future = asyncio.run_coroutine_threadsafe(self._client.call_tool(call.name, dict(call.arguments)), self._loop)
        try:
            result = future.result(self._timeout)
        except TimeoutError:
            future.cancel()
            return _failed("timeout", "timeout")
        except CancelledError:
            return _failed("sim_failed", "server_gone")
        status = "tool_error" if result.is_error else "ok"
        return Observation(cut_middle(_text(result), self._max_chars), status, provenance={"source": "mcp"})

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._task)
        except RuntimeError:  # stopped before it was ready
            pass
        finally:
            self._loop.close()

    async def _live(self, transport: Any, ready: Future[list[dict[str, Any]]]) -> None:
        """The connection's one task: `mcp` wants it opened and closed by the same."""
        from mcp import Client

        self._stop = asyncio.Event()
        try:
            async with Client(transport) as client:
                ready.set_result(await _listed(client))
                self._client = client
                await self._stop.wait()
        except Exception as error:
            while isinstance(error, ExceptionGroup):  # of the transport's task groups, which say nothing themselves
                error = error.exceptions[0]
            if not ready.done():
                ready.set_exception(error)
        finally:
            self._client = None


async def _listed(client: Any) -> list[dict[str, Any]]:
    """All pages of a server's tools. Raises ValueError where they do not end."""
    tools, cursor = [], None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += [tool.model_dump(by_alias=True, exclude_none=True) for tool in page.tools]
        if (cursor := page.next_cursor) is None:
            return tools
    raise ValueError(f"more than {MAX_PAGES} pages of tools")


def _text(result: Any) -> str:
    """What a policy that reads text sees of a result: its texts, the kind of what is none, or else its structured content."""
    if result.content or result.structured_content is None:
        return "\n".join(map(_block, result.content))
    return json.dumps(result.structured_content, ensure_ascii=False)


def _block(block: Any) -> str:
    inner = getattr(block, "resource", block)
    text = getattr(inner, "text", None)
    return text if text is not None else f"[{block.type} {getattr(inner, 'uri', None) or getattr(inner, 'mime_type', '')}]"


def _failed(status: str, kind: str) -> Observation:
    return Observation(FAILED_TEXT, status, provenance={"source": "simulator", "error": kind})
