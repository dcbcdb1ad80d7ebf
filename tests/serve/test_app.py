"""Every endpoint over an oracle: bodies, streams, limits, keys, failures, clients that leave."""

import asyncio
import json

import pytest

from slca.serve.engine import Failed, Full, Late, Piece
from slca.serve.plan import Limits
from tests.serve.engines import HELLO, TOOLS, Script, Told, chat, client, events, joined, post, tiny

CALLS = 'Two: <tool_call>{"name": "get_weather", "arguments": {"city": "Tromsø"}}</tool_call><tool_call>{"name": "get_time", "arguments": {}}</tool_call>'


def encoded(text):
    return tiny().tokenizer.encode_trusted(text)


async def streamed(engine, path="/v1/chat/completions", **fields):
    async with client(engine) as http:
        response = await http.post(path, json=HELLO | {"stream": True} | fields)
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream"), response.text
        return events(response.text)


def test_chat_by_hand():
    engine = Told("hé!")
    status, body = asyncio.run(chat(engine, seed=7, temperature=0.5, max_tokens=9))
    asked = engine.requests[0]
    assert (status, body["object"], body["model"]) == (200, "chat.completion", "slca")
    message = {"role": "assistant", "content": "hé!", "refusal": None}
    assert body["choices"] == [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}]
    prompt, sampled = len(tiny().prompt(HELLO["messages"])), len(encoded("hé!")) + 1
    assert body["usage"] == {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
    assert (asked.seed, asked.temperature, asked.max_tokens, asked.sample) == (7, 0.5, 9, 0)
    assert (asked.messages, list(asked.tools)) == (HELLO["messages"], [])


def test_defaults_fill_the_context_and_seeds_differ():
    engine = Told("a")
    asyncio.run(chat(engine))
    asyncio.run(chat(engine))
    first, second = engine.requests
    assert first.max_tokens == engine.capacity - len(first.prompt) and first.temperature == 1.0 and first.seed != second.seed


def test_tool_calls_in_a_body():
    _, body = asyncio.run(chat(Told(CALLS), tools=TOOLS))
    choice = body["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == "Two:"
    calls = choice["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"name": "get_weather", "arguments": '{"city": "Tromsø"}'}, {"name": "get_time", "arguments": "{}"},
    ]  # fmt: skip
    assert len({call["id"] for call in calls}) == 2 and all(call["type"] == "function" for call in calls)


def test_tool_choice_and_parallel_calls():
    _, body = asyncio.run(chat(Told(CALLS), tools=TOOLS, tool_choice="none"))
    assert body["choices"][0]["message"]["content"] == CALLS and "tool_calls" not in body["choices"][0]["message"]
    _, body = asyncio.run(chat(Told(CALLS), tools=TOOLS, tool_choice="auto", parallel_tool_calls=False))
    assert [call["function"]["name"] for call in body["choices"][0]["message"]["tool_calls"]] == ["get_weather"]
    for choice in ("required", {"type": "function", "function": {"name": "get_time"}}):
        status, body = asyncio.run(chat(Told(CALLS), tools=TOOLS, tool_choice=choice))
        assert status == 400 and body["error"]["param"] == "tool_choice"  # an oracle knows no grammar


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    "said", ["naïve 日本 🙂 done", CALLS, "<think>so</think>\n\nyes", "a <tool_call>{bad", "stop here or there", ""]
)
def test_a_stream_says_what_the_body_says(said, size):
    fields = {"tools": TOOLS, "stop": ["or the"], "logprobs": True, "seed": 1, "return_token_ids": True}
    _, body = asyncio.run(chat(Told(said), **fields))
    chunks = asyncio.run(streamed(Told(said, size=size), stream_options={"include_usage": True}, **fields))
    whole = body["choices"][0]
    message, finish, entries = joined(chunks)
    expected = {key: value for key, value in whole["message"].items() if key != "refusal"}
    assert message | {"content": message["content"] or expected["content"]} == expected
    assert finish == whole["finish_reason"] and entries == whole["logprobs"]["content"]
    assert [i for chunk in chunks for part in chunk["choices"] for i in part["token_ids"]] == whole["token_ids"]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == body["usage"]
    assert all(chunk["usage"] is None and chunk["object"] == "chat.completion.chunk" for chunk in chunks[:-1])
    assert not any("\ufffd" in part["delta"].get("content", "") for chunk in chunks for part in chunk["choices"])


@pytest.mark.parametrize("size", [1, 1000])
def test_stop_strings_end_the_answer_and_its_row(size):
    engine = Told("one two three", size=size)
    _, body = asyncio.run(chat(engine, stop=["o th", "zzz"]))
    assert body["choices"][0]["message"]["content"] == "one tw" and body["choices"][0]["finish_reason"] == "stop"
    ids = encoded("one two three")
    needed = next(n for n in range(len(ids)) if "o th" in tiny().tokenizer.decode(ids[:n]))
    assert body["usage"]["completion_tokens"] == needed
    assert engine.streams[0].cancelled


def test_length():
    _, body = asyncio.run(chat(Told("one two", finish="length"), max_tokens=3))
    assert body["choices"][0]["finish_reason"] == "length"


def test_n_choices_are_rows_of_one_seed():
    engine = Told(lambda request: f"answer {request.sample}")
    _, body = asyncio.run(chat(engine, n=3, seed=4))
    assert [choice["message"]["content"] for choice in body["choices"]] == ["answer 0", "answer 1", "answer 2"]
    assert {(request.seed, request.prompt) for request in engine.requests} == {(4, engine.requests[0].prompt)}
    assert body["usage"]["prompt_tokens"] == len(engine.requests[0].prompt)
    chunks = asyncio.run(streamed(Told(lambda request: f"answer {request.sample}", size=1), n=3))
    assert [joined(chunks, i)[0]["content"] for i in range(3)] == ["answer 0", "answer 1", "answer 2"]


def test_logprobs_are_those_of_the_text():
    _, body = asyncio.run(chat(Told("h€"), logprobs=True, top_logprobs=0))
    entries = body["choices"][0]["logprobs"]["content"]
    assert entries[0] == {"token": "h", "logprob": -0.5, "bytes": [104], "top_logprobs": []}
    assert len(entries) == 4 and all(entry["bytes"] is None for entry in entries[1:])  # three bytes of one character
    engine = Told("a")
    engine.submit = lambda request: Script([Piece(encoded("a"), [float("-inf")], "stop")])
    _, body = asyncio.run(chat(engine, logprobs=True))
    assert body["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0


def test_completions_by_hand():
    body = {"model": "slca", "prompt": ["ab", "c d"], "n": 2, "logprobs": 0, "seed": 3}
    engine = Told(lambda request: f"{len(request.prompt)} x{request.sample}")
    status, answer = asyncio.run(post(engine, "/v1/completions", body))
    lengths = [len(encoded("ab")), len(encoded("c d"))]
    assert status == 200 and answer["object"] == "text_completion"
    assert [choice["text"] for choice in answer["choices"]] == [f"{n} x{i}" for n in lengths for i in (0, 1)]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == sum(lengths)
    logprobs = answer["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == answer["choices"][0]["text"] and logprobs["text_offset"][:2] == [
        0,
        len(logprobs["tokens"][0]),
    ]
    assert all(request.max_tokens == 16 and request.messages is None for request in engine.requests)


def test_a_prompt_that_comes_again_is_sampled_anew():
    engine = Told(lambda request: f"x{request.sample}")
    _, answer = asyncio.run(
        post(engine, "/v1/completions", {"model": "slca", "prompt": ["ab", "c d", "ab"], "n": 2, "seed": 3})
    )
    assert [choice["text"] for choice in answer["choices"]] == ["x0", "x1", "x0", "x1", "x2", "x3"]
    assert answer["usage"]["prompt_tokens"] == 2 * len(encoded("ab")) + len(encoded("c d"))


def test_completions_stream():
    body = {"model": "slca", "prompt": "x", "stop": "b c", "messages": None, "max_tokens": 20}
    del body["messages"]

    async def go():
        async with client(Told("<tool_call>a b é c b c d", size=1)) as http:
            return events((await http.post("/v1/completions", json=body | {"stream": True})).text)

    chunks = asyncio.run(go())
    assert "".join(part["text"] for chunk in chunks for part in chunk["choices"]) == "<tool_call>a b é c "
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_models_health_metrics():
    async def go():
        engine = Told("hi")
        async with client(engine, name="tiny/1") as http:
            models = (await http.get("/v1/models")).json()
            assert models["data"][0]["id"] == "tiny/1" and models["data"][0]["max_model_len"] == 512
            assert (await http.get("/v1/models/tiny/1")).json() == models["data"][0]
            assert (await http.get("/v1/models/other")).status_code == 404
            assert (await http.get("/health")).json() == {"status": "ok"}
            await http.post("/v1/chat/completions", json=HELLO | {"model": "tiny/1"})
            await http.post("/v1/chat/completions", json=HELLO | {"model": "tiny/1", "stream": True})
            await http.post("/v1/chat/completions", json=HELLO | {"model": "gpt"})
            page = (await http.get("/metrics")).text
            engine.reason = "failed: X"
            down = await http.get("/health")
            return page, down

    page, down = asyncio.run(go())
    sampled = 2 * (len(encoded("hi")) + 1)
    for line in (
        'slca_requests_total{code="200",route="chat"} 2.0', 'slca_requests_total{code="404",route="chat"} 1.0', "slca_engine_up 1.0",
        "slca_engine_seen_total 2.0", "slca_engine_busy 1.0", f'slca_tokens_total{{kind="completion"}} {float(sampled)}',
    ):  # fmt: skip
        assert line in page
    assert (down.status_code, down.json()["reason"]) == (503, "failed: X")


BAD = {
    "{": None, "[1]": None, "NaN": None, '{"model": "slca", "messages": ' + "[" * 200 + "]" * 200 + "}": None, "\xff": None, "": None,
    "1" * 5000: None,
}  # fmt: skip


@pytest.mark.parametrize("body", BAD)
def test_bodies_that_are_no_request(body):
    async def go():
        async with client(Told("ok")) as http:
            response = await http.post(
                "/v1/chat/completions", content=body.encode("latin-1"), headers={"content-type": "application/json"}
            )
            return response.status_code, response.json()["error"]

    status, error = asyncio.run(go())
    assert status == 400 and error["type"] == "invalid_request_error" and error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"), ({"temperature": "1"}, "temperature"), ({"temperature": 3}, "temperature"),
        ({"n": 0}, "n"), ({"n": 65}, "n"), ({"n": True}, "n"), ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": 1e9}, "max_tokens"),
        ({"max_tokens": 600}, "max_tokens"), ({"stop": ""}, "stop"), ({"stop": ["a"] * 17}, "stop"), ({"stop": [1]}, "stop"),
        ({"top_p": 0.9}, "top_p"), ({"presence_penalty": 0.1}, "presence_penalty"), ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"logprobs": True, "top_logprobs": 2}, "top_logprobs"), ({"temprature": 1}, "temprature"), ({"seed": 1.5}, "seed"),
        ({"messages": []}, "messages"), ({"messages": [{"role": "user", "content": "x " * 600}]}, "messages"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"), ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"), ({"tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"), ({"response_format": {"type": "x"}}, "response_format.type"),
        ({"stream_options": {"include_usage": True}}, "stream_options"), ({"functions": []}, "functions"),
    ],
)  # fmt: skip
def test_fields_out_of_range_are_named(fields, param):
    engine = Told("ok")
    status, body = asyncio.run(chat(engine, **fields))
    assert (status, body["error"]["param"]) == (400, param) and not engine.requests, body


def test_harmless_fields_are_accepted():
    status, _ = asyncio.run(
        chat(
            Told("ok"),
            user="u",
            store=False,
            metadata={},
            top_p=1,
            presence_penalty=0,
            logit_bias={},
            n=1,
            seed=-5,
            stop=None,
            tools=[],
        )
    )
    assert status == 200


def tool(parameters):
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "f"}}])
@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"type": "array", "items": {}}, "must describe an object"), ({"type": "string"}, "must describe an object"),
        ({"type": "banana"}, "unknown type 'banana'"), ({"properties": ["a"]}, "properties must be an object"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "points to nothing"), ({"required": "a"}, "no JSON Schema"),
        ({"properties": {"a": {"$ref": "http://example.org/x"}}}, "leaves the document"),
    ],
)  # fmt: skip
def test_parameters_that_are_no_schema_of_an_object_are_named(parameters, said, choice):
    engine = Told("ok")
    status, body = asyncio.run(chat(engine, tools=[TOOLS[0], tool(parameters)], tool_choice=choice))
    assert (status, body["error"]["param"]) == (400, "tools[1].function.parameters") and said in body["error"]["message"], body
    assert not engine.requests


def test_parameters_of_every_common_dialect_are_taken():
    draft7 = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"a": {}},
        "properties": {"q": {"$ref": "#/definitions/a"}},
    }
    bfcl = {"type": "dict", "properties": {"a": {"type": "float"}, "b": {"type": "any"}}}
    for parameters in ({}, None, draft7, bfcl, {"type": ["object", "null"]}, {"properties": {"a": {"pattern": "^(?!x)"}}}):
        status, body = asyncio.run(chat(Told("ok"), tools=[tool(parameters)]))
        assert status == 200, (parameters, body)


@pytest.mark.parametrize(
    ("path", "fields", "param", "said"),
    [
        ("chat/completions", {"stop": ["a"] * 100}, "stop", "at most 16"), ("completions", {"prompt": []}, "prompt", "at least one"),
        ("completions", {"prompt": ""}, "prompt", "empty"), ("completions", {"prompt": "x " * 600}, "prompt", "1 to 500 fit"),
        ("chat/completions", {"response_format": {"type": "text", "json_schema": {"name": "x", "schema": {}}}}, "response_format.json_schema", "goes with"),
        ("chat/completions", {"response_format": {"type": "json_object", "json_schema": {"name": "x", "schema": {}}}}, "response_format.json_schema", "goes with"),
    ],
)  # fmt: skip
def test_refusals_name_the_limit(path, fields, param, said):
    base = HELLO if path.startswith("chat") else {"model": "slca", "prompt": "x"}
    status, body = asyncio.run(post(Told("ok"), f"/v1/{path}", base | fields))
    assert (status, body["error"]["param"]) == (400, param) and said in body["error"]["message"], body
    assert body["error"]["code"] == ("context_length_exceeded" if "fit" in said else None)


def test_a_body_that_is_no_object():
    for path in ("/v1/chat/completions", "/v1/completions"):
        status, body = asyncio.run(post(Told("ok"), path, [1]))
        assert status == 400 and body["error"]["message"] == "body: must be a JSON object"


CALL = {"id": "a", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
USER, RESULT = {"role": "user", "content": "hi"}, {"role": "tool", "content": "12"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}


@pytest.mark.parametrize(
    ("messages", "param", "said"),
    [
        ([RESULT, USER], "messages[0]", "must follow"), ([USER, RESULT], "messages[1]", "must follow"),
        ([USER, RESULT | {"tool_call_id": "a"}], "messages[1]", "must follow"),
        ([USER, CALLED, RESULT | {"tool_call_id": "b"}], "messages[2].tool_call_id", "no such call"),
        ([USER, CALLED, *[RESULT | {"tool_call_id": "a"}] * 2], "messages[3].tool_call_id", "has its result already"),
        ([USER, CALLED, RESULT, RESULT], "messages[3]", "every call"),
        ([USER, CALLED, RESULT, USER, RESULT], "messages[4]", "must follow"),
        ([USER | {"tool_calls": [CALL]}], "messages[0].tool_calls", "only an assistant message"),
        ([USER, CALLED, USER], "messages[1].tool_calls[0]", "('a') has no result"), ([USER, CALLED], "messages[1].tool_calls[0]", "has no result"),
        ([USER, CALLED | {"tool_calls": [CALL, CALL]}, RESULT, RESULT], "messages[1].tool_calls[1].id", "the same id"),
    ],
)  # fmt: skip
def test_results_belong_to_calls(messages, param, said):
    engine = Told("ok")
    status, body = asyncio.run(chat(engine, messages=messages))
    assert (status, body["error"]["param"]) == (400, param) and said in body["error"]["message"], body
    assert not engine.requests


def test_results_without_an_id_answer_in_order():
    engine = Told("ok")
    other = {**CALL, "id": "b", "function": {"name": "get_weather", "arguments": "{}"}}
    messages = [USER, CALLED | {"tool_calls": [CALL, other]}, RESULT, RESULT, USER | {"tool_calls": None}]
    status, body = asyncio.run(chat(engine, messages=messages))
    assert status == 200, body
    assert [message.get("name") for message in engine.requests[0].messages] == [None, None, "get_time", "get_weather", None]


def test_completion_prompts_out_of_range():
    for prompt in ([], "", [[]], [tiny().tokenizer.size], [-1], 5, [["a"]], "x " * 600):
        status, body = asyncio.run(post(Told("ok"), "/v1/completions", {"model": "slca", "prompt": prompt}))
        assert status == 400, (prompt, body)


def test_large_bodies():
    async def go():
        async with client(Told("ok"), max_body=1000) as http:
            exact = json.dumps(HELLO)[:-1] + " " * (999 - len(json.dumps(HELLO))) + " }"
            assert len(exact) == 1000
            headers = {"content-type": "application/json"}

            async def chunked():
                for _ in range(20):
                    yield b" " * 100

            sizes = [exact, exact + " "]
            statuses = [(await http.post("/v1/chat/completions", content=c, headers=headers)).status_code for c in sizes]
            return [*statuses, (await http.post("/v1/chat/completions", content=chunked(), headers=headers)).status_code]

    assert asyncio.run(go()) == [200, 413, 413]


def test_other_types_and_routes():
    async def go():
        async with client(Told("ok")) as http:
            plain = await http.post("/v1/chat/completions", content=json.dumps(HELLO), headers={"content-type": "text/plain"})
            return plain, await http.get("/v1/chat/completions"), await http.get("/docs"), await http.post("/health")

    plain, wrong, missing, post_health = asyncio.run(go())
    assert [r.status_code for r in (plain, wrong, missing, post_health)] == [415, 405, 404, 405]
    assert all(response.json()["error"]["message"] for response in (plain, wrong, missing))


def test_keys_and_hosts():
    async def go():
        async with client(Told("ok"), key="sésame" * 3) as http:
            given = [None, "Bearer wrong", "Basic " + "x", "Bearer", b"Bearer " + ("sésame" * 3).encode()]
            for path in ("/v1/models", "/metrics"):
                statuses = [(await http.get(path, headers={"authorization": key} if key else {})).status_code for key in given]
                assert statuses[:4] == [401] * 4
            assert (await http.post("/v1/chat/completions", json=HELLO)).status_code == 401
            assert (await http.get("/health")).status_code == 200
        async with client(Told("ok"), key="plain-key") as http:
            assert (
                await http.get("/v1/models", headers={"authorization": "Bearer plain-key", "host": "example.org"})
            ).status_code == 200
        async with client(Told("ok")) as http:
            hosts = [
                "localhost:80",
                "127.0.0.1:9",
                "[::1]:9",
                "example.org",
                "localhost.example.org",
                "127.0.0.1.example.org",
                "",
            ]
            return [(await http.get("/v1/models", headers={"host": host})).status_code for host in hosts]

    assert asyncio.run(go()) == [200, 200, 200, 403, 403, 403, 403]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [(Full(2.2), 429), (Failed("x"), 503), (ValueError("too odd"), 400), (ZeroDivisionError("secret"), 500)],
)
def test_what_the_engine_refuses(error, status, stream):
    async def go():
        async with client(Told(lambda request: error)) as http:
            return await http.post("/v1/chat/completions", json=HELLO | {"stream": stream})

    response = asyncio.run(go())
    assert response.status_code == status and "secret" not in response.text
    assert response.headers.get("retry-after") == ("3" if status == 429 else None)


@pytest.mark.parametrize(("error", "status"), [(Failed("x"), 500), (Late("x"), 504), (ZeroDivisionError("secret"), 500)])
def test_what_fails_before_and_after_the_first_token(error, status, caplog):
    async def go(pieces, stream):
        engine = Told("x")
        engine.submit = lambda request: Script([*pieces, error])
        async with client(engine) as http:
            return await http.post("/v1/chat/completions", json=HELLO | {"stream": stream})

    first = [Piece(encoded("hello"), [0.0] * 9)]
    assert [asyncio.run(go([], stream)).status_code for stream in (False, True)] == [status] * 2
    assert asyncio.run(go(first, False)).status_code == status
    late = asyncio.run(go(first, True))
    assert late.status_code == 200 and '"error"' in late.text and "[DONE]" not in late.text
    assert "secret" not in late.text and "secret" not in caplog.text


def test_one_row_refused_frees_the_others():
    engine = Told("x")
    accept = engine.submit
    engine.submit = lambda request: (
        accept(request) if request.sample < 2 else accept(request) and (_ for _ in ()).throw(Full(1))
    )
    status, _ = asyncio.run(chat(engine, n=3))
    assert status == 429 and all(stream.cancelled for stream in engine.streams[:2])


class Never(Script):
    """One piece, then silence."""

    def __init__(self):
        super().__init__([Piece(encoded("hello"), [0.0] * 9)])
        self.silent = asyncio.Event()

    async def __anext__(self):
        if not self.items:
            self.silent.set()
            await asyncio.Event().wait()
        return await super().__anext__()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_its_row(stream):
    async def go():
        engine, rows = Told("x"), []

        def submit(request):
            rows.append(Never())
            return rows[-1]

        engine.submit = submit
        async with client(engine) as http:
            app = http._transport.app
            body, sent = json.dumps(HELLO | {"stream": stream}).encode(), []
            inbox = asyncio.Queue()
            inbox.put_nowait({"type": "http.request", "body": body, "more_body": False})
            headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
            scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST", "scheme": "http",
                     "path": "/v1/chat/completions", "raw_path": b"", "query_string": b"", "headers": headers, "server": ("localhost", 80)}  # fmt: skip

            async def send(message):
                sent.append(message)

            running = asyncio.ensure_future(app(scope, inbox.get, send))
            while not rows:
                await asyncio.sleep(0)
            await rows[0].silent.wait()
            assert not rows[0].cancelled
            inbox.put_nowait({"type": "http.disconnect"})
            await running
            page = (await http.get("/metrics")).text
        return rows[0].cancelled, sent, page

    cancelled, sent, page = asyncio.run(go())
    assert cancelled and 'slca_requests_total{code="499",route="chat"} 1.0' in page
    assert (b"hello" in b"".join(message.get("body", b"") for message in sent)) == stream


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_has_its_time(stream):
    async def go():
        engine = Told("x")
        engine.submit = lambda request: Never()
        async with client(engine, limits=Limits(seconds=0.2)) as http:
            return await http.post("/v1/chat/completions", json=HELLO | {"stream": stream})

    response = asyncio.run(go())
    assert response.status_code == 504 or (stream and response.status_code == 200)  # 200: the first token came in time
    assert "time limit" in response.text and "[DONE]" not in response.text


def test_odd_unicode_comes_back_as_json():
    async def go():
        async with client(Told("ok")) as http:
            body = b'{"model": "\\ud800", "messages": [{"role": "user", "content": "\\udfff \\u0000"}]}'
            wrong = await http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
            body = body.replace(b'"\\ud800"', b'"slca"')
            return wrong, await http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})

    wrong, right = asyncio.run(go())
    assert (wrong.status_code, right.status_code) == (404, 200) and wrong.json()["error"]["code"] == "model_not_found"
