"""A misbehaving chat-completions server on loopback: each request meets the next behaviour of a script."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behaviour = str | tuple[str, Any] | Callable[[dict[str, Any]], str]


def completion(text: Any, tokens: int = 5) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 40, "completion_tokens": tokens}}).encode()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # a full queue costs a connecting client a second


class Server:
    """Use as a context manager. script: behaviours in order, the last one for ever; a plain string is a good completion.

    ("slow", seconds) | ("status", code) | "closed" | "half" | "wrong_json" | "endless" | "drip" | a function of the request.
    """

    def __init__(self, script: Sequence[Behaviour]):
        self.script = list(script)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.in_flight = self.most_in_flight = 0
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                owner.answer(self)

            def log_message(self, *args):
                return

        self.http = _Listener(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}/v1"

    def __enter__(self) -> Server:
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.stopping.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join(5)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self.lock:
            behaviour = self.script.pop(0) if len(self.script) > 1 else self.script[0]
            self.requests.append(body)
            self.headers.append(dict(handler.headers))
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            self.behave(handler, behaviour, body)
        except OSError:
            pass  # the client gave up
        finally:
            with self.lock:
                self.in_flight -= 1

    def behave(self, handler: BaseHTTPRequestHandler, behaviour: Behaviour, body: dict[str, Any]) -> None:
        if callable(behaviour):
            behaviour = behaviour(body)
        match behaviour:
            case ("slow", seconds):
                self.stopping.wait(seconds)
                send(handler, 200, completion('{"late": true}'))
            case ("status", code):
                send(
                    handler,
                    code,
                    json.dumps({"error": {"message": f"code {code}", "echo": handler.headers["Authorization"]}}).encode(),
                )
            case ("raw", data):
                send(handler, 200, data)
            case "closed":
                handler.close_connection = True
                handler.connection.close()
            case "half":
                send(handler, 200, completion('{"x": 1}')[:30], length=4000)
                handler.close_connection = True
            case "wrong_json":
                send(handler, 200, b'{"choices": [{"mess')
            case "endless" | "drip":
                handler.send_response(200)
                handler.end_headers()
                handler.close_connection = True
                chunk, pause = (b"x" * 65536, 0.0) if behaviour == "endless" else (b" ", 0.02)
                stop = time.monotonic() + 20
                while not self.stopping.wait(pause) and time.monotonic() < stop:
                    handler.wfile.write(chunk)
            case str(text):
                send(handler, 200, completion(text))


def send(handler: BaseHTTPRequestHandler, code: int, data: bytes, length: int | None = None) -> None:
    handler.send_response(code)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(data) if length is None else length))
    handler.end_headers()
    handler.wfile.write(data)
