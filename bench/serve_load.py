"""The requests of bench.serve, the clients that send them, and the offline sampler's answers to them."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from typing import Any

import jax
import numpy as np

WORDS = "weather in oslo tomorrow book a table turn the lamp off play music what is my balance".split()
MAX_TOKENS = 96


def requests(count: int, faults: bool) -> list[dict[str, Any]]:
    """What each request is: kind (body | stream | leave | leave_stream | malformed), seed, question, temperature."""
    rng, made = random.Random(0), []
    for i in range(count):
        draw = rng.random() if faults else 1.0
        kind = (
            "malformed"
            if draw < 0.05
            else rng.choice(["leave", "leave_stream"])
            if draw < 0.15
            else rng.choice(["body", "stream"])
        )
        text = " ".join(rng.choices(WORDS, k=rng.randint(3, 20)))
        made.append(
            {
                "kind": kind,
                "seed": i,
                "text": text,
                "temperature": rng.choice([0.7, 1.0, 1.3]),
                "max_tokens": rng.randint(8, MAX_TOKENS),
            }
        )
    return made


def body(request: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": "slca", "messages": [{"role": "user", "content": request["text"]}], "seed": request["seed"], "return_token_ids": True,
        "temperature": request["temperature"], "max_tokens": request["max_tokens"], "stream": request["kind"].endswith("stream"),
    }  # fmt: skip


def malformed(i: int) -> tuple[bytes, int]:
    """A body that is no request, and the status it must get."""
    good = body({"kind": "body", "text": "x", "seed": i, "temperature": 1.0, "max_tokens": 8})
    return [
        (b"{", 400), (json.dumps(good | {"temperature": "hot"}).encode(), 400), (json.dumps(good | {"messages": []}).encode(), 400),
        (json.dumps(good | {"messages": [{"role": "user", "content": "x " * 2000}]}).encode(), 400), (b"[" * 100_000, 400),
        (json.dumps(good | {"model": "other"}).encode(), 404), (b" " * (5 * 2**20), 413), (b'{"model": NaN}', 400),
    ][i % 8]  # fmt: skip


async def client(
    url: str, mine: list[tuple[int, dict[str, Any]]], out: dict[int, Any], seconds: list[float], counts: Counter[str]
) -> None:
    """One client: its requests one after the other over one connection."""
    import httpx2

    headers = {"content-type": "application/json"}
    async with httpx2.AsyncClient(base_url=url, timeout=120) as http:
        for i, request in mine:
            began = time.monotonic()
            if request["kind"] == "malformed":
                content, wanted = malformed(i)
                response = await http.post("/v1/chat/completions", content=content, headers=headers)
                counts["malformed" if response.status_code == wanted else "wrong_status"] += 1
            elif request["kind"] == "leave":
                try:
                    await asyncio.wait_for(http.post("/v1/chat/completions", json=body(request)), 0.05 * (i % 5))
                    counts["left_too_late"] += 1
                except TimeoutError:
                    counts["left"] += 1
            elif request["kind"] == "body":
                response = await http.post("/v1/chat/completions", json=body(request))
                out[i] = response.json()["choices"][0]["token_ids"] if response.status_code == 200 else response.status_code
                seconds.append(time.monotonic() - began)
            else:
                await stream(http, i, request, out, counts)
                if request["kind"] == "stream":
                    seconds.append(time.monotonic() - began)


async def stream(http: Any, i: int, request: dict[str, Any], out: dict[int, Any], counts: Counter[str]) -> None:
    ids: list[int] = []
    async with http.stream("POST", "/v1/chat/completions", json=body(request)) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                ids += json.loads(line[6:])["choices"][0]["token_ids"]
                if request["kind"] == "leave_stream":
                    counts["left"] += 1
                    return
        out[i] = ids


async def load(url: str, made: list[dict[str, Any]], clients: int) -> tuple[dict[int, Any], list[float], Counter[str], float]:
    out: dict[int, Any] = {}
    seconds: list[float] = []
    counts: Counter[str] = Counter()
    began = time.monotonic()
    numbered = list(enumerate(made))
    await asyncio.gather(*[client(url, numbered[c::clients], out, seconds, counts) for c in range(clients)])
    return out, seconds, counts, time.monotonic() - began


def offline(sampler: Any, params: Any, template: Any, made: list[dict[str, Any]], most: int) -> tuple[list[list[int]], float]:
    """The same answers by `Sampler.generate` (each cut at its own budget), and seconds."""
    from slca.rollout.sampler import row_keys
    from slca.serve.run import marker_ids

    stops = tuple(sorted({*template.stop_ids, *marker_ids(template)}))
    prompts = [template.prompt([{"role": "user", "content": request["text"]}]) for request in made]
    zero = np.zeros(len(made), np.int32)
    keys = row_keys(np.array([request["seed"] for request in made], np.int32), 0, zero, zero, zero)
    temperature = np.array([request["temperature"] for request in made], np.float32)
    began = time.monotonic()
    found = sampler.generate(params, prompts, keys=keys, max_new_tokens=most, temperature=temperature, stop_ids=stops)
    seconds = time.monotonic() - began
    return [row[: min(n, r["max_tokens"])].tolist() for row, n, r in zip(found.tokens, found.length, made)], seconds


def near_tie(parts: Any, prompt: list[int], seed: int, temperature: float, got: list[int], wanted: list[int]) -> bool:
    """Whether two answers part at a draw that falls within 1e-5 of the border between both tokens: rounding, which differs between
    batch shapes, decides such a draw (contract 11 leaves them out)."""
    from slca.policy.transformer import Transformer, logits, unembed
    from slca.rollout.sampler import row_keys

    sampler, params, _ = parts
    at = next((i for i, (a, b) in enumerate(zip(got, wanted)) if a != b), None)
    if at is None:
        return False
    ids = [*prompt, *wanted[:at]]
    tokens = np.zeros((1, sampler.capacity), np.int32)
    tokens[0, : len(ids)] = ids
    hidden = Transformer(sampler.config).apply({"params": params}, tokens, np.arange(tokens.size, dtype=np.int32)[None])
    scores = np.asarray(logits(hidden[:, len(ids) - 1], unembed(params, sampler.config)), np.float64)[0] / temperature
    cdf = np.concatenate([[0.0], np.cumsum(np.exp(scores - scores.max()))])
    cdf /= cdf[-1]
    zero = np.zeros(1, np.int32)
    key = row_keys(np.full(1, seed, np.int32), 0, zero, zero, zero)[0]
    uniform = float(jax.random.uniform(jax.random.fold_in(key, len(ids))))
    return all(cdf[token] - 1e-5 <= uniform <= cdf[token + 1] + 1e-5 for token in (got[at], wanted[at]))


def tie(parts: Any, request: dict[str, Any], got: list[int], wanted: list[int]) -> bool:
    """See `near_tie`."""
    prompt = parts[2].prompt([{"role": "user", "content": request["text"]}])
    return near_tie(parts, prompt, request["seed"], request["temperature"], got, wanted)


def compared(parts: Any, made: list[dict[str, Any]], out: dict[int, Any], wanted: list[list[int]]) -> tuple[int, int, int]:
    """(answers that are not there, answers that part from the offline sampler's at a near-tie, other differences)."""
    complete = [i for i, request in enumerate(made) if request["kind"] in ("body", "stream")]
    lost = [i for i in complete if not isinstance(out.get(i), list)]
    differ = [i for i in complete if i not in lost and out[i] != wanted[i]]
    ties = [i for i in differ if tie(parts, made[i], out[i], wanted[i])]
    return len(lost), len(ties), len(differ) - len(ties)
