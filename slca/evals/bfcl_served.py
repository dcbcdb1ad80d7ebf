"""The BFCL oracle behind the project's own server: what it scores proves server, template and parser, not a model.

A server is told no entry, so the oracle finds it by the opening of the conversation and the tools on offer; where two entries
share both, it takes the first (their answers differ rarely). Categories share conversations too: serve one at a
time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from slca.evals.bfcl_answers import Entry, decoded
from slca.evals.chat import Chat, Endpoint, Request
from slca.evals.tau2_oracle import Oracle, served
from slca.types import Message

if TYPE_CHECKING:
    from slca.serve.engine import Request as Row

NAME = "oracle"


class Known(Oracle):
    """Answers what `chat` (an oracle over `entries`) would, as a message."""

    def __init__(self, entries: Sequence[Entry], chat: Chat):
        super().__init__(lambda messages: Message(role="assistant", content=""))
        self.chat = chat
        self.entries: dict[str, list[Entry]] = {}
        for entry in entries:
            self.entries.setdefault(_heard(entry["question"][0][:1]), []).append(entry)
        for same in self.entries.values():  # one opening may begin like another, one list of tools may hold another
            same.sort(key=lambda entry: (len(entry["question"][0]), len(entry["function"])), reverse=True)

    def reply(self, row: Row) -> Message:
        messages = list(row.messages or ())
        offered = {tool["function"]["name"] for tool in row.tools}
        for entry in self.entries.get(_heard(messages[:1]), ()):
            opening = entry["question"][0]  # may hold earlier answers
            said = messages[len(opening) :]
            if _heard(messages[: len(opening)]) == _heard(opening) and {one["name"] for one in entry["function"]} <= offered:
                return self._message(entry, messages, said)
        raise ValueError("no entry begins like this conversation")

    def _message(self, entry: Entry, messages: list[Message], said: list[Message]) -> Message:
        """said: what came after the opening."""
        users = [i for i, message in enumerate(said) if message["role"] == "user"]
        step = sum(message["role"] == "assistant" for message in said[users[-1] if users else 0 :])
        text = self.chat([Request(entry["id"], messages, [], len(users), step)])[0].text
        calls = decoded(text)
        if not calls:
            return Message(role="assistant", content=text)
        made = [{**call.message(), "id": f"call_{i}"} for i, call in enumerate(calls)]
        return Message(role="assistant", content="", tool_calls=made)


def _heard(messages: Sequence[Any]) -> str:
    return json.dumps([[message["role"], message["content"]] for message in messages])


@contextmanager
def through_server(entries: Sequence[Entry], chat: Chat, concurrency: int) -> Iterator[Chat]:
    """A chat that asks `chat` by way of the server. Raises ImportError without the extra `serve`."""
    with served(Known(entries, chat), NAME) as url:
        endpoint = Endpoint(url, NAME, max_tokens=100_000, concurrency=concurrency)
        try:
            yield endpoint
        finally:
            endpoint.client.close()
