"""Engines that need no model, behind the project's own server: the gold agent of tau2 and a scripted user.

The tickets of telecom name only five distinct complaints, so a conversation does not say which task it is. The runner takes the
tasks in order, one at a time: the gold agent counts the conversations that begin.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from slca.types import Message

if TYPE_CHECKING:
    from slca.serve.engine import Engine, Request, Stream

CAPACITY = 1_000_000  # tokens; nothing is computed, so nothing bounds a prompt
STOP = "###STOP###"
_SCENARIO = re.compile(r"<scenario>\n?(.*?)\n?</scenario>", re.DOTALL)

Answer = Callable[[Sequence[Message]], Message]


class Oracle:
    """An engine whose answers are a function of the conversation."""

    capacity, longest_prompt = CAPACITY, CAPACITY
    constrained = True  # solo agents must call: the server opens the call, the answer goes on behind its opening

    def __init__(self, answer: Answer):
        from slca.chat import tokenizer
        from slca.chat.template import Template

        self.template, self.answer = Template(tokenizer.load("tiny"), result_tokens=CAPACITY), answer

    def submit(self, request: Request) -> Stream:
        from slca.serve.engine import Ready

        if request.messages is None:
            raise ValueError("this server answers conversations only")
        ids = self.template.assistant(request.messages, self.reply(request))
        if request.constraint is not None:
            text = self.template.tokenizer.decode(ids[:-1])
            ids = [*self.template.tokenizer.encode(text[text.index("{") : text.rindex("}") + 1]), ids[-1]]
        return Ready(ids)

    def reply(self, request: Request) -> Message:
        return self.answer(request.messages or ())

    def health(self) -> str:
        return ""

    def stats(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        return


def gold_agent(tasks: Sequence[Mapping[str, Any]], *, solo: bool, drop_last_write: bool = False) -> Answer:
    """Takes each task's gold actions one by one, then says what must be said (`done` in solo). tasks: rows of the worker, in
    the runner's order; they start over when a further trial begins. drop_last_write: or the last action of a task without a
    write."""
    plans = [_plan(task, solo, drop_last_write) for task in tasks]
    begun = -1

    def answer(messages: Sequence[Message]) -> Message:
        nonlocal begun
        made = sum(len(message.get("tool_calls") or ()) for message in messages if message["role"] == "assistant")
        if not made and sum(message["role"] == "user" for message in messages) <= 1:
            begun += 1
        calls, said = plans[begun % len(plans)]
        if made < len(calls):
            return Message(role="assistant", content="", tool_calls=[calls[made]])
        return Message(role="assistant", content=said)

    return answer


def _plan(task: Mapping[str, Any], solo: bool, drop_last_write: bool) -> tuple[list[dict[str, Any]], str]:
    actions = [action for action in task["actions"] if solo or action["requestor"] == "assistant"]
    if drop_last_write:  # 20 tasks of telecom have no write: their only action hands over to a human
        last = max((i for i, action in enumerate(actions) if action["write"]), default=len(actions) - 1)
        actions = [action for i, action in enumerate(actions) if i != last]
    if solo:
        actions = [*actions, {"name": "done", "arguments": {}}]
    calls = [
        {"id": f"gold_{i}", "type": "function", "function": {"name": action["name"], "arguments": action["arguments"]}}
        for i, action in enumerate(actions)
    ]
    return calls, "All done. " + " ".join(task["communicate"])


def scripted_user(messages: Sequence[Message]) -> Message:
    """Reads out its scenario, then stops. Deterministic, and not the benchmark's user: it answers no question."""
    system = next((message["content"] for message in messages if message["role"] == "system"), "")
    found = _SCENARIO.search(system)
    spoken = any(message["role"] == "assistant" for message in messages)  # the user's own words have this role on its side
    return Message(role="assistant", content=STOP if spoken else (found.group(1) if found else system)[:4000] or STOP)


@contextmanager
def served(engine: Engine, name: str) -> Iterator[str]:
    """The engine behind the project's server on a free loopback port, as long as the context lasts; gives its base URL.

    Raises ImportError without the extra `serve`, RuntimeError when it does not start.
    """
    from slca.serve import make_app

    try:
        import uvicorn
    except ImportError as error:
        raise ImportError(f"serving needs FastAPI and uvicorn: pip install 'slca[serve]' ({error})") from error
    app = make_app(engine, name=name, max_body=64 * 2**20)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", access_log=False))
    thread = threading.Thread(target=server.run, name=f"serve-{name}", daemon=True)
    thread.start()
    until = time.monotonic() + 60.0
    while not server.started:
        if not thread.is_alive() or time.monotonic() > until:
            raise RuntimeError(f"the server of {name} did not start")
        time.sleep(0.02)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.should_exit = True
        thread.join(30.0)
