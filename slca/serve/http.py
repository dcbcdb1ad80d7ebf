"""HTTP below the API: bodies within bounds, clients that leave, event streams, keys and hosts."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from slca.serve.answers import dumps
from slca.serve.errors import ApiError

DRAINED = 16  # a body so many times too large is still read to its end (and forgotten): only then can its client read the 413
MAX_DEPTH = 100  # levels of a body: encoders and templates recurse

GONE = 499  # what the metrics call a client that left before its answer


async def read_json(request: Request, most: int) -> Any:
    """The body as JSON. Raises ApiError: 413 beyond `most` bytes, 415 for another type, 400 for what is no JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a web page of another origin cannot send this type without being asked about
        raise ApiError(415, "the body must be JSON: content-type: application/json")
    body, size = bytearray(), 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > DRAINED * most:
                break
            body += chunk if size <= most else b""
    except ClientDisconnect:
        raise ClientGone from None
    if size > most:
        raise ApiError(413, f"the body has more than {most} bytes")
    return await asyncio.to_thread(parse_json, bytes(body))


def parse_json(body: bytes) -> Any:
    """Strict JSON: no NaN, no more than MAX_DEPTH levels. Raises ApiError."""
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise ApiError(400, f"the body is not valid JSON{where}") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        parts = [part for part in level if isinstance(part, dict | list)]
        level = [item for part in parts for item in (part.values() if isinstance(part, dict) else part)]
        if not level:
            return value
    raise ApiError(400, f"the body is nested deeper than {MAX_DEPTH} levels")


def _no_constant(name: str) -> None:
    raise ValueError(name)


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


class Client:
    """The other end of a request whose body has been read. One watch for the whole request: a client leaves only once."""

    def __init__(self, request: Request):
        self._gone = asyncio.ensure_future(_disconnect(request))

    async def wait_for(self, work: Awaitable[Any]) -> Any:
        """The result of `work`, which is cancelled when the client leaves (ClientGone)."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._gone}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise ClientGone
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def forget(self) -> None:
        self._gone.cancel()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Events(Response):
    """Server-sent events: one that is there already, then the others. over(gone) is called once, however it ends.

    seconds: a client that reads too slowly to be through by then is left.
    """

    def __init__(self, client: Client, first: bytes, rest: AsyncIterator[bytes], seconds: float, over: Callable[[bool], None]):
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        self._client, self._first, self._rest, self._seconds, self._over = client, first, rest, seconds, over
        del self.headers["content-length"]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        gone = True
        try:
            async with asyncio.timeout(self._seconds):
                await self._client.wait_for(self._send(send))
            gone = False
        except (ClientGone, TimeoutError):
            pass
        finally:
            self._client.forget()
            self._over(gone)

    async def _send(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async for item in self._rest:
            await send({"type": "http.response.body", "body": item, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def event(value: Any) -> bytes:
    return b"data: " + dumps(value) + b"\n\n"


def check_key(request: Request, key: str) -> None:
    """Raises ApiError(401) unless the request bears `key` ("" = none is asked for)."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if key and not (scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), key.encode())):
        raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key", headers={"www-authenticate": "Bearer"})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_host(request: Request) -> None:
    """A server without a key answers only to names of this machine: a web page that re-binds its own name is refused."""
    host = request.headers.get("host", "")
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if not is_loopback(name):
        raise ApiError(403, "this server has no key and answers only to the names of its own machine")
