"""The HTTP application over an engine: routes, limits, and what becomes of failures.

A request is validated and rendered off the event loop, its rows go to the engine, and one task waits for them and for the client
to leave, whichever comes first. Only an `ApiError` says anything of its cause; all else is a 500 without detail.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

from slca.serve.answers import Writer, dumps
from slca.serve.constrain import Grammars
from slca.serve.engine import Engine
from slca.serve.errors import ApiError
from slca.serve.fewest import Fewest
from slca.serve.http import GONE, Client, ClientGone, Events, check_host, check_key, event, read_json
from slca.serve.metrics import Metrics
from slca.serve.plan import Limits, Plan, chat_plan, completion_plan
from slca.serve.run import Run
from slca.serve.schema import ChatRequest, CompletionRequest, validated
from slca.serve.text import Choice

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
LINGER = 30.0  # seconds a client has, beyond a request's own, to read the end of a stream


def make_app(
    engine: Engine, *, name: str = "slca", key: str = "", any_host: bool = False, max_body: int = 2**20, limits: Limits | None = None,
) -> FastAPI:  # fmt: skip
    """The application. It closes the engine when it shuts down.

    name: of the model, as clients ask for it; key: bearer key that clients must bring ("" = none); any_host: whether a server
    without key answers to other host names than its own machine's; max_body: bytes of a request.
    """
    server = Server(engine, name, max_body, limits or Limits())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(engine.close)

    async def guard(request: Request) -> None:
        check_key(request, key)
        if not key and not any_host:
            check_host(request)

    app = FastAPI(title="slca", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.router.route_class = Guarded
    known = [Depends(guard)]
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_api_route("/health", server.health, methods=["GET"])
    app.add_api_route("/metrics", server.page, methods=["GET"], dependencies=known)
    app.add_api_route("/v1/models", server.models, methods=["GET"], dependencies=known)
    app.add_api_route("/v1/models/{model:path}", server.one_model, methods=["GET"], dependencies=known)
    app.add_api_route("/v1/chat/completions", server.chat, methods=["POST"], dependencies=known)
    app.add_api_route("/v1/completions", server.completions, methods=["POST"], dependencies=known)
    return app


class Server:
    """The routes of one engine."""

    def __init__(self, engine: Engine, name: str, max_body: int, limits: Limits):
        self.engine, self.name, self.max_body, self.limits = engine, name, max_body, limits
        self.grammars = Grammars(engine.template, getattr(engine, "constrained", False))
        self.fewest = Fewest(engine.template.tokenizer, least=engine.longest_prompt)
        self.metrics = Metrics(engine)
        self.created = int(time.time())

    async def health(self) -> Response:
        reason = self.engine.health()
        body = {"status": "ok"} if not reason else {"status": "unavailable", "reason": reason}
        return _json(body, 503 if reason else 200)

    async def page(self) -> Response:
        return Response(self.metrics.page(), media_type="text/plain; version=0.0.4")

    async def models(self) -> Response:
        return _json({"object": "list", "data": [self._card()]})

    async def one_model(self, model: str) -> Response:
        self._known(model)
        return _json(self._card())

    async def chat(self, request: Request) -> Response:
        def read(data: Any) -> tuple[Any, Plan, bool]:
            asked: ChatRequest = validated(ChatRequest, data)
            self._known(asked.model)
            return asked, chat_plan(asked, data, self.engine, self.grammars, self.fewest, self.limits), bool(asked.logprobs)

        return await self._metered("chat", request, read)

    async def completions(self, request: Request) -> Response:
        def read(data: Any) -> tuple[Any, Plan, bool]:
            asked: CompletionRequest = validated(CompletionRequest, data)
            self._known(asked.model)
            return asked, completion_plan(asked, self.engine, self.fewest, self.limits), asked.logprobs is not None

        return await self._metered("completions", request, read)

    def _card(self) -> dict[str, Any]:
        return {
            "id": self.name, "object": "model", "created": self.created, "owned_by": "slca",
            "max_model_len": self.engine.capacity,
        }  # fmt: skip

    def _known(self, model: str) -> None:
        if model != self.name:
            said = f"there is no model {model[:100]!r} here, only {self.name!r}"
            raise ApiError(404, said, param="model", code="model_not_found")

    async def _metered(self, route: str, request: Request, read: Callable[[Any], tuple[Any, Plan, bool]]) -> Response:
        """Answer one request within its time, and count how it ended; a stream is counted when it is over."""
        began, code = time.monotonic(), 500

        def over(code: int) -> None:
            self.metrics.requests.labels(route, code).inc()
            self.metrics.seconds.labels(route).observe(time.monotonic() - began)

        try:
            async with asyncio.timeout(self.limits.seconds):
                response = await self._answer(route, request, read, over)
            code = response.status_code
        except ClientGone:
            code = GONE
            return Response(status_code=GONE)
        except Exception as error:
            known = _known(error, route)
            code = known.status
            raise known from None
        finally:
            if code != 200 or not isinstance(response, Events):
                over(code)
        return response

    async def _answer(self, route: str, request: Request, read: Any, over: Callable[[int], None]) -> Response:
        data = await read_json(request, self.max_body)
        asked, plan, logprobs = await asyncio.to_thread(read, data)
        run = Run(self.engine, plan)
        writer = Writer(
            plan, self.name, self.engine.template.tokenizer, logprobs, bool(asked.return_token_ids), asked.usage_wanted
        )
        client, streaming = Client(request), False

        def ended(gone: bool) -> None:
            run.cancel()
            over(GONE if gone else 200)

        try:
            if not asked.stream:
                await client.wait_for(run.whole())
                self._count(writer, run.choices)
                return _json(writer.body(run.choices))
            events = self._events(route, writer, run)
            first = await client.wait_for(events.__anext__())
            streaming = True
            return Events(client, first, events, self.limits.seconds + LINGER, ended)
        finally:
            if not streaming:
                client.forget()
                run.cancel()

    async def _events(self, route: str, writer: Writer, run: Run) -> AsyncGenerator[bytes, None]:
        """The chunks of a stream. A failure before the first one is raised, a later one is an event."""
        begun, began = False, time.monotonic()
        try:
            async for index in run.news():
                if (chunk := writer.chunk(index, run.choices[index])) is not None:
                    if not begun:
                        self.metrics.first.labels(route).observe(time.monotonic() - began)
                    begun = True
                    yield event(chunk)
        except Exception as error:
            if not begun:
                raise
            yield event(_known(error, route).body)
            return
        self._count(writer, run.choices)
        if writer.usage:
            yield event(writer.counts(run.choices))
        yield DONE

    def _count(self, writer: Writer, choices: list[Choice]) -> None:
        self.metrics.tokens.labels("prompt").inc(writer.plan.prompt_tokens)
        self.metrics.tokens.labels("completion").inc(sum(len(choice.ids) for choice in choices))
        if writer.chat:
            self.metrics.damaged.inc(sum(writer.answer(choice).damaged for choice in choices))


class Guarded(APIRoute):
    """A route whose unforeseen failures end as a plain 500."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            try:
                return await handler(request)
            except HTTPException:
                raise
            except Exception as error:
                raise _known(error, self.path) from None

        return guarded


def _known(error: Exception, where: str) -> ApiError:
    """What a client may know of an error. The log names its type and place; its text may quote a body."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, TimeoutError):
        return ApiError(504, "no answer within the server's time limit", code="timeout")
    log.error("%s in %s\n%s", type(error).__name__, where, "".join(traceback.format_tb(error.__traceback__)))
    return ApiError(500, "the server failed at this request", code="internal_error")


def _json(body: Mapping[str, Any], status: int = 200) -> Response:
    return Response(dumps(body), status, media_type="application/json")


async def _api_error(request: Request, error: Any) -> Response:
    return Response(dumps(error.body), error.status, media_type="application/json", headers=error.headers)


async def _http_error(request: Request, error: Any) -> Response:
    known = ApiError(error.status_code, str(error.detail)[:200], headers=error.headers)
    return await _api_error(request, known)
