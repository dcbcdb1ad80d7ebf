"""A character-level tokenizer and template, and a sampler whose "policy" is a script: no model, exact by construction."""

from __future__ import annotations

import functools
import zlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np

from slca.rollout.sampler import BUDGET, RUNNING, STOP

CONTROL = {"<pad>": 0, "<|im_end|>": 1, "<|im_start|>": 2, "<tool_response>": 3, "</tool_response>": 4}
FIRST = 5  # id of character 0


class Tokenizer:
    """ASCII characters; what is not one becomes '?'. Control ids decode to their text and are never encoded."""

    control = CONTROL
    stop_ids = (1,)
    pad_id = 0
    size = FIRST + 128

    def encode(self, text: str) -> list[int]:
        return [FIRST + (ord(c) if ord(c) < 128 else ord("?")) for c in text]

    def decode(self, ids) -> str:
        names = {i: name for name, i in CONTROL.items()}
        return "".join(names.get(i) or chr(i - FIRST) for i in map(int, ids))


class Template:
    """<|im_start|>role newline content <|im_end|> newline; the tools are not shown."""

    tokenizer = Tokenizer()
    stop_ids = (1,)
    environment_markers = ("<tool_response>", "</tool_response>", "<|im_start|>")

    def prompt(self, messages, tools) -> list[int]:
        return [i for message in messages for i in self._message(message)] + self._open()

    def suffix(self, messages, new) -> list[int]:
        return self.tokenizer.encode("\n") + [i for message in new for i in self._message(message)] + self._open()

    def _message(self, message) -> list[int]:
        encode = self.tokenizer.encode
        return [2, *encode(message["role"] + "\n" + message["content"]), 1, *encode("\n")]

    def _open(self) -> list[int]:
        return [2, *self.tokenizer.encode("assistant\n")]


@dataclass
class SlotState:
    """Tokens in each slot's cache, and the pending one (the sampler's invariant); the prompt of each place, where they share."""

    cache: list[list[int]]
    last: list[int]
    prompts: list[list[int]]


class ScriptedSampler:
    """The slot interface of `slca.rollout.sampler.Sampler` over a script: (tokens of the row so far, key) -> a turn's ids.

    The script is asked at each step with the whole row as it stands in the cache, so a token that is lost, doubled or put
    into the wrong slot changes what follows. Log-probs are a hash of that row. The script's turn may lack a stop id.
    """

    shards = 1

    def __init__(
        self, script: Callable[[list[int], int], list[int]], *, slots=4, decode_steps=5, cache_length=2000, shared_slots=0,
        own_length=0,
    ):  # fmt: skip
        self.script, self.slots, self.decode_steps, self.capacity = script, slots, decode_steps, cache_length
        self.shared_slots, self.places = shared_slots, slots // shared_slots if shared_slots else 0
        self.own_length = own_length or cache_length
        self.prompt_buckets = (cache_length,)
        self.prefilled: list[list[int]] = []

    def prepare(self, params):
        return params

    def compiles(self):
        return 0

    def compacts(self, rows):
        return False

    def init(self):
        return SlotState([[] for _ in range(self.slots)], [-1] * self.slots, [[] for _ in range(self.places)])

    def prefill(self, params, prompts):
        assert all(prompts), "an empty prompt"
        self.prefilled += prompts
        return [list(prompt) for prompt in prompts]

    def insert(self, state, prompts, source, slots):
        for i, slot in zip(source, slots):
            state.cache[slot], state.last[slot] = prompts[i][:-1], prompts[i][-1]
        return state

    def batches(self, lengths):
        return [(max(lengths), 2, np.arange(i, min(i + 2, len(lengths)))) for i in range(0, len(lengths), 2)]

    def place(self, state, prompts, source, places):
        for i, place in zip(source, places, strict=True):
            state.prompts[place] = prompts[i]
        return state

    def spread(self, state, pairs):
        for source, target in pairs:
            state.prompts[target] = state.prompts[source]
        return state

    def start(self, state, slots):
        for slot in slots:
            prompt = state.prompts[slot // self.shared_slots]
            state.cache[slot], state.last[slot] = prompt[:-1], prompt[-1]
        return state

    def append(self, params, state, suffixes):
        for slot, ids in suffixes.items():
            state.cache[slot] += [state.last[slot], *ids[:-1]]
            state.last[slot] = ids[-1]
            assert len(state.cache[slot]) < self.capacity and self._behind(state, slot) < self.own_length
        return state

    def _behind(self, state, slot):
        """Tokens of the slot's own cache."""
        prompt = state.prompts[slot // self.shared_slots][:-1] if self.places else []
        assert state.cache[slot][: len(prompt)] == prompt, "a place took another prompt while a row of the first ran"
        return len(state.cache[slot]) - len(prompt)

    def decode(self, params, state, *, keys, temperature, stop_ids, budgets, active=None, wanted=0):
        data = np.asarray(jax.random.key_data(keys))
        tokens = np.zeros((self.slots, self.decode_steps), np.int32)
        logprob, count = np.zeros(tokens.shape, np.float32), np.zeros(self.slots, np.int32)
        reason = np.full(self.slots, RUNNING)
        running = (np.asarray(budgets) > 0) & (True if active is None else np.asarray(active))
        temperature = np.broadcast_to(np.asarray(temperature, np.float32), running.shape)
        for n in range(self.decode_steps):
            for slot in np.flatnonzero(running & (reason == RUNNING)):
                row = state.cache[slot] + [state.last[slot]]
                token, score = draw(self.script, row, data[slot], temperature[slot])
                state.cache[slot], state.last[slot] = row, token
                assert self._behind(state, slot) <= self.own_length
                tokens[slot, n], logprob[slot, n] = token, score
                count[slot] += 1
                if token in stop_ids:
                    reason[slot] = STOP
                elif count[slot] >= budgets[slot]:
                    reason[slot] = BUDGET
            if (reason != RUNNING).sum() >= (wanted or self.slots + 1):
                break
        return state, tokens, logprob, count, reason


def draw(script, row: list[int], key, temperature: float = 1.0) -> tuple[int, float]:
    """The next token of a row and its log-prob. The script's key is the row's, at a temperature of 1; another makes another."""
    opened = len(row) - 1 - row[::-1].index(CONTROL["<|im_start|>"])
    said = opened + 1 + len("assistant\n")  # where the open turn begins
    mixed = int(key[0]) ^ int(key[1]) ^ 1000 ^ round(1000 * float(temperature))
    turn = _turn(script, tuple(row[:said]), mixed)
    return turn[len(row) - said], -float(zlib.crc32(array("i", row).tobytes()) % 997) / 100


@functools.lru_cache(maxsize=100_000)
def _turn(script, row: tuple[int, ...], key: int) -> list[int]:
    return script(list(row), key)
