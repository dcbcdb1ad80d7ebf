"""Engines and clients for tests: an oracle that says what it is told, the slot engine over a scripted or a tiny sampler."""

from __future__ import annotations

import contextlib
import functools
import json

import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed (extra: serve)")
pytest.importorskip("prometheus_client", reason="prometheus_client is not installed (extra: serve)")

import httpx2

from slca.chat import tokenizer as tokenizers
from slca.chat.template import Template
from slca.serve import make_app
from slca.serve.engine import Piece

HELLO = {"model": "slca", "messages": [{"role": "user", "content": "hi"}]}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}}},
]  # fmt: skip


@functools.cache
def tiny() -> Template:
    return Template(tokenizers.load("tiny"), result_tokens=64)


class Script:
    """A stream of given pieces."""

    def __init__(self, items):
        self.items, self.cancelled = list(items), False

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self.items:
            raise StopAsyncIteration
        item = self.items.pop(0)
        if isinstance(item, Exception):
            raise item
        return item

    def cancel(self):
        self.cancelled = True


class Told:
    """An engine whose every answer is `say(request)`: text or ids, handed out `size` ids a piece, then a stop token."""

    capacity, longest_prompt, constrained = 512, 500, False

    def __init__(self, say, *, size=1000, finish="stop", template=None):
        self.template, self.say, self.size, self.finish = template or tiny(), say, size, finish
        self.requests, self.streams, self.reason = [], [], ""

    def submit(self, request):
        self.requests.append(request)
        said = self.say(request) if callable(self.say) else self.say
        if isinstance(said, Exception):
            raise said
        tokenizer = self.template.tokenizer
        ids = tokenizer.encode_trusted(said) if isinstance(said, str) else list(said)
        ids += [tokenizer.stop_ids[0]] if self.finish == "stop" else []
        parts = [ids[i : i + self.size] for i in range(0, len(ids), self.size)]
        pieces = [Piece(part, [-0.5] * len(part), self.finish if i + 1 == len(parts) else "") for i, part in enumerate(parts)]
        self.streams.append(Script(pieces))
        return self.streams[-1]

    def health(self):
        return self.reason

    def stats(self):
        return {"busy": 1, "seen_total": len(self.requests)}

    def close(self):
        self.reason = "closed"


@contextlib.asynccontextmanager
async def client(engine, **options):
    transport = httpx2.ASGITransport(app=make_app(engine, **options))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=300) as http:
        yield http


async def post(engine, path, body, **options):
    """One request to a server of its own; (status, JSON body)."""
    async with client(engine, **options) as http:
        response = await http.post(path, json=body)
        return response.status_code, response.json()


async def chat(engine, **fields):
    return await post(engine, "/v1/chat/completions", HELLO | fields)


def events(text):
    """The chunks of an event stream; it must end in [DONE]."""
    blocks = text.split("\n\n")
    assert blocks[-1] == "" and blocks[-2] == "data: [DONE]", blocks[-2:]
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


def joined(chunks, index=0):
    """What a client makes of chat chunks: the message, finish reason and logprob entries of one choice."""
    message, finish, entries = {}, None, []
    for part in (part for chunk in chunks for part in chunk["choices"] if part["index"] == index):
        assert finish is None, "a chunk after the last one"
        for key, value in part["delta"].items():
            if key == "tool_calls":
                for call in value:
                    assert call.pop("index") == len(message.setdefault("tool_calls", []))
                    message["tool_calls"].append(call)
            elif key == "role":
                message[key] = value
            else:
                message[key] = message.get(key, "") + value
        entries += (part["logprobs"] or {}).get("content", [])
        finish = part["finish_reason"]
    return message, finish, entries
