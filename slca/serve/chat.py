"""A sampled turn back to a message, by the parser of training; whole, and as far as it is certain while it grows."""

from __future__ import annotations

from dataclasses import dataclass

from slca.chat.markers import CALL_CLOSE, CALL_OPEN, PYTHON_TAG, THINK_CLOSE, THINK_OPEN
from slca.chat.parse import parse
from slca.serve.text import beginning
from slca.types import ToolCall

# From the first of these on, what a turn says is known only at its end.
_TAGS = (CALL_OPEN, CALL_CLOSE, THINK_OPEN, THINK_CLOSE, PYTHON_TAG)


@dataclass(frozen=True)
class Answer:
    """One assistant turn as the API shows it. finish: stop | length | tool_calls; damaged: calls that could not be read."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: str = ""
    damaged: int = 0


@dataclass(frozen=True)
class Reading:
    """How sampled text is read. tools: whether calls are looked for; single: only the first one counts.

    before, after: text around the sampled one: a call that the prompt has opened and that a grammar ends, the tag of a prompt that
    ended inside reasoning.
    """

    wire: str
    tools: bool = False
    single: bool = False
    before: str = ""
    after: str = ""

    def answer(self, text: str, finish: str) -> Answer:
        """The whole turn. finish: stop | length. Where no call is usable, what looks like one stays in the content as written."""
        whole = self.before + text + (self.after if finish == "stop" else "")
        parsed = parse(whole, wire=self.wire, truncated=finish == "length")
        calls = parsed.calls if self.tools else ()
        content = parsed.text if calls or not parsed.attempted else _unread(whole)
        damaged = len(parsed.errors) if self.tools else 0
        calls = calls[:1] if self.single else calls
        return Answer(content, parsed.reasoning, calls, "tool_calls" if calls and finish == "stop" else finish, damaged)

    def certain(self, text: str) -> Answer:
        """Content and reasoning that `answer` will begin with, whatever follows `text`; calls wait for the end.

        One exception: a closing tag of reasoning that was never opened makes reasoning of all before it, which may be out already.
        """
        body = (self.before + text).lstrip()
        if THINK_OPEN.startswith(body):
            return Answer()
        reasoning = ""
        if body.startswith(THINK_OPEN):
            thought, closed, body = body.removeprefix(THINK_OPEN).partition(THINK_CLOSE)
            thought = thought if closed else thought[: len(thought) - beginning(thought, (THINK_CLOSE,))]
            reasoning = thought.strip()
        body = body.lstrip()
        if self.tools and self.wire == "llama_json" and (PYTHON_TAG.startswith(body) or body.startswith(("{", PYTHON_TAG))):
            return Answer(reasoning=reasoning)
        starts = [at for tag in _TAGS if (at := body.find(tag)) >= 0]
        end = min(starts) if starts else len(body) - beginning(body, _TAGS)
        return Answer(body[:end].strip(), reasoning)

    def forged(self, text: str) -> bool:
        """Whether the turn so far holds an environment marker outside of calls' strings and of reasoning."""
        return parse(self.before + text, wire=self.wire).forged


def _unread(whole: str) -> str:
    """A turn as written, without the reasoning that opens it."""
    body = whole.lstrip()
    thought, closed, rest = body.partition(THINK_CLOSE)
    if body.startswith(THINK_OPEN):
        return rest.strip()
    return (rest if closed and not any(tag in thought for tag in (CALL_OPEN, THINK_OPEN, "{")) else body).strip()
