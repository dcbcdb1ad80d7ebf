"""Chat completions from any OpenAI-compatible server (vLLM, SGLang, TGI, a cloud), as one blocking, thread-safe call.

The requests run on one background event loop, because only a cancelled task keeps a deadline against a server that sends a
byte a second for ever. Infrastructure errors are retried, a model's mistake never is (that would inflate results).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import threading
import time
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, NamedTuple
from urllib.parse import urlsplit

MASK = "[redacted]"
MAX_BODY = 4 * 2**20  # bytes of one reply; an endless body ends here
BACKOFF = 0.5  # seconds before the first retry, doubled each time, with full jitter
MAX_BACKOFF = 30.0  # seconds, also the most that a Retry-After header may ask for
BREAKER_FAILURES = 16  # failed requests in a row that open the circuit
BREAKER_SECONDS = 15.0  # how long an open circuit refuses before it lets one request through
CIRCUIT_POLL = 0.05  # seconds between two looks of a call that waits for an open circuit
FAIR_SHARE = 0.5  # of the timeout: a request that had less of it, the rest went by in our queue, says nothing about the server
SCHEMAS_REFUSED = 3  # schemas that a server refuses, without ever taking one, before none is sent any more
RETRIED = frozenset({"connection", "bad_reply", "http_408", "http_409", "http_425", "http_429"})


class Completion(NamedTuple):
    """One reply. Token counts are the server's (0 where it gives none); finish: stop | length | ...; calls: its `tool_calls`."""

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish: str = ""
    calls: tuple[Mapping[str, Any], ...] = ()


class EndpointError(Exception):
    """No completion. kind: timeout | connection | circuit_open | too_large | bad_reply | bad_request | http_<code>."""

    def __init__(self, kind: str, message: str = "", wait: float = 0.0):
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind
        self.wait = wait  # seconds that the server asked for

    @property
    def infrastructure(self) -> bool:
        """True where another try may help: lost connections, overload, server faults, replies that are no completion."""
        return self.kind in RETRIED or self.kind.startswith("http_5")


class Breaker:
    """Refuse requests for a while after many failures in a row, so that a dead server costs little, not deadlines.

    After `seconds` one request goes through, the probe; `lost` counts the probes that failed.
    """

    def __init__(self, failures: int = BREAKER_FAILURES, seconds: float = BREAKER_SECONDS):
        self.limit, self.seconds = failures, seconds
        self.failed = self.lost = 0
        self.retry_at = 0.0
        self._probing = False

    @property
    def open(self) -> bool:
        return self.failed >= self.limit and time.monotonic() < self.retry_at

    def allow(self) -> bool:
        if self.open:
            return False
        if self.failed >= self.limit:
            self._probing = True
            self.retry_at = time.monotonic() + self.seconds  # this one is the probe; the others wait for its outcome
        return True

    def record(self, ok: bool) -> None:
        self.failed = 0 if ok else self.failed + 1
        self.lost += self._probing and not ok
        self._probing = False
        if self.failed == self.limit:
            self.retry_at = time.monotonic() + self.seconds


class Endpoint:
    """An OpenAI-compatible chat endpoint.

    `counts`: requests, retries, failures by kind, and `no_schema`: replies that the server gave only without the schema.

    url: base, e.g. http://127.0.0.1:8001/v1; key_env: environment variable that holds the key ("" or unset = no key);
    timeout: seconds a `complete` call, queueing and retries included; retries: after infrastructure errors, and probes of an open
    circuit that a call sees fail before it gives up; concurrency: requests in flight. Raises ValueError on a URL that is no HTTP(S) URL or carries a password.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key_env: str = "",
        timeout: float = 540.0,
        retries: int = 2,
        concurrency: int = 32,
        breaker: Breaker | None = None,
        backoff: float = BACKOFF,
        max_body: int = MAX_BODY,
    ):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"endpoint url {url!r}: an http(s) URL such as http://127.0.0.1:8001/v1 is needed")
        if parts.password or parts.username:
            raise ValueError(
                "endpoint url: it carries a user or password; put the key in an environment variable and name it in key_env"
            )
        self.url, self.model = url.rstrip("/") + "/chat/completions", model
        self.timeout, self.retries, self.concurrency = timeout, retries, concurrency
        self.backoff, self.max_body = backoff, max_body
        self.counts: Counter[str] = Counter()
        self._key_env = key_env
        self._breaker = breaker or Breaker()
        self._refused: set[int] = set()  # hashes of schemas that the server refuses; it answers the same request without
        self._structured = False  # whether it has ever taken one
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._slots: Any = None

    def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        temperature: float,
        max_tokens: int,
        schema: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        deadline: float | None = None,
    ) -> Completion:
        """The model's reply. schema: JSON Schema asked for through `response_format` where the server has it; tools: function
        specs that the model may call.

        deadline: `time.monotonic()` value that nothing outlives. Raises EndpointError.
        """
        until = time.monotonic() + self.timeout
        until = until if deadline is None else min(until, deadline)
        payload = {"model": self.model, "messages": list(messages), "temperature": temperature, "max_tokens": max_tokens}
        payload |= {"tools": list(tools)} if tools else {}
        future = asyncio.run_coroutine_threadsafe(self._with_retries(payload, schema, until), self._running_loop())
        try:
            completion = future.result(max(0.0, until - time.monotonic()) + 1.0)
        except (TimeoutError, CancelledError):  # the loop itself hangs or was closed
            future.cancel()
            raise EndpointError("timeout", "no answer before the deadline") from None
        return completion._replace(text=self.redact(completion.text))

    def redact(self, text: str) -> str:
        """`text` without the key's value: servers echo headers in errors and even in completions."""
        key = self._key()
        return text.replace(key, MASK).replace(json.dumps(key)[1:-1], MASK) if key else text

    def close(self) -> None:
        """Stop the background loop; requests in flight end as timeouts."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._shut(), loop).result(2.0)
        except TimeoutError:
            pass
        _stop(loop)

    def _key(self) -> str:
        return os.environ.get(self._key_env, "") if self._key_env else ""

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                import httpx2

                self._loop = asyncio.new_event_loop()
                limits = httpx2.Limits(max_connections=self.concurrency, max_keepalive_connections=self.concurrency)
                self._client = httpx2.AsyncClient(limits=limits, timeout=None, follow_redirects=False)
                self._slots = asyncio.Semaphore(self.concurrency)
                threading.Thread(target=_run_loop, args=(self._loop,), name="slca-endpoint", daemon=True).start()
                weakref.finalize(self, _stop, self._loop).atexit = False  # one that nobody holds takes its thread along
            return self._loop

    async def _shut(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()

    async def _with_retries(self, payload: dict[str, Any], schema: Mapping[str, Any] | None, until: float) -> Completion:
        attempt, name = 0, hash(json.dumps(schema))
        known = name in self._refused or (len(self._refused) >= SCHEMAS_REFUSED and not self._structured)
        form = {} if schema is None or known else _response_format(schema)
        while True:
            try:
                completion = await self._attempt(payload | form, until, self.retries - attempt)
            except EndpointError as error:
                if form and error.kind in ("http_400", "http_422"):
                    form = {}  # is it the schema? the same request without it will tell
                    continue
                self.counts[error.kind] += 1
                wait = min(MAX_BACKOFF, max(error.wait, random.uniform(0.5, 1.0) * self.backoff * 2**attempt))
                if not error.infrastructure or attempt >= self.retries or time.monotonic() + wait >= until:
                    raise
            else:
                self._structured = self._structured or bool(form)
                if schema is not None and not form:
                    self._refused.add(name)
                    self.counts["no_schema"] += 1
                return completion
            attempt += 1
            self.counts["retries"] += 1
            await asyncio.sleep(wait)

    async def _attempt(self, payload: dict[str, Any], until: float, tries: int) -> Completion:
        """One request, once the circuit is closed and a slot is free. tries: probes that may fail while it waits."""
        sent, lost = math.inf, self._breaker.lost
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                while True:
                    await self._circuit(until, lost + tries)
                    async with self._slots:
                        if self._breaker.allow():  # it may have opened while this call waited for its slot
                            sent = time.monotonic()
                            self.counts["requests"] += 1
                            completion = await self._request(payload)
                            break
        except TimeoutError:
            if time.monotonic() - sent >= FAIR_SHARE * self.timeout:
                self._breaker.record(False)
            raise EndpointError("timeout", "no answer before the deadline") from None
        except EndpointError as error:
            if error.kind not in ("circuit_open", "bad_request"):  # neither reached the server
                self._breaker.record(error.kind == "too_large" or error.kind.startswith("http_4"))  # alive, if only to refuse
            raise
        self._breaker.record(True)
        return completion

    async def _circuit(self, until: float, last: int) -> None:
        """Wait while the circuit is open. Raises EndpointError once `last` probes are lost, or where the next one comes too late."""
        while self._breaker.open:
            if self._breaker.lost >= last or self._breaker.retry_at >= until:
                raise EndpointError("circuit_open", "the server failed too often in a row")
            await asyncio.sleep(CIRCUIT_POLL)

    async def _request(self, payload: dict[str, Any]) -> Completion:
        import httpx2

        headers = {"Accept-Encoding": "identity"}  # a small compressed body must not become a large one
        if key := self._key():
            headers["Authorization"] = f"Bearer {key}"
        body = bytearray()
        try:
            async with self._client.stream("POST", self.url, json=payload, headers=headers) as response:
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > self.max_body:
                        raise EndpointError("too_large", f"reply over {self.max_body} bytes")
        except (httpx2.HTTPError, OSError) as error:
            raise EndpointError("connection", self.redact(f"{type(error).__name__}: {error}")[:200]) from None
        except ValueError as error:  # half surrogates in a message, a key that is no header value
            raise EndpointError("bad_request", type(error).__name__) from None
        if response.status_code != 200:
            detail = self.redact(bytes(body).decode("utf-8", "replace"))[:200]
            raise EndpointError(f"http_{response.status_code}", detail, _seconds(response.headers.get("retry-after", "")))
        return _completion(bytes(body))


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError):  # it is closed already
        loop.call_soon_threadsafe(loop.stop)


def _seconds(header: str) -> float:
    """Seconds of a Retry-After header; dates and nonsense count as none."""
    return float(header) if header.isdecimal() else 0.0


def _response_format(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "response", "schema": schema}}}


def _completion(body: bytes) -> Completion:
    """The first choice of a reply. Raises EndpointError("bad_reply") where there is none."""
    try:
        reply = json.loads(body)
        choice = reply["choices"][0]
        message = choice["message"]
        calls = tuple(message.get("tool_calls") or ())
        if not all(isinstance(call.get("function") or {}, dict) for call in calls):
            raise TypeError
        text = message.get("content") if calls else message["content"]
        usage = reply.get("usage") or {}
        sent, made = (int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens"))
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise EndpointError("bad_reply", f"no chat completion in the reply ({type(error).__name__})") from None
    if text is not None and not isinstance(text, str):
        raise EndpointError("bad_reply", "message.content is no text")
    return Completion(text or "", sent, made, str(choice.get("finish_reason") or ""), calls)
