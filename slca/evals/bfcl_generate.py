"""Answers to BFCL entries by a chat: one request an entry, or turns and call rounds whose calls run in the grader's own
process."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slca.chat.parse import parse
from slca.evals.bfcl_answers import Entry, decoded, without_calls, written
from slca.evals.chat import Chat, Reply, Request
from slca.evals.graders import GraderError, environment
from slca.tasks.schema import ToolSet
from slca.types import Message, ToolCall

WORKER = Path(__file__).with_name("bfcl_worker.py")
MAX_STEPS = 20  # call rounds of a user turn after which the next one is the last (the package's MAXIMUM_STEP_LIMIT)
CALL_SECONDS = 30.0  # a call of an official class takes milliseconds; one that takes this long hangs
START_SECONDS = 120.0
PARSES = ("official", "strict")


@dataclass
class Answer:
    """What goes into the result file. result: text, or texts turn by turn and step by step. calls: decodable calls in it.
    skipped: the first prompt did not fit; cut: the entry ends early, because a later one did not, a call hung, or there were too
    many rounds. It is wrong, but for too many rounds in the last turn: those the grader judges."""

    id: str
    result: Any
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    skipped: bool = False
    cut: bool = False

    def row(self) -> dict[str, Any]:
        """Latency is left out: the package wants at least two values of it."""
        return {
            "id": self.id, "result": self.result,
            "input_token_count": self.prompt_tokens, "output_token_count": self.completion_tokens,
        }  # fmt: skip


def read(reply: Reply, how: str, wire: str) -> tuple[str, list[ToolCall]]:
    """(the text for the result file, its calls). how: `official` = the text as it is, to be decoded by the package;
    `strict` = the calls that training would run, written in the package's form. A server's own calls are taken as they are."""
    if reply.calls is not None:
        return (written(reply.calls) or without_calls(reply.text)), reply.calls
    if how == "official":
        text = reply.text.split("</think>")[-1].lstrip("\n")  # as its handler cleans a reply
        return text, decoded(text)
    parsed = parse(reply.text, wire=wire, truncated=reply.truncated)
    calls = list(parsed.calls)
    return (written(calls) or without_calls(parsed.text)), calls


def specs(functions: Sequence[Any]) -> list[dict[str, Any]]:
    """The functions of an entry as tool specs in JSON Schema, vetted as in training. Names keep their dots."""
    return ToolSet.load(functions).specs


def single_turn(entries: Sequence[Entry], chat: Chat, how: str, wire: str) -> list[Answer]:
    """One request an entry; agentic entries too (an oracle answers them without a call)."""
    requests = [Request(entry["id"], list(entry["question"][0]), specs(entry["function"])) for entry in entries]
    answers = []
    for entry, reply in zip(entries, chat(requests), strict=True):
        text, calls = read(reply, how, wire)
        answers.append(
            Answer(entry["id"], text, len(calls), reply.prompt_tokens, reply.completion_tokens, skipped=reply.skipped)
        )
    return answers


@dataclass
class _Rollout:
    """One multi-turn conversation in progress."""

    entry: Entry
    tools: list[dict[str, Any]]
    answer: Answer
    messages: list[Message] = field(default_factory=list)
    turn: int = -1
    step: int = 0
    over: bool = False

    def next_turn(self) -> None:
        self.turn, self.step = self.turn + 1, 0
        if self.turn == len(self.entry["question"]):
            self.over = True
            return
        if added := self.entry.get("missed_function", {}).get(str(self.turn)):
            self.tools = self.tools + specs(added)
        self.messages += self.entry["question"][self.turn]
        self.answer.result.append([])

    def stop(self) -> None:
        """Give up as the package does after too many rounds: the turn counts as it is. In the last turn the entry is graded, before
        it there are fewer turns than in the ground truth, which the package calls force-terminated: wrong."""
        self.over = self.answer.cut = True

    def drop(self) -> None:
        """Give up on a turn that cannot be graded: the entry is wrong."""
        self.stop()
        self.answer.result.pop()


def multi_turn(entries: Sequence[Entry], chat: Chat, worker: Worker, how: str, wire: str) -> list[Answer]:
    """All conversations in step: each round asks for the next turn of every one that is not over."""
    rollouts = [_Rollout(entry, specs(entry["function"]), Answer(entry["id"], [])) for entry in entries]
    for rollout in rollouts:
        rollout.next_turn()
        worker.open(rollout.entry)
    live = rollouts
    while live := [rollout for rollout in live if not rollout.over]:
        replies = chat([Request(r.entry["id"], list(r.messages), r.tools, r.turn, r.step) for r in live])
        for rollout, reply in zip(live, replies, strict=True):
            _advance(rollout, reply, worker, how, wire)
    return [rollout.answer for rollout in rollouts]


def _advance(rollout: _Rollout, reply: Reply, worker: Worker, how: str, wire: str) -> None:
    answer = rollout.answer
    if reply.skipped:
        answer.skipped = not (rollout.turn or rollout.step)
        rollout.drop()
    else:
        text, calls = read(reply, how, wire)
        answer.result[-1].append(text)
        answer.calls += len(calls)
        answer.prompt_tokens += reply.prompt_tokens
        answer.completion_tokens += reply.completion_tokens
        if not calls:
            rollout.messages.append(Message(role="assistant", content=text))
            rollout.next_turn()
        else:
            _execute(rollout, calls, worker)
    if rollout.over:
        worker.close(answer.id)


def _execute(rollout: _Rollout, calls: list[ToolCall], worker: Worker) -> None:
    named = [ToolCall(call.name, call.arguments, f"call_{rollout.turn}_{rollout.step}_{i}") for i, call in enumerate(calls)]
    rollout.messages.append(Message(role="assistant", content="", tool_calls=[call.message() for call in named]))
    results = worker.call(rollout.entry["id"], calls)
    rollout.step += 1
    if results is None:  # the grader would run the call as well, and hang
        rollout.drop()
        return
    if rollout.step > MAX_STEPS:
        rollout.stop()
        return
    for call, result in zip(named, results, strict=True):
        rollout.messages.append(Message(role="tool", content=result, tool_call_id=call.id, name=call.name))


class Worker:
    """The package in its own process, spoken to in JSON lines. Close it, or use it as a context manager.

    A call that hangs costs its own conversation alone: the process is replaced, and the other conversations are led to where
    they were by running their calls again.
    """

    def __init__(self, python: Path, root: Path, say: Callable[[str], None] = lambda text: None):
        self._python, self._root, self._say = python, root, say
        self._history: dict[str, tuple[Entry, list[list[dict[str, Any]]]]] = {}
        self._opened: set[str] = set()
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: Any) -> None:
        self._kill()

    def categories(self) -> dict[str, list[str]]:
        return self._ask({"op": "categories"}, START_SECONDS)

    def entries(self, category: str) -> list[dict[str, Any]]:
        return self._ask({"op": "entries", "category": category}, START_SECONDS)

    def open(self, entry: Entry) -> None:
        """A fresh set of instances for one conversation."""
        self._history[entry["id"]] = (entry, [])

    def close(self, key: str) -> None:
        del self._history[key]
        if key in self._opened:
            self._opened.discard(key)
            self._ask({"op": "close", "key": key}, START_SECONDS)

    def call(self, key: str, calls: Sequence[ToolCall]) -> list[str] | None:
        """Results of the calls, in order; None when one of them hangs or kills the process."""
        entry, past = self._history[key]
        request = [{"name": call.name, "arguments": dict(call.arguments)} for call in calls]
        if key not in self._opened:
            slim = {name: entry[name] for name in ("id", "involved_classes", "initial_config") if name in entry}
            self._ask({"op": "open", "key": key, "entry": slim}, START_SECONDS)
            for earlier in past:
                self._ask({"op": "call", "key": key, "calls": earlier}, CALL_SECONDS)
            self._opened.add(key)
        try:
            results = self._ask({"op": "call", "key": key, "calls": request}, CALL_SECONDS)
        except GraderError as error:
            self._say(f"{key}: {error}")
            self._kill()
            return None
        past.append(request)
        return results

    def _ask(self, request: dict[str, Any], seconds: float) -> Any:
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise GraderError(f"the grader's worker gave no answer to {request['op']!r} within {seconds:g} s") from None
        except OSError:
            line = ""
        if not line:
            log = self._root / "worker.log"
            raise GraderError(f"the grader's worker died on {request['op']!r}; its output is in {log}")
        answer = json.loads(line)
        if "error" in answer:
            raise GraderError(f"the grader's worker: {answer['error']}")
        return answer["value"]

    def _start(self) -> None:
        log = (self._root / "worker.log").open("a", encoding="utf-8")
        self._process = subprocess.Popen(
            [str(self._python), "-P", str(WORKER), "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            encoding="utf-8", env=environment({"BFCL_PROJECT_ROOT": str(self._root)}),
        )  # fmt: skip
        log.close()
        lines: queue.Queue[str] = queue.Queue()
        self._lines = lines
        output = self._process.stdout
        assert output is not None

        def pump() -> None:
            for line in output:
                lines.put(line)
            lines.put("")

        threading.Thread(target=pump, name="bfcl-worker", daemon=True).start()

    def _kill(self) -> None:
        self._opened.clear()
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
