"""The endpoint against a misbehaving server on loopback: deadlines hold, only infrastructure is retried, no key leaks."""

import gc
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from slca.sgls.endpoint import Breaker, Endpoint, EndpointError
from tests.sgls.server import Server, completion

MESSAGES = [{"role": "user", "content": "hello"}]
CANARY = 'canary-5d1f"\\key'


@pytest.fixture
def endpoint():
    made = []

    def make(server, **options):
        options = {"timeout": 60.0, "retries": 2, "backoff": 0.01, **options}
        made.append(Endpoint(server.url, "m", **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def ask(endpoint, **options):
    return endpoint.complete(MESSAGES, temperature=0.5, max_tokens=9, **options)


def test_a_good_reply_and_what_was_asked(endpoint):
    with Server(["fine"]) as server:
        reply = ask(endpoint(server))
        assert (reply.text, reply.prompt_tokens, reply.completion_tokens, reply.finish) == ("fine", 40, 5, "stop")
        assert server.requests == [{"model": "m", "messages": MESSAGES, "temperature": 0.5, "max_tokens": 9}]
        assert "Authorization" not in server.headers[0]


@pytest.mark.parametrize(
    "trouble", [("status", 429), ("status", 500), ("status", 503), "closed", "half", "wrong_json", ("raw", b"[]")]
)
def test_infrastructure_errors_are_retried(endpoint, trouble):
    with Server([trouble, trouble, "fine"]) as server:
        one = endpoint(server)
        assert ask(one).text == "fine"
        assert one.counts["retries"] == 2 and len(server.requests) == 3


@pytest.mark.parametrize(
    "trouble, kind",
    [(("status", 500), "http_500"), ("closed", "connection"), ("half", "connection"), ("wrong_json", "bad_reply")],
)
def test_retries_are_bounded(endpoint, trouble, kind):
    with Server([trouble]) as server:
        with pytest.raises(EndpointError) as caught:
            ask(endpoint(server))
        assert caught.value.kind == kind and len(server.requests) == 3


@pytest.mark.parametrize("code", [400, 401, 404, 422])
def test_our_own_mistakes_are_not_retried(endpoint, code):
    with Server([("status", code)]) as server:
        with pytest.raises(EndpointError) as caught:
            ask(endpoint(server))
        assert caught.value.kind == f"http_{code}" and len(server.requests) == 1


@pytest.mark.parametrize("trouble", [("slow", 10.0), "drip"])
def test_the_deadline_holds_against_slow_servers(endpoint, trouble):
    with Server([trouble]) as server:
        with pytest.raises(EndpointError) as caught:  # without a deadline: a late answer, or a body that is no completion
            ask(endpoint(server, timeout=0.4))
        assert caught.value.kind == "timeout"


def test_a_callers_deadline_is_kept_too(endpoint):
    with Server([("slow", 10.0)]) as server:
        with pytest.raises(EndpointError) as caught:
            ask(endpoint(server, timeout=60.0), deadline=time.monotonic() + 0.3)
        assert caught.value.kind == "timeout"


def test_an_endless_body_is_cut_off(endpoint):
    with Server(["endless"]) as server, pytest.raises(EndpointError) as caught:
        ask(endpoint(server, max_body=200_000))
    assert caught.value.kind == "too_large"


def test_nobody_listens(endpoint):
    with Server(["fine"]) as server:
        gone = endpoint(server, timeout=1.0)
    with pytest.raises(EndpointError) as caught:
        ask(gone)
    assert caught.value.kind in ("connection", "timeout")


def test_requests_in_flight_are_bounded(endpoint):
    with Server([("slow", 0.05)]) as server:
        one = endpoint(server, concurrency=3)
        with ThreadPoolExecutor(12) as pool:
            replies = list(pool.map(lambda _: ask(one).text, range(12)))
        assert replies == ['{"late": true}'] * 12
        assert server.most_in_flight <= 3


def test_the_circuit_opens_and_closes_again(endpoint):
    with Server([("status", 500)] * 4 + ["fine"]) as server:
        one = endpoint(server, retries=0, breaker=Breaker(failures=4, seconds=1.0))
        kinds = []
        for _ in range(6):
            with pytest.raises(EndpointError) as caught:
                ask(one)
            kinds.append(caught.value.kind)
        assert kinds == ["http_500"] * 4 + ["circuit_open"] * 2 and len(server.requests) == 4
        time.sleep(1.05)
        assert ask(one).text == "fine"
        assert ask(one).text == "fine"


def together(callers, call):
    """The results of as many calls at once, errors by their kind."""

    def one(i):
        try:
            return call(i).text
        except EndpointError as error:
            return error.kind

    with ThreadPoolExecutor(callers) as pool:
        return list(pool.map(one, range(callers)))


def test_a_burst_of_refusals_that_ask_to_come_again_fails_nobody(endpoint):
    seen = set()

    def overloaded(body):
        asked = body["messages"][0]["content"]
        return "fine" if asked in seen else seen.add(asked) or ("status", 429)

    with Server([overloaded]) as server:
        one = endpoint(server)
        made = together(32, lambda i: one.complete([{"role": "user", "content": f"caller {i}"}], temperature=0, max_tokens=1))
        assert made == ["fine"] * 32 and one.counts["http_429"] == one.counts["retries"] == 32


@pytest.mark.parametrize("code", [400, 401, 403, 404, 408, 409, 422, 425, 429])
def test_a_server_that_refuses_is_alive(endpoint, code):
    with Server([("status", code)]) as server:
        one = endpoint(server, retries=0, breaker=Breaker(failures=2, seconds=60.0))
        assert [together(1, lambda _: ask(one)) for _ in range(6)] == [[f"http_{code}"]] * 6


def test_calls_wait_for_an_open_circuit_and_the_outcome_of_its_probe(endpoint):
    with Server([("status", 500)] * 2 + [("slow", 0.4), "fine"]) as server:
        one = endpoint(server, retries=1, breaker=Breaker(failures=2, seconds=0.3))
        with pytest.raises(EndpointError, match="http_500"):
            ask(one)
        made = together(8, lambda _: ask(one))
        assert sorted(made) == ["fine"] * 7 + ['{"late": true}'] and len(server.requests) == 2 + 8


def test_each_lost_probe_costs_a_waiting_call_a_try(endpoint):
    with Server([("status", 500)]) as server:
        one = endpoint(server, retries=1, breaker=Breaker(failures=2, seconds=0.6))
        with pytest.raises(EndpointError, match="http_500"):
            ask(one)
        assert together(8, lambda _: ask(one)) == ["circuit_open"] * 8
        assert len(server.requests) == 3  # two that opened it, one probe


def test_nobody_waits_for_a_circuit_that_opens_after_the_deadline(endpoint):
    with Server([("status", 500)]) as server:
        one = endpoint(server, retries=2, timeout=30.0, breaker=Breaker(failures=3, seconds=60.0))
        with pytest.raises(EndpointError, match="http_500"):
            ask(one)
        began = time.monotonic()
        with pytest.raises(EndpointError, match="circuit_open"):
            ask(one)
        assert time.monotonic() - began < 5


def test_calls_that_end_at_their_deadlines_take_no_place_from_others(endpoint):
    """Requests cancelled at every point of their lives: a pool that keeps the places of some has none left in the end."""
    with Server([("slow", 0.003)]) as server:
        one = endpoint(server, retries=0, concurrency=2, timeout=20.0)

        def late(i):
            return ask(one, deadline=time.monotonic() + 0.001 * (i + 1))

        for _ in range(10):
            assert "timeout" in together(40, late)
        assert together(4, lambda _: ask(one)) == ['{"late": true}'] * 4


@pytest.mark.parametrize("concurrency, seconds", [(2, 0.9), (20, 2.1)])  # most never leave the queue | half leave it too late
def test_time_in_our_own_queue_is_no_failure_of_the_server(endpoint, concurrency, seconds):
    with Server([("slow", seconds)]) as server:
        one = endpoint(server, retries=0, timeout=3.0, concurrency=concurrency, breaker=Breaker(failures=16, seconds=60.0))
        assert "timeout" in together(40, lambda _: ask(one))
        one.timeout = 30.0
        assert ask(one).text == '{"late": true}'


def test_a_server_that_never_answers_opens_the_circuit(endpoint):
    with Server([("slow", 10.0)]) as server:
        one = endpoint(server, retries=0, timeout=0.4, breaker=Breaker(failures=3, seconds=60.0))
        assert together(3, lambda _: ask(one)) == ["timeout"] * 3
        with pytest.raises(EndpointError, match="circuit_open"):
            ask(one)


def test_a_refused_request_leaves_the_schemas_of_others(endpoint):
    """The server answers 400 to whatever is too long, and to one schema that it does not know."""
    odd, plain = {"type": "string", "pattern": "(?=a)"}, {"type": "object"}

    def picky(body):
        form = body.get("response_format", {}).get("json_schema", {}).get("schema")
        return ("status", 400) if form == odd or len(body["messages"][0]["content"]) > 50 else "fine"

    with Server([picky]) as server:
        one = endpoint(server)
        with pytest.raises(EndpointError, match="http_400"):
            one.complete([{"role": "user", "content": "x" * 51}], temperature=0, max_tokens=1, schema=plain)
        assert [ask(one, schema=schema).text for schema in (odd, plain, odd, plain)] == ["fine"] * 4
        asked = [body.get("response_format", {}).get("json_schema", {}).get("schema") for body in server.requests]
        assert asked == [plain, None, odd, None, plain, None, plain] and one.counts["no_schema"] == 2


@pytest.mark.parametrize("known", [False, True])
def test_a_server_without_schemas_is_soon_asked_without(endpoint, known):
    schemas = [{"type": "object"}] * known + [{"const": i} for i in range(5)]

    def picky(body):
        form = body.get("response_format", {}).get("json_schema", {}).get("schema", {})
        return ("status", 422) if "const" in form else "fine"

    with Server([picky]) as server:
        one = endpoint(server)
        assert [ask(one, schema=schema).text for schema in schemas] == ["fine"] * len(schemas)
        sent = sum("response_format" in body for body in server.requests)
        assert sent == (6 if known else 3) and one.counts["no_schema"] == 5


def test_response_format_is_dropped_where_the_server_has_none(endpoint):
    schema = {"type": "object"}
    with Server([lambda body: ("status", 400) if "response_format" in body else "fine"]) as server:
        one = endpoint(server)
        assert ask(one, schema=schema).text == "fine" and ask(one, schema=schema).text == "fine"
        assert server.requests[0]["response_format"]["json_schema"]["schema"] == schema
        assert ["response_format" in body for body in server.requests] == [True, False, False]
        assert not one.counts["retries"] and one.counts["no_schema"] == 2


@pytest.mark.parametrize("escaped", [False, True])
def test_the_key_is_sent_and_never_comes_back(endpoint, monkeypatch, escaped):
    key = CANARY if escaped else "canary-9b2c"
    monkeypatch.setenv("TEST_SGLS_KEY", key)
    echo = json.dumps({"echo": key})
    with Server([("status", 401), echo]) as server:
        one = endpoint(server, key_env="TEST_SGLS_KEY", retries=0)
        with pytest.raises(EndpointError) as caught:
            ask(one)
        assert server.headers[0]["Authorization"] == f"Bearer {key}"
        assert "canary" not in str(caught.value) and "canary" not in repr(caught.value)
        assert ask(one).text == '{"echo": "[redacted]"}'


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://127.0.0.1", "http://user:secret@127.0.0.1/v1"])
def test_urls_that_are_refused(url):
    with pytest.raises(ValueError, match="endpoint url") as caught:
        Endpoint(url, "m")
    assert "secret" not in str(caught.value)


def test_content_that_is_null_or_no_text(endpoint):
    with Server([("raw", completion(None)), ("raw", completion({"a": 1}))]) as server:
        one = endpoint(server, retries=0)
        assert ask(one).text == ""
        with pytest.raises(EndpointError, match="bad_reply"):
            ask(one)


def test_tools_are_sent_and_tool_calls_come_back(endpoint):
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    reply = {"choices": [{"message": {"role": "assistant", "tool_calls": calls}, "finish_reason": "tool_calls"}]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    with Server([("raw", json.dumps(reply).encode()), "fine"]) as server:
        one = endpoint(server)
        made = one.complete(MESSAGES, temperature=0, max_tokens=5, tools=tools)
        assert (made.text, made.calls, made.finish) == ("", tuple(calls), "tool_calls")
        assert ask(one).calls == () and [request.get("tools") for request in server.requests] == [tools, None]


@pytest.mark.parametrize(
    "message, usage",
    [
        ({"tool_calls": "call"}, {}),
        ({"tool_calls": ["call"]}, {}),
        ({"tool_calls": [{"function": "f"}]}, {}),
        ({"tool_calls": {"function": {}}}, {}),
        ({"content": "a"}, {"prompt_tokens": float("inf")}),
        ({"content": "a"}, {"completion_tokens": "many"}),
        ({"content": "a"}, [1]),
        (["content"], {}),
    ],
)
def test_a_reply_of_another_shape_is_a_bad_reply(endpoint, message, usage):
    body = json.dumps({"choices": [{"message": message}], "usage": usage}).replace("Infinity", "1e999")
    with Server([("raw", body.encode())]) as server, pytest.raises(EndpointError, match="bad_reply"):
        ask(endpoint(server, retries=0))


def test_what_cannot_be_sent_is_not_retried(endpoint):
    with Server(["fine"]) as server:
        one = endpoint(server)
        with pytest.raises(EndpointError) as caught:
            one.complete([{"role": "user", "content": "\ud800"}], temperature=0, max_tokens=1)
        assert caught.value.kind == "bad_request" and not server.requests
        assert ask(one).text == "fine"


def test_close_stops_the_thread_and_ends_what_is_in_flight(endpoint):
    before = set(threading.enumerate())
    with Server([("slow", 5.0)]) as server:
        one = endpoint(server, timeout=5.0)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ask, one)
            while not server.requests:
                time.sleep(0.01)
            (loop,) = [thread for thread in set(threading.enumerate()) - before if thread.name == "slca-endpoint"]
            one.close()
            with pytest.raises(EndpointError):
                waiting.result(3)
    loop.join(2)
    assert not loop.is_alive()


def test_an_endpoint_that_nobody_holds_takes_its_thread_along():
    """A notebook makes one a run, and judges are never closed."""
    before = set(threading.enumerate())
    with Server(["fine"]) as server:
        one = Endpoint(server.url, "m")
        assert ask(one).text == "fine"
        (loop,) = [thread for thread in set(threading.enumerate()) - before if thread.name == "slca-endpoint"]
        del one
        gc.collect()
        loop.join(5)
        assert not loop.is_alive()
