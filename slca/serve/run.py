"""The rows of one request in the engine: submitted together, read together, dropped together."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from slca.serve.engine import DeadEnd, Engine, Failed, Full, Late, Stream
from slca.serve.errors import ApiError
from slca.serve.plan import Plan
from slca.serve.text import Choice


class Run:
    """Raises ApiError where the engine does not take every row: 429 when too many requests wait, 503 when it is down."""

    def __init__(self, engine: Engine, plan: Plan):
        template, reading = engine.template, plan.reading
        ends = frozenset(template.stop_ids) | marker_ids(template)
        options: Any = {} if reading is None else {"markers": template.environment_markers, "forged": reading.forged}
        self.choices = [Choice(template.tokenizer, plan.stops, ends, **options) for _ in plan.rows]
        self.held_by = plan.held_by
        self.deadline = min(row.deadline for row in plan.rows)
        self._streams: list[Stream] = []
        self._tasks: list[asyncio.Task[None]] = []
        try:
            for row in plan.rows:
                self._streams.append(engine.submit(row))
        except Exception as error:
            self.cancel()
            raise _translated(error, 503, plan.held_by) from error

    async def whole(self) -> None:
        """Read every row to its end. Raises ApiError."""
        if len(self.choices) == 1:
            return await self._read(0)
        self._tasks = [asyncio.ensure_future(self._read(i)) for i in range(len(self.choices))]
        await asyncio.gather(*self._tasks)

    async def news(self) -> AsyncIterator[int]:
        """The index of a choice that has grown, again and again, until all are finished. Raises ApiError, TimeoutError."""
        queue: asyncio.Queue[int | Exception | None] = asyncio.Queue()

        async def pump(i: int) -> None:
            try:
                await self._read(i, queue.put_nowait)
                queue.put_nowait(None)
            except Exception as error:
                queue.put_nowait(error)

        self._tasks = [asyncio.ensure_future(pump(i)) for i in range(len(self.choices))]
        live = len(self._tasks)
        while live:
            left = None if math.isinf(self.deadline) else max(0.0, self.deadline - time.monotonic())
            item = await asyncio.wait_for(queue.get(), left)
            if isinstance(item, Exception):
                raise item
            if item is None:
                live -= 1
            else:
                yield item

    def cancel(self) -> None:
        """Nobody wants the rest. Rows that are through do not mind."""
        for task in self._tasks:
            task.cancel()
        for stream in self._streams:
            stream.cancel()

    async def _read(self, i: int, tell: Callable[[int], None] = lambda i: None) -> None:
        choice, stream = self.choices[i], self._streams[i]
        try:
            async for piece in stream:
                choice.push(piece)
                tell(i)
                if choice.finish:
                    return
            raise Failed("the row ended without a reason")
        except (Failed, Late, DeadEnd) as error:
            raise _translated(error, 500, self.held_by) from error
        finally:
            stream.cancel()


def marker_ids(template: Any) -> frozenset[int]:
    """Environment markers that are one token: sampling stops at them, as in training."""
    control = template.tokenizer.control
    return frozenset(control[text] for text in template.environment_markers if text in control)


def _translated(error: Exception, down: int, held_by: str | None) -> Exception:
    """down: the status of a failed engine; held_by: the field whose schema can come to a dead end."""
    match error:
        case Full(retry_after=seconds):
            wait = str(max(1, math.ceil(seconds)))
            return ApiError(429, "too many requests wait; try again later", code="queue_full", headers={"retry-after": wait})
        case Failed():
            return ApiError(down, "the engine is down" if down == 503 else "the engine failed", code="engine_failed")
        case Late():
            return ApiError(504, "no answer within the server's time limit", code="timeout")
        case DeadEnd():
            said = f"{held_by or 'grammar'}: the schema of this request came to a dead end: it is too large, or something in it demands itself without an end"
            return ApiError(400, said, param=held_by, code="invalid_schema")
        case ValueError():
            return ApiError(400, str(error)[:300])
    return error
