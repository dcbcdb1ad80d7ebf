"""The state machine of one episode: generate -> parse -> observe -> generate ... -> end.

Deterministic and free of side effects apart from the state it is given: no clock, thread, device or random draw. The engine
carries out what a transition returns (`Generate`, `Act` or `End`) and reports back with the next transition:

    begin ──► Generate ──► sampled ──► Act ──► observed ──► Generate ──► ... ──► End
                              └──────► Generate (the next user message) or End

Every token enters the state once, with its writer, turn and log-prob, and is never re-encoded (contract 3).
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slca.chat.parse import parse
from slca.tasks.schema import call_hash
from slca.types import ENV, POLICY, PROMPT, CallError, Context, Episode, Message, Observation, Parsed, Task, ToolCall

# A turn with less room than this cannot say anything: the episode ends `context_full` before the suffix is appended.
MIN_TURN_TOKENS = 4

# One turn may meet a tool that does not answer (the policy reads an error and goes on); a second one ends the episode.
MAX_TIMED_OUT_TURNS = 1


@dataclass(frozen=True)
class Generate:
    """Append `suffix` (environment tokens, may be the prompt) and sample up to `budget` tokens."""

    suffix: list[int]
    budget: int


@dataclass(frozen=True)
class Act:
    """Run these calls and report their observations in this order."""

    calls: list[ToolCall]


@dataclass(frozen=True)
class End:
    reason: str


@dataclass(frozen=True)
class Rules:
    """What is the same for all episodes of a rollout. Each `max_*` is the number allowed: going beyond it ends the episode.

    capacity: tokens a cache row holds; own: how many of them may follow its prompt. stop_ids end a turn; marker_ids are environment
    markers that are one token:
    sampling stops at both, so `sampling_stops` goes to the sampler.
    """

    template: Any
    capacity: int
    own: int
    max_turns: int
    max_calls: int
    max_malformed: int
    max_repeats: int
    max_turn_tokens: int
    max_response_tokens: int
    max_prompt_tokens: int
    max_calls_per_turn: int
    wire: str
    stop_ids: frozenset[int]
    marker_ids: frozenset[int]

    @classmethod
    def of(cls, config: Any, template: Any, *, capacity: int, longest_prompt: int, own: int | None = None) -> Rules:
        """The rules of the whole config for a sampler that holds `capacity` tokens a row, prompts of `longest_prompt` and `own`
        tokens behind a prompt (None: what `capacity` leaves)."""
        r, control = config.rollout, template.tokenizer.control
        stop_ids = frozenset(template.stop_ids)
        markers = frozenset(control[text] for text in template.environment_markers if text in control)
        return cls(
            template=template, capacity=capacity, own=capacity if own is None else own, max_turns=r.max_turns,
            max_calls=r.max_calls, max_malformed=r.max_malformed, max_repeats=r.max_repeats, max_turn_tokens=r.max_turn_tokens, max_response_tokens=r.max_response_tokens,
            max_prompt_tokens=min(r.max_prompt_tokens, longest_prompt), max_calls_per_turn=config.chat.max_calls_per_turn,
            wire=config.chat.wire, stop_ids=stop_ids, marker_ids=markers - stop_ids,
        )  # fmt: skip

    @property
    def sampling_stops(self) -> tuple[int, ...]:
        return tuple(sorted(self.stop_ids | self.marker_ids))


@dataclass
class State:
    """One episode in progress. `messages` holds the whole dialogue; `replies` what the calls of the last turn wait for."""

    task: Task
    group: int
    sample: int
    context: Context
    tokens: list[int] = field(default_factory=list)
    writer: list[int] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    logprob: list[float] = field(default_factory=list)
    turns: list[Parsed] = field(default_factory=list)
    observations: list[list[Observation]] = field(default_factory=list)
    user_turn: list[int] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    replies: list[ToolCall | CallError] = field(default_factory=list)
    prompt_length: int = 0
    users: int = 0  # followups sent so far = index of the user message being answered
    calls: int = 0
    malformed: int = 0
    timed_out: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    end: str | None = None


def new(task: Task, group: int, sample: int, context: Context) -> State:
    """An episode that has not begun. Building it cannot fail, so that even a row that dies at once has a state."""
    return State(task=task, group=group, sample=sample, context=context, messages=list(task.messages))


def begin(state: State, prompt: Sequence[int], rules: Rules) -> Generate | End:
    """Start from the ids of the prompt. A prompt that does not fit is refused whole, never cut in silence."""
    state.prompt_length = len(prompt)
    if rules.max_turns < 1:
        return close(state, "max_turns")
    if len(prompt) > rules.max_prompt_tokens or min(rules.capacity - len(prompt), rules.own) < MIN_TURN_TOKENS:
        return close(state, "context_full")
    _extend(state, prompt, PROMPT)
    if _budget(state, rules) < 1:  # a limit of 0 means none, not unlimited
        return close(state, "context_full")
    return Generate(list(prompt), _budget(state, rules))


def sampled(state: State, ids: Sequence[int], logprob: Sequence[float], rules: Rules) -> Generate | Act | End:
    """Take one finished turn: what was sampled, its stop token included if there was one (contract 4)."""
    stopped = bool(ids) and ids[-1] in rules.stop_ids
    ids, parsed = _read(list(ids), stopped, rules)
    turn = len(state.turns)
    _extend(state, ids, POLICY, turn, list(logprob)[: len(ids)])
    state.turns.append(parsed)
    state.observations.append([])
    state.user_turn.append(state.users)
    state.replies = _replies(parsed, turn)
    calls = [reply for reply in state.replies if isinstance(reply, ToolCall)]
    state.messages.append(_assistant(parsed, calls))
    if parsed.forged:
        return close(state, "forged")
    if parsed.truncated:
        return close(state, "truncated")
    if not state.replies:
        return _next_user(state, rules)
    return _act(state, calls, rules)


def observed(state: State, observations: Sequence[Observation], rules: Rules) -> Generate | End:
    """Take the observations of the last turn's calls, in call order, and go on with the next turn."""
    state.observations[-1] = list(observations)
    results = iter(observations)
    new = [_tool_message(state, reply, results) for reply in state.replies]
    state.timed_out += any(observation.status == "timeout" for observation in observations)
    if any(observation.status == "sim_failed" for observation in observations):
        return close(state, "sim_failed")
    if state.timed_out > MAX_TIMED_OUT_TURNS:
        return close(state, "tool_timeout")
    return _environment(state, new, rules)


def close(state: State, reason: str) -> End:
    """End the episode; the first reason stays. Environment tokens that no policy token followed are taken back (contract 5)."""
    state.end = state.end or reason
    while state.writer and state.writer[-1] == ENV:
        for column in (state.tokens, state.writer, state.turn, state.logprob):
            column.pop()
    return End(state.end)


def episode(state: State, temperature: float, **info: Any) -> Episode:
    """The finished record of a closed state; `info` joins the counts of its `info`."""
    writer = np.asarray(state.writer, np.int8)
    return Episode(
        task=state.task, group=state.group, sample=state.sample, tokens=np.asarray(state.tokens, np.int32), writer=writer,
        turn=np.asarray(state.turn, np.int16), logprob=np.asarray(state.logprob, np.float32), turns=state.turns,
        observations=state.observations, user_turn=state.user_turn, messages=state.messages, end=state.end or "dead",
        temperature=temperature,
        info={
            "prompt_tokens": state.prompt_length, "policy_tokens": int((writer == POLICY).sum()),
            "env_tokens": int((writer == ENV).sum()), "calls": state.calls, "malformed": state.malformed,
            "timed_out": state.timed_out, **info,
        },
    )  # fmt: skip


def _extend(state: State, ids: Sequence[int], writer: int, turn: int = -1, logprob: Sequence[float] | None = None) -> None:
    state.tokens.extend(ids)
    state.writer.extend([writer] * len(ids))
    state.turn.extend([turn] * len(ids))
    state.logprob.extend([0.0] * len(ids) if logprob is None else logprob)


def _room(state: State, rules: Rules) -> int:
    """Tokens the row may still take; the response budget counts from the first policy token, however often a turn ended."""
    behind = len(state.tokens) - state.prompt_length
    return min(rules.capacity - len(state.tokens), min(rules.own, rules.max_response_tokens) - behind)


def _budget(state: State, rules: Rules) -> int:
    return min(rules.max_turn_tokens, _room(state, rules))


def _read(ids: list[int], stopped: bool, rules: Rules) -> tuple[list[int], Parsed]:
    """Parse a turn; what follows a forged marker is dropped (a marker of several tokens can only be seen afterwards)."""
    forged = bool(ids) and ids[-1] in rules.marker_ids
    parsed = _parse(ids[:-1] if stopped else ids, rules, truncated=not stopped and not forged)
    if parsed.forged and not forged:
        ids, forged = ids[: _forged_length(ids, rules)], True
        parsed = _parse(ids, rules)
    return ids, dataclasses.replace(parsed, forged=forged)


def _parse(ids: list[int], rules: Rules, truncated: bool = False) -> Parsed:
    text = rules.template.tokenizer.decode(ids)
    return parse(text, wire=rules.wire, truncated=truncated, max_calls=rules.max_calls_per_turn)


def _forged_length(ids: list[int], rules: Rules) -> int:
    """Tokens up to the end of the first marker that the parser calls forged (one inside a JSON string is only text)."""

    def markers(length: int) -> int:
        text = rules.template.tokenizer.decode(ids[:length])
        return sum(text.count(marker) for marker in rules.template.environment_markers)

    for count in range(1, markers(len(ids)) + 1):
        length = bisect_left(range(len(ids)), count, key=markers)
        if _parse(ids[:length], rules).forged:
            return length
    return len(ids)


def _replies(parsed: Parsed, turn: int) -> list[ToolCall | CallError]:
    """What the environment answers, in the order it was written: each usable call, with an id, and each typed fault."""
    blocks = [i for i, block in enumerate(parsed.blocks) for _ in block.calls]
    if len(blocks) != len(parsed.calls):
        blocks = [0] * len(parsed.calls)
    last = len(parsed.blocks)
    entries: list[tuple[int, ToolCall | CallError]] = list(zip(blocks, parsed.calls))
    entries += [(error.block if error.block >= 0 else last, error) for error in parsed.errors]
    ordered = [reply for _, reply in sorted(entries, key=lambda entry: entry[0])]
    return [
        dataclasses.replace(reply, id=f"call_{turn}_{i}") if isinstance(reply, ToolCall) else reply
        for i, reply in enumerate(ordered)
    ]


def _assistant(parsed: Parsed, calls: list[ToolCall]) -> Message:
    message = Message(role="assistant", content=parsed.text)
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if calls:
        message["tool_calls"] = [call.message() for call in calls]
    return message


def _act(state: State, calls: list[ToolCall], rules: Rules) -> Generate | Act | End:
    """Check the limits, then hand the calls out. A call beyond a limit never runs, nor do its neighbours in the turn."""
    hashes = [call_hash(call) for call in calls]
    state.seen.update(hashes)
    state.malformed += not calls
    if state.calls + len(calls) > rules.max_calls:
        return close(state, "max_calls")
    if any(state.seen[h] > rules.max_repeats for h in hashes):
        return close(state, "repeat_limit")
    if state.malformed > rules.max_malformed:
        return close(state, "malformed_limit")
    if len(state.turns) >= rules.max_turns:
        return close(state, "max_turns")
    state.calls += len(calls)
    return Act(calls) if calls else observed(state, [], rules)


def _tool_message(state: State, reply: ToolCall | CallError, results: Iterator[Observation]) -> Message:
    """The environment's answer. That to a fault has no id: the message it answers holds no such call."""
    if isinstance(reply, CallError):
        return Message(role="tool", content=f"error: {reply.kind}: {reply.message}")
    observation = next(results)
    state.context.transcript.append((reply, observation))
    return Message(role="tool", content=observation.text, tool_call_id=reply.id, name=reply.name)


def _next_user(state: State, rules: Rules) -> Generate | End:
    if state.users >= len(state.task.followups):
        return close(state, "answered")
    if len(state.turns) >= rules.max_turns:
        return close(state, "max_turns")
    followup = Message(role="user", content=state.task.followups[state.users])
    state.users += 1
    return _environment(state, [followup], rules)


def _environment(state: State, new: list[Message], rules: Rules) -> Generate | End:
    """Append what the environment says, or end the episode before it: a row never ends with its tokens (contract 5)."""
    suffix = list(rules.template.suffix(state.messages, new))
    if _room(state, rules) - len(suffix) < MIN_TURN_TOKENS:
        return close(state, "context_full")
    state.messages.extend(new)
    _extend(state, suffix, ENV)
    return Generate(suffix, _budget(state, rules))
