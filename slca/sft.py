"""Cold start: demonstrations -> token rows with loss on assistant tokens only, through the template the rollouts use."""

from __future__ import annotations

import copy
import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from slca.learn.batch import pack_sft
from slca.learn.rows import first_fit_decreasing
from slca.tasks.schema import public_specs
from slca.types import Batch, Message, Task


def encode_demo(task: Task, template: Any) -> tuple[np.ndarray, np.ndarray]:
    """A task's demonstration -> (tokens int32 [T], weight float32 [T]); weight 1 on assistant tokens, their stop token included.

    The same prompt, assistant and suffix ids that a rollout would hold, so SFT and RL see one token distribution. A
    demonstration ends with an assistant turn; later environment messages are dropped.
    """
    history: list[Message] = list(task.messages)
    pieces = [template.prompt(history, public_specs(task.tools))]
    trained = [0.0]
    waiting: list[Message] = []
    for message in task.demo:
        if message["role"] != "assistant":
            waiting.append(message)
            continue
        if waiting:
            pieces.append(template.suffix(history, waiting))
            trained.append(0.0)
            history += waiting
            waiting = []
        pieces.append(template.assistant(history, message))
        trained.append(1.0)
        history.append(message)
    tokens = np.concatenate([np.asarray(p, np.int32) for p in pieces])
    weight = np.concatenate([np.full(len(p), w, np.float32) for p, w in zip(pieces, trained)])
    return tokens, weight


def demonstrations(tasks: Any, template: Any, config: Any, step: int, shards: int = 1) -> tuple[Batch, dict[str, float]]:
    """The packed batch of SFT step `step`: the next `sft.demonstrations` of the stream, 0 = as many as its rows hold.

    What the rows do not hold goes back to the stream, for the next step: each is learnt once, and a step depends on the position
    that it begins at alone. Returns the batch and counts: `tasks` in it; left out because `too_long` for a row, or `untaught`,
    without a demonstrated turn. Raises ValueError when a thousand in a row are left out.
    """
    c = config.sft
    room, wanted = c.batch_rows * c.row_length, c.demonstrations or math.inf
    examples: list[tuple[np.ndarray, np.ndarray]] = []
    drawn: list[str] = []  # what became of each task that was drawn
    while room >= 0 and len(examples) < wanted:
        task = tasks.next(1)[0]
        rng = np.random.default_rng([config.run.seed, step, len(drawn)])
        tokens, weight = encode_demo(corrupt(task, rng, c.noise), template)
        drawn.append("untaught" if not weight.any() else "too_long" if len(tokens) > c.row_length else "tasks")
        if drawn[-1] == "tasks":
            examples.append((tokens, weight))
            room -= len(tokens)
        elif len(drawn) - len(examples) >= 1000 * (len(examples) + 1):
            raise ValueError(
                f"sft.row_length={c.row_length}: of {len(drawn) - len(examples)} demonstrations {drawn.count('too_long')} are longer "
                f"and {drawn.count('untaught')} have no assistant turn, the last has {len(tokens)} tokens"
            )
    kept = _fitting([len(tokens) for tokens, _ in examples], c.batch_rows, c.row_length)
    used = [n for n, what in enumerate(drawn, 1) if what == "tasks"][kept - 1]  # up to the last one that is kept
    tasks.back(len(drawn) - used)
    (batch,) = pack_sft(examples[:kept], config, data_size=shards)
    return batch, {what: float(drawn[:used].count(what)) for what in ("tasks", "too_long", "untaught")}


def _fitting(lengths: Sequence[int], rows: int, row_length: int) -> int:
    """How many of these lengths, in order, are packed into so many rows. Halving, since packing them one more at a time is slow."""
    return bisect_right(range(len(lengths) + 1), rows, key=lambda n: first_fit_decreasing(lengths[:n], row_length)[2]) - 1


def corrupt(task: Task, rng: np.random.Generator, noise: float) -> Task:
    """The task with each demonstrated assistant turn made wrong with probability `noise` (an imperfect demonstrator).

    Calls: another tool's name, an argument left out, a wrong value, or the call made twice. Summaries: a stated fact replaced,
    or half of the text. What follows is left as it was.
    """
    if noise <= 0 or not task.demo:
        return task
    demo = copy.deepcopy(task.demo)
    for message in demo:
        if message["role"] != "assistant" or rng.random() >= noise:
            continue
        if message.get("tool_calls"):
            _damage_calls(message, task, rng)
        else:
            _damage_text(message, task, rng)
    return Task(**{**vars(task), "demo": demo})


def _damage_calls(message: Message, task: Task, rng: np.random.Generator) -> None:
    calls = message["tool_calls"]
    function = calls[int(rng.integers(len(calls)))]["function"]
    arguments = function["arguments"]
    others = [t["function"]["name"] for t in task.tools if t["function"]["name"] != function["name"]]
    kind = rng.choice(["tool", "drop", "value", "value", "twice"])
    if kind == "tool" and others:
        function["name"] = str(rng.choice(others))
    elif kind == "drop" and arguments:
        del arguments[str(rng.choice(sorted(arguments)))]
    elif kind != "twice" and arguments:
        name = str(rng.choice(sorted(arguments)))
        schemas = [t["function"]["parameters"] for t in task.tools if t["function"]["name"] == function["name"]]
        options = schemas[0].get("properties", {}).get(name, {}).get("enum", ()) if schemas else ()
        arguments[name] = _wrong(arguments[name], options or _words(task), rng)
    else:
        calls.append(copy.deepcopy(calls[-1]))


def _damage_text(message: Message, task: Task, rng: np.random.Generator) -> None:
    text = message.get("content") or ""
    stated = [fact for turn in task.facts for fact in turn if fact and fact in text]
    if stated:
        fact = str(rng.choice(stated))
        message["content"] = text.replace(fact, str(_wrong(fact, _words(task), rng)))
    else:
        message["content"] = " ".join(text.split()[: max(1, len(text.split()) // 2)])


def _words(task: Task) -> list[str]:
    """Words of the question: what a careless demonstrator would write instead."""
    return [word.strip(".,?!") for word in str(task.messages[-1].get("content", "")).split()]


def _wrong(value: Any, options: Sequence[Any], rng: np.random.Generator) -> Any:
    """A value of the same type that differs: one digit redrawn, a boolean flipped, else another of `options`."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return type(value)(value + int(rng.integers(1, 10)))
    if isinstance(value, list):
        return value[:-1]
    text = str(value)
    digits = [i for i, ch in enumerate(text) if ch.isdigit()]
    if digits:
        i = int(rng.choice(digits))
        return text[:i] + str((int(text[i]) + int(rng.integers(1, 10))) % 10) + text[i + 1 :]
    others = [option for option in options if option and option != text]
    return str(rng.choice(others)) if others else text + "x"
