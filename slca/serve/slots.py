"""The engine over the slot scheduler: one thread owns the device, requests cross to it by a queue.

    submit ──► inbox ──► device thread: take requests, drop those whose client is gone or late, one round ──► pieces
                                                                                             (to the client's event loop)

A row that is through keeps its slot until another request needs it (`slca.serve.kept`); the next turn of its conversation appends to it.

Nothing a request holds is touched by two threads: the server's side owns its stream, the device thread its row. What goes wrong
on the device ends every request in flight as `Failed` and leaves the engine down; `health` says so from then on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import jax

from slca.rollout.sampler import APPEND_ROWS, BUDGET, STOP, Sampler
from slca.rollout.scheduler import DEAD_END, Row, Scheduler
from slca.rollout.warm import compile_all
from slca.serve.engine import FAILED, DeadEnd, Failed, Full, Late, Piece, Request
from slca.serve.kept import Kept
from slca.serve.run import marker_ids

log = logging.getLogger(__name__)

STARTING = "starting"
CLOSED = "closed"
APPEND_COST = float(APPEND_ROWS)  # tokens prefilled in the time in which one is appended: an append works on that many rows
USUAL_SECONDS = 1.0  # what a request is taken to cost until the first ones are through


class SlotStream:
    """See `slca.serve.engine.Stream`. The device thread only ever calls `deliver` (through the loop) and reads `gone`."""

    def __init__(self, engine: SlotEngine, request: Request):
        self.request, self.loop, self.started = request, asyncio.get_running_loop(), time.monotonic()
        self.gone = False
        self.row: Row | None = None  # the device thread's
        self.sent = 0  # tokens handed out; the device thread's
        self._engine = engine
        self._pieces: deque[Piece | Exception] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        while not self._pieces:
            self._waiter = self.loop.create_future()
            await self._waiter
        item = self._pieces.popleft()
        if isinstance(item, Exception):
            raise item
        return item

    def cancel(self) -> None:
        if not self.gone:
            self.gone = True
            self._engine.wake()

    def deliver(self, item: Piece | Exception) -> None:
        self._pieces.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class SlotEngine:
    """Rows of a policy. `waiting`: requests accepted beyond those that have a slot; the next one is refused (`Full`). `reuse`: from
    how many times what it adds a prompt is appended to a row that holds its beginning (see `Kept`); None = computed whole, always.

    Draws are those of `Sampler.generate` with keys `row_keys(request.seed, 0, 0, request.sample, 0)`: an answer can be made again
    offline. Starts its thread at once; `health` is `starting` until every program has been compiled, then `ready` is called.
    """

    def __init__(
        self,
        sampler: Sampler,
        params: Any,
        template: Any,
        *,
        waiting: int = 256,
        warm: bool = True,
        ready: Callable[[], None] = lambda: None,
        reuse: float | None = APPEND_COST,
    ) -> None:
        self.template, self.sampler = template, sampler
        self.capacity, self.longest_prompt = sampler.capacity, min(sampler.prompt_buckets[-1], sampler.capacity - 1)
        self.limit = sampler.slots + waiting
        self.ends = frozenset(template.stop_ids) | marker_ids(template)
        self.constrained = sampler.constrained
        self._params, self._warm, self._ready = params, warm, ready
        self._scheduler: Scheduler | None = None
        self._kept = Kept(reuse)  # the device thread's
        self._inbox: queue.SimpleQueue[SlotStream | None] = queue.SimpleQueue()
        self._streams: dict[SlotStream, None] = {}  # in flight, oldest first; the device thread's
        self._lock = threading.Lock()
        self._accepted = 0  # requests in flight, under the lock
        self._state = STARTING
        names = ("requests", "cancelled", "late", "refused", "continued", "continued_tokens")
        self._counts = {f"{name}_total": 0 for name in names}
        self._seconds = USUAL_SECONDS  # moving mean of what a request takes
        self._thread = threading.Thread(target=self._run, name="slca-device", daemon=True)
        self._thread.start()

    # ---- the server's side

    def submit(self, request: Request) -> SlotStream:
        if not 0 < len(request.prompt) <= self.longest_prompt or request.max_tokens < 1:
            raise ValueError(f"a prompt of {len(request.prompt)} tokens; 1 to {self.longest_prompt} fit")
        stream = SlotStream(self, request)
        with self._lock:
            if self._state not in ("", STARTING):
                raise Failed(self._state)
            if self._accepted >= self.limit:
                self._counts["refused_total"] += 1
                raise Full(math.ceil(self._seconds * max(1, self._accepted - self.sampler.slots) / self.sampler.slots))
            self._accepted += 1
            self._counts["requests_total"] += 1
            self._inbox.put(stream)  # under the lock: an engine that goes down answers for all it has accepted
        return stream

    def wake(self) -> None:
        """Have the device thread look at its requests even if nothing decodes."""
        self._inbox.put(None)

    def health(self) -> str:
        return self._state

    def stats(self) -> Mapping[str, float]:
        scheduler = self._scheduler
        counts = dict(scheduler.stats) if scheduler is not None else {}
        busy = sum(stream.row is not None and stream.row.slot >= 0 for stream in list(self._streams))
        return {
            "slots": self.sampler.slots, "slots_busy": busy, "slots_kept": len(self._kept), "in_flight": self._accepted, "compiles": self.sampler.compiles(),
            **self._counts, **{f"{name}_total": float(count) for name, count in counts.items()},
        }  # fmt: skip

    def close(self) -> None:
        with self._lock:
            compiling = self._state == STARTING  # which nothing can hurry
            self._state = self._state if self._state not in ("", STARTING) else CLOSED
        self.wake()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=1 if compiling else 60)

    @property
    def alive(self) -> bool:
        """Whether the device thread still runs: a compilation cannot be stopped."""
        return self._thread.is_alive()

    # ---- the device thread

    def _run(self) -> None:
        try:
            self._start()
            if self._state == "":
                self._ready()
            while self._state == "":
                self._take()
                self._drop()
                self._make_room()
                if self._scheduler is not None and self._scheduler.busy:
                    self._scheduler.step()
                    self._hand_out()
        except BaseException as error:  # whatever the device or a bug throws: answer for it, do not vanish
            log.error("the engine failed: %s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
            with self._lock:
                self._state = f"{FAILED}: {type(error).__name__}"
        self._end()

    def _start(self) -> None:
        stops = tuple(sorted(self.ends))
        weights = self.sampler.prepare(self._params)
        if self._warm:
            compile_all(self.sampler, weights, stops)
            self._compile_append(weights)
        self._scheduler = Scheduler(self.sampler, weights, seed=0, step=0, temperature=1.0, stop_ids=stops)
        self._params = None  # the scheduler holds what it needs
        with self._lock:
            self._state = "" if self._state == STARTING else self._state

    def _compile_append(self, weights: Any) -> None:
        """Run the append of each piece length once, on a state of its own."""
        if self._kept.share is not None:
            state = self.sampler.init()
            for bucket in self.sampler.suffix_buckets:
                state = self.sampler.append(weights, state, {0: [0] * bucket})
            jax.block_until_ready(state)

    def _take(self) -> None:
        """Requests that have come; sleeps while there is nothing to do."""
        assert self._scheduler is not None
        wait = not self._streams
        while True:
            try:
                stream = self._inbox.get(block=wait)
            except queue.Empty:
                return
            wait = False
            if stream is not None:
                self._streams[stream] = None
                stream.row = self._row(stream.request)

    def _row(self, asked: Request) -> Row:
        """A new row, or a kept one that goes on. Its draws are the same: they depend on the request and the position alone."""
        assert self._scheduler is not None
        found = self._kept.take(asked.prompt)
        if found is None:
            return self._scheduler.submit(
                asked.prompt, prompt_key=0, sample=asked.sample, budget=asked.max_tokens, temperature=asked.temperature,
                seed=asked.seed, constraint=asked.constraint,
            )  # fmt: skip
        row, added = found
        self._scheduler.append(row, added, asked.max_tokens, asked.constraint)
        row.prompt, row.turn, row.temperature = asked.prompt, 0, asked.temperature
        row.seed, row.sample = asked.seed, asked.sample
        self._counts["continued_total"] += 1
        self._counts["continued_tokens_total"] += len(asked.prompt) - len(added)
        return row

    def _make_room(self) -> None:
        """Give up kept rows that stand in the way of requests."""
        assert self._scheduler is not None
        while len(self._kept) and len(self._streams) + len(self._kept) > self.sampler.slots:
            self._scheduler.cancel(self._kept.oldest())

    def _drop(self) -> None:
        """Free the slots of clients that are gone and of requests that are late."""
        now = time.monotonic()
        for stream in [s for s in self._streams if s.gone or now >= s.request.deadline]:
            self._counts["cancelled_total" if stream.gone else "late_total"] += 1
            self._finish(stream)
            if not stream.gone:
                _send({stream: Late("the deadline came before the last token")})

    def _hand_out(self) -> None:
        """What the round sampled, to the clients' event loops; finished ones end their request."""
        news: dict[SlotStream, Piece | Exception] = {}
        for stream in list(self._streams):
            row, sent = stream.row, stream.sent
            assert row is not None
            stream.sent = len(row.tokens)
            if not row.decoding and row.slot >= 0:
                self._seconds += 0.1 * (time.monotonic() - stream.started - self._seconds)
                news[stream] = _last(row, sent)
                self._finish(stream, keep=row.reason in (STOP, BUDGET))
            elif stream.sent > sent:
                news[stream] = Piece(row.tokens[sent:], row.logprob[sent:])
        _send(news)

    def _finish(self, stream: SlotStream, keep: bool = False) -> None:
        """Let go of a request. keep: its row's turn is over, so it may wait in its slot for what the conversation says next."""
        assert self._scheduler is not None and stream.row is not None
        if not (keep and self._kept.keep(stream.row, (*stream.request.prompt, *stream.row.tokens))):
            self._scheduler.cancel(stream.row)
        del self._streams[stream]
        with self._lock:
            self._accepted -= 1

    def _end(self) -> None:
        """Answer for everything in flight, also for what came while the engine went down."""
        reason = Failed(self._state)
        streams = list(self._streams)
        while True:
            try:
                if (stream := self._inbox.get_nowait()) is not None:
                    streams.append(stream)
            except queue.Empty:
                break
        self._streams.clear()
        self._kept.clear()
        with self._lock:
            self._accepted = 0
        _send(dict.fromkeys(streams, reason))
        self._scheduler = None  # and with it the cache


def _last(row: Row, sent: int) -> Piece | Exception:
    """The end of a row."""
    if row.reason == DEAD_END:
        return DeadEnd("the grammar allows no token")
    return Piece(row.tokens[sent:], row.logprob[sent:], "stop" if row.reason == STOP else "length")


def _send(news: Mapping[SlotStream, Piece | Exception]) -> None:
    """One wake-up an event loop; a loop that is closed has nobody left to tell."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[SlotStream, Piece | Exception]]] = {}
    for stream, item in news.items():
        by_loop.setdefault(stream.loop, []).append((stream, item))
    for loop, items in by_loop.items():
        try:
            loop.call_soon_threadsafe(_deliver, items)
        except RuntimeError:
            for stream, _ in items:
                stream.gone = True


def _deliver(items: list[tuple[SlotStream, Piece | Exception]]) -> None:
    for stream, item in items:
        stream.deliver(item)
