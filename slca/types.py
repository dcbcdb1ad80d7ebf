"""Axis legend and the records that cross rooms.

Axes, single letters, used in every shape in this codebase:
    B rows of a device batch      P prompts in a step       G rollouts of a prompt (a group)
    N rollouts of a step = P*G    T tokens                  S segments of a rollout
    V vocabulary                  L layers                  D model width
    H attention heads             K key/value heads         C tokens of a chunk

Host records are dataclasses, device records NamedTuples (so they are pytrees).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

import numpy as np
from jaxtyping import Array, Float, Int

# Who wrote a token. Recorded while generating, never inferred from ids (contract 3).
PROMPT, POLICY, ENV = 0, 1, 2

# What a segment is. ABSENT pads the [N, S] arrays.
TOOL, SUMMARY, ABSENT = 0, 1, -1
KIND_NAMES = ("tool", "summary")

# Why an episode ended. `answered` is the only good end; `sim_failed` and `dead` leave the rollout unscored.
END_REASONS = (
    "answered",  # an assistant turn without a call, and no user turn left
    "max_turns",  # assistant turns used up
    "max_calls",  # tool calls used up
    "context_full",  # no room in the cache or the row for the next piece
    "truncated",  # a turn reached its token budget before a stop token
    "malformed_limit",  # too many unusable calls
    "repeat_limit",  # the same call too often
    "forged",  # the policy wrote an environment marker
    "sim_failed",  # the simulator, not the policy, failed: unscored
    "tool_timeout",  # a tool did not answer in time: unscored
    "dead",  # anything unforeseen that hit this row alone: unscored
)
UNSCORED_ENDS = frozenset({"sim_failed", "tool_timeout", "dead"})


class Message(TypedDict, total=False):
    """One chat message in the OpenAI / Hugging Face form.

    `arguments` of a tool call is a dict (typed once, never a JSON string).
    """

    role: str  # system | user | assistant | tool
    content: str
    reasoning_content: str
    tool_calls: list[dict[str, Any]]  # [{"id", "type": "function", "function": {"name", "arguments"}}]
    tool_call_id: str
    name: str


@dataclass(frozen=True)
class ToolCall:
    """One call: `arguments` is a JSON object (dict). `id` links results to calls; "" = unset."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""

    def message(self) -> dict[str, Any]:
        """The call as an entry of `Message.tool_calls`."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": dict(self.arguments)}}


@dataclass(frozen=True)
class CallError:
    """A typed fault in model text or in a call's arguments.

    kind: malformed_json, duplicate_key, not_object, missing_name, missing_arguments, unknown_tool, truncated, too_deep,
    too_large, too_many, number_range, bad_text, invalid_arguments. `message` (<= 1,000 characters) goes back to the model.
    """

    kind: str
    message: str
    block: int = -1  # index into Parsed.blocks, -1 = none


@dataclass(frozen=True)
class Block:
    """One call block of an assistant turn (one tag pair; one JSON object or a list of them)."""

    calls: tuple[ToolCall, ...] = ()
    errors: tuple[CallError, ...] = ()
    raw: str = ""

    @property
    def parsed(self) -> bool:
        return bool(self.calls) and not self.errors


@dataclass(frozen=True)
class Parsed:
    """What one assistant turn says. `parse` never raises; every fault is an entry of `errors`.

    calls: usable calls in order; text: user-facing text outside calls and reasoning; reasoning: thought text;
    opened / closed: call tags outside JSON strings and outside reasoning; forged: an environment marker was written;
    truncated: the turn was cut by its token budget.
    """

    calls: tuple[ToolCall, ...] = ()
    errors: tuple[CallError, ...] = ()
    text: str = ""
    reasoning: str = ""
    blocks: tuple[Block, ...] = ()
    opened: int = 0
    closed: int = 0
    forged: bool = False
    truncated: bool = False

    @property
    def attempted(self) -> bool:
        """A call, or a failed try at one: what makes a turn a TOOL segment rather than an answer."""
        return bool(self.calls or self.blocks or self.errors or self.opened)


# ok | unknown_tool | invalid_arguments | tool_error (the simulated API's own) | sim_failed (ours) | timeout (ours)
OBSERVATION_STATUS = ("ok", "unknown_tool", "invalid_arguments", "tool_error", "sim_failed", "timeout")


@dataclass(frozen=True)
class Observation:
    """A tool's answer. `text` is what the policy reads.

    cost: {"seconds", "tokens", "regenerations", ...}; provenance: {"source": "replay|cache|scripted|jax|openai|check|fault", ...}.
    """

    text: str
    status: str = "ok"
    cost: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Context:
    """What the simulator may know about the rollout that calls.

    group: id of the prompt (scope of the group cache and of seeded faults); sample: rollout in the group; seed: of the run; step:
    of the rollout; copy: which group of this prompt in the step; call: number of the call in its turn;
    transcript: earlier (call, observation) pairs of this rollout, in order; state: key/value store of mode `kv`.
    """

    group: str = ""
    sample: int = 0
    seed: int = 0
    step: int = 0
    copy: int = 0
    call: int = 0
    transcript: list[tuple[ToolCall, Observation]] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """One thing to be done.

    messages: system/user messages before the first assistant turn; tools: OpenAI function specs
    `{"type": "function", "function": {"name", "description", "parameters", "response"}}` (`response`: JSON Schema of the
    result, never shown to the policy); gold_steps: nested, one list of parallel calls a step, in order over the whole
    episode ([] = no call is right); followups: later user messages, each sent after an assistant turn without calls;
    facts: per user turn, strings that a good answer states; demo: reference assistant/tool/user messages after `messages`;
    kind: single | parallel | sequential | distractor | abstain | ask | two_turn | ...; meta: free, JSON-able.
    """

    id: str
    messages: list[Message]
    tools: list[dict[str, Any]]
    gold_steps: list[list[ToolCall]]
    facts: list[list[str]] = field(default_factory=list)
    followups: list[str] = field(default_factory=list)
    demo: list[Message] = field(default_factory=list)
    kind: str = "single"
    split: str = "train"
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Segment:
    """Tokens [start, stop) of an episode that share one credit. kind: TOOL or SUMMARY; turn: assistant turn index."""

    kind: int
    start: int
    stop: int
    turn: int


@dataclass
class Episode:
    """One rollout, token-exact. All token arrays have length T and never end with environment tokens (contract 5).

    tokens int32, writer int8 (PROMPT/POLICY/ENV), turn int16 (assistant turn of policy tokens; -1 elsewhere),
    logprob float32 (sampler's log-prob at the sampling temperature; 0 where writer != POLICY).
    turns[k] is the parse of assistant turn k, observations[k] its tool results in call order ([] = answered).
    user_turn[k]: which user message (0, 1, ...) turn k answers.
    """

    task: Task
    group: int
    sample: int
    tokens: np.ndarray
    writer: np.ndarray
    turn: np.ndarray
    logprob: np.ndarray
    turns: list[Parsed] = field(default_factory=list)
    observations: list[list[Observation]] = field(default_factory=list)
    user_turn: list[int] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    end: str = "dead"
    temperature: float = 1.0
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def scored(self) -> bool:
        """False when the environment, not the policy, ended the episode (contract 7)."""
        return self.end not in UNSCORED_ENDS

    @property
    def prompt_length(self) -> int:
        other = np.flatnonzero(self.writer != PROMPT)
        return int(other[0]) if other.size else len(self.tokens)


@dataclass
class Rollouts:
    """What credit sees: one row an episode, float64 NumPy.

    group int [N]; kind int [N, S] (TOOL, SUMMARY, ABSENT); rewards: channel -> [N] or [N, S], NaN = unscored;
    labels: name -> array (roles, states, cells, step weights). tokens int [N, S]: length of each segment.
    """

    group: np.ndarray
    kind: np.ndarray
    rewards: dict[str, np.ndarray]
    labels: dict[str, np.ndarray] = field(default_factory=dict)
    tokens: np.ndarray | None = None


class Batch(NamedTuple):
    """Packed rows, all [B, T]. Entry t speaks of tokens[:, t] as the *predicted* token.

    positions restart at 0 in each episode. episode: 0 = padding, else 1.. within the row (attention and sequence
    statistics stay inside one episode). segment: 0 = not trained, else 1 + index of the segment in its episode.
    kind: TOOL/SUMMARY of that segment, ABSENT elsewhere. loss_weight has the aggregation mode and the *global* divisor
    folded in, so the loss is sum(loss_weight * token_loss) whatever the micro-batch split (contract 8).
    Missing log-probs are NaN, not 0; only positions with loss_weight > 0 are ever read.
    group: 1 + the episode's group, 0 = padding; None unless packed with whole groups (REBEL regresses over them).
    prefix: with `train.share_prompts` the prompt of a group stands once a row, as an episode of its own, and the rollouts behind it
    see it: the id of that episode, a token's own id where there is none. Positions go on from the prompt's. None: not shared.
    """

    tokens: Int[Array, "B T"]
    positions: Int[Array, "B T"]
    episode: Int[Array, "B T"]
    segment: Int[Array, "B T"]
    kind: Int[Array, "B T"]
    loss_weight: Float[Array, "B T"]
    advantage: Float[Array, "B T"]
    old_logprob: Float[Array, "B T"]
    ref_logprob: Float[Array, "B T"]
    sampler_logprob: Float[Array, "B T"]
    group: Int[Array, "B T"] | None = None
    prefix: Int[Array, "B T"] | None = None


class TrainState(NamedTuple):
    """Everything the update changes. key: typed PRNG key of the run; step: optimiser steps taken."""

    params: Any
    opt_state: Any
    step: Int[Array, ""]
    key: Any


class Samples(NamedTuple):
    """Sampled continuations, right-padded. length counts sampled tokens, the stop token included; stopped: ended by one."""

    tokens: Int[Array, "B N"]
    logprob: Float[Array, "B N"]
    length: Int[Array, "B"]
    stopped: Any
