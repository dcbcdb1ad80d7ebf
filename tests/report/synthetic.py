"""Synthetic episodes for the report tests: a toy word tokenizer, two kinds of segment, hostile text, every end in turn."""

import re

import numpy as np

from slca.types import (
    ABSENT,
    ENV,
    POLICY,
    PROMPT,
    SUMMARY,
    TOOL,
    Block,
    CallError,
    Episode,
    Observation,
    Parsed,
    Rollouts,
    Segment,
    Task,
    ToolCall,
)

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)> </script><!-- & ]]>"
COMPONENTS = ("format", "name", "key", "value", "parallel")


class Words:
    """Ids for pieces of text as they come: a space stays with the word after it, as in byte-pair tokenizers."""

    def __init__(self):
        self.ids, self.texts = {}, []

    def encode(self, text):
        out = []
        for piece in re.findall(r" ?\w+|\s|[^\w\s]+", text):
            if piece not in self.ids:
                self.ids[piece] = len(self.texts)
                self.texts.append(piece)
            out.append(self.ids[piece])
        return out

    def decode(self, ids):
        return "".join(self.texts[i] for i in ids)


def task(group, hostile=False):
    city = ("Tromsø", "Porto", "Lima", "Osaka")[group % 4]
    question = f"What is the weather in {city} today? {HOSTILE if hostile else ''}"
    spec = {"name": "weather.today", "description": "Weather of a city", "parameters": {"type": "object"}}
    return Task(
        id=f"weather-{group:03d}",
        messages=[{"role": "user", "content": question}],
        tools=[{"type": "function", "function": spec}],
        gold_steps=[[ToolCall("weather.today", {"city": city, "units": "metric"})]],
        facts=[["12"]],
        kind="single" if group % 2 else "distractor",
    )


def episode(words, of, group, sample, rng, hostile=False):
    """One call turn, its result, one summary turn; sample 3 of a group never answers, sample 2 writes a bad call."""
    city = of.gold_steps[0][0].arguments["city"]
    call = ToolCall("weather.today", {"city": city, "units": "metric" if sample % 2 == 0 else "imperial"})
    error = CallError("malformed_json", "expected ',' at character 31", 1) if sample == 2 else None
    result = f'{{"temp": 12, "note": "{HOSTILE if hostile else "clear sky"}"}}'
    answer = "" if sample == 3 else f"It is 12 degrees in {city}." + f" {HOSTILE}" * hostile
    raw = f'{{"name": "{call.name}", "arguments": {{"city": "{city}"}}}}'
    pieces = [
        (PROMPT, -1, f"<|system|>\nTools: weather.today\n<|user|>\n{of.messages[0]['content']}\n<|assistant|>\n"),
        (POLICY, 0, f"<tool_call>{raw}</tool_call><|end|>"),
    ]
    if answer:
        pieces += [(ENV, -1, f"\n<tool_response>{result}</tool_response>\n<|assistant|>\n"), (POLICY, 1, answer + "<|end|>")]
    tokens, writer, turn = [], [], []
    for who, k, text in pieces:
        ids = words.encode(text)
        tokens += ids
        writer += [who] * len(ids)
        turn += [k] * len(ids)
    writer = np.array(writer, np.int8)
    logprob = np.where(writer == POLICY, -rng.exponential(0.4, len(tokens)), 0).astype(np.float32)
    block = Block((call,), (error,) if error else (), raw)
    turns = [Parsed(calls=(call,), errors=(error,) if error else (), blocks=(block,), opened=1, closed=1)]
    if answer:
        turns.append(Parsed(text=answer))
    return Episode(
        task=of,
        group=group,
        sample=sample,
        tokens=np.array(tokens, np.int32),
        writer=writer,
        turn=np.array(turn, np.int16),
        logprob=logprob,
        turns=turns,
        observations=[[Observation(result, cost={"seconds": 0.02}, provenance={"source": "scripted"})], []][: len(turns)],
        user_turn=[0] * len(turns),
        messages=[{"role": "assistant", "content": answer}],
        end="answered" if answer else "max_turns",
    )


def segments_of(e):
    out = []
    for k in range(len(e.turns)):
        at = np.flatnonzero(e.turn == k)
        out.append(Segment(TOOL if e.turns[k].calls else SUMMARY, int(at[0]), int(at[-1]) + 1, k))
    return out


def batch(groups=2, size=4, hostile=False, seed=0):
    """(episodes, rollouts, credits, words, segments): slca by hand-made z-scores per channel, grpo on the total."""
    rng, words = np.random.default_rng(seed), Words()
    episodes = []
    for g in range(groups):
        of = task(g, hostile)
        episodes += [episode(words, of, g, s, rng, hostile) for s in range(size)]
    segments = [segments_of(e) for e in episodes]
    n = len(episodes)
    kind = np.full((n, 2), ABSENT)
    for row, parts in enumerate(segments):
        kind[row, : len(parts)] = [part.kind for part in parts]
    process = rng.choice([0.3, 0.7, 0.85, 1.0], n)
    summary = np.where(kind[:, 1] == SUMMARY, rng.choice([0.0, 0.5, 1.0], n), np.nan)
    rewards = {"process": process, "summary": summary, "total": process + np.nan_to_num(summary)}
    labels = {name: rng.choice([0.0, 0.5, 1.0], n) for name in COMPONENTS}
    group = np.repeat(np.arange(groups), size)

    def z(x):
        out = np.zeros(n)
        for g in range(groups):
            at = np.flatnonzero((group == g) & ~np.isnan(x))
            if len(at) > 1 and x[at].std(ddof=1) > 1e-4:
                out[at] = (x[at] - x[at].mean()) / x[at].std(ddof=1)
        return out

    present = kind != ABSENT
    slca = np.stack([z(process), z(summary)], 1) * present
    grpo = np.stack([z(rewards["total"])] * 2, 1) * present
    return episodes, Rollouts(group, kind, rewards, labels), {"slca": slca, "grpo": grpo}, words, segments
