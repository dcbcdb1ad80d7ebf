"""Over a real socket: clients that hang up, bodies that are too large, the official client."""

import asyncio
import contextlib
import json
import threading

import httpx2
import pytest

from tests.serve.engines import HELLO, TOOLS, Told, make_app
from tests.serve.test_app import Never

uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed (extra: serve)")


@contextlib.contextmanager
def serving(engine, **options):
    """The base address of a server in a thread of its own."""
    config = uvicorn.Config(make_app(engine, **options), port=0, log_level="error", access_log=False)
    server, up = uvicorn.Server(config), threading.Event()
    startup = server.startup

    async def announced(sockets=None):
        await startup(sockets)
        up.set()

    server.startup = announced
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert up.wait(60)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
    assert engine.health() == "closed"


class Gone(Never):
    """Tells a thread when it is cancelled."""

    def __init__(self):
        super().__init__()
        self.told = threading.Event()

    def cancel(self):
        super().cancel()
        self.told.set()


@pytest.mark.parametrize("stream", [False, True])
def test_hanging_up_cancels_the_row(stream):
    engine, rows, begun = Told("x"), [], threading.Event()

    def submit(request):
        rows.append(Gone())
        begun.set()
        return rows[-1]

    engine.submit = submit

    async def hang_up(url):
        reader, writer = await asyncio.open_connection(url.host, url.port)
        body = json.dumps(HELLO | {"stream": stream})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write((head + body).encode())
        await asyncio.to_thread(begun.wait, 60)
        if stream:
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        writer.close()

    with serving(engine) as url:
        asyncio.run(hang_up(httpx2.URL(url)))
        assert rows[0].told.wait(60)


def test_a_large_body_gets_its_status_and_the_connection_lives_on():
    with serving(Told("ok"), max_body=50_000) as url, httpx2.Client(base_url=url, timeout=60) as http:
        headers = {"content-type": "application/json"}
        statuses = [http.post("/v1/chat/completions", content=b" " * n, headers=headers).status_code for n in (600_000, 60_000)]
        assert [*statuses, http.post("/v1/chat/completions", json=HELLO).status_code] == [413, 413, 200]


def test_the_official_client():
    openai = pytest.importorskip("openai", reason="the openai client is not installed")
    said = 'Look: <tool_call>{"name": "get_weather", "arguments": {"city": "Tromsø"}}</tool_call>'
    with serving(Told(said, size=3), key="a key of ours") as url:
        api = openai.OpenAI(base_url=f"{url}/v1", api_key="a key of ours", max_retries=0)
        assert [model.id for model in api.models.list()] == ["slca"]
        message = api.chat.completions.create(**HELLO, tools=TOOLS).choices[0].message
        assert message.content == "Look:" and json.loads(message.tool_calls[0].function.arguments) == {"city": "Tromsø"}
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "4 C"}
        again = {"model": "slca", "messages": [*HELLO["messages"], message, result]}
        assert api.chat.completions.create(**again, tools=TOOLS).choices[0].finish_reason == "tool_calls"
        with api.chat.completions.stream(**HELLO, tools=TOOLS) as stream:
            final = stream.get_final_completion().choices[0]
        assert final.message.content == "Look:" and final.message.tool_calls[0].function.name == "get_weather"
        assert api.completions.create(model="slca", prompt="x").choices[0].text == said
        with pytest.raises(openai.BadRequestError):
            api.chat.completions.create(**HELLO, top_p=0.5)
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{url}/v1", api_key="no", max_retries=0).models.list()
