"""Load test of the server over loopback, with a model of half a million parameters: is any answer lost, swapped or slow?

    python -m bench.serve [--requests 2000] [--clients 64] [--slots 32] [--rounds 3]
    python -m bench.serve --turns 4 [--conversations 256] [--clients 32] [--slots 32] [--rounds 3]

Clients keep one connection each and send the next request when the last is answered. A tenth of the requests close the
connection half-way (streams after the first event, others while they wait), a twentieth are malformed (no JSON, wrong types, too
long, too large, unknown model). Every complete answer is compared, token by token, with `Sampler.generate` of the same prompt and
seed. Throughput: requests of 128 tokens without faults, half of them streams, against `Sampler.generate` of the same prompts in the
same number of slots and in a process of its own; the two alternate. --turns: conversations instead, each prompt being the last one,
its answer and a dozen tokens more, on a server that goes on from kept rows and on one that computes every prompt whole.

The first half of the machine's cores stands in for an accelerator: the sampler has it, alone as in the server. HTTP and the clients
share the others. (With everything on all cores XLA's threads wait for cores that clients hold, and it is that which is measured.)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np

WORDS = "weather in oslo tomorrow book a table turn the lamp off play music what is my balance".split()
MAX_TOKENS = 96
SPEED_TOKENS, SPEED_REQUESTS = 128, 512
EVERY_CORE = sorted(os.sched_getaffinity(0))
DEVICE = EVERY_CORE[: max(1, len(EVERY_CORE) // 2)]  # cores of the sampler
HOST = EVERY_CORE[len(DEVICE) :] or DEVICE  # of everything else


def model(slots: int) -> tuple[Any, Any, Any]:
    """(sampler, parameters, template): the architecture of configs/tiny.py with random weights."""
    from configs.tiny import get_config
    from slca.chat import tokenizer
    from slca.chat.template import Template
    from slca.policy import transformer
    from slca.policy.config import ModelConfig
    from slca.rollout.sampler import Sampler

    template = Template(tokenizer.load("tiny"))
    config = ModelConfig.random(get_config().model, -(-template.tokenizer.size // 64) * 64)
    sampler = Sampler(config, slots=slots, cache_length=512, prompt_buckets=(128, 512), suffix_buckets=(16,), decode_steps=32)
    return sampler, transformer.init(config, jax.random.key(0)), template


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
    import httpx

    headers = {"content-type": "application/json"}
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
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


def serve(slots: int, port_file: str, reuse: bool, host: list[int]) -> None:
    """The server's process: writes its port, then serves until its standard input closes. host: cores of HTTP."""
    import threading

    import uvicorn

    from slca.serve import make_app
    from slca.serve.__main__ import SWITCH
    from slca.serve.slots import APPEND_COST, SlotEngine

    sys.setswitchinterval(SWITCH)
    sampler, params, template = model(slots)
    engine = SlotEngine(sampler, params, template, reuse=APPEND_COST if reuse else None)
    while engine.health() == "starting":
        time.sleep(0.05)
    os.sched_setaffinity(0, host)  # this thread; the engine's and XLA's stay where they began
    server = uvicorn.Server(uvicorn.Config(make_app(engine), port=0, log_level="error", access_log=False))

    def watch() -> None:
        while not server.started:
            time.sleep(0.05)
        with open(port_file + ".tmp", "w") as file:
            file.write(str(server.servers[0].sockets[0].getsockname()[1]))
        os.replace(port_file + ".tmp", port_file)
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=watch, daemon=True).start()
    server.run()


def tie(parts: Any, request: dict[str, Any], got: list[int], wanted: list[int]) -> bool:
    """See `near_tie`."""
    prompt = parts[2].prompt([{"role": "user", "content": request["text"]}])
    return near_tie(parts, prompt, request["seed"], request["temperature"], got, wanted)


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


def compared(parts: Any, made: list[dict[str, Any]], out: dict[int, Any], wanted: list[list[int]]) -> tuple[int, int, int]:
    """(answers that are not there, answers that part from the offline sampler's at a near-tie, other differences)."""
    complete = [i for i, request in enumerate(made) if request["kind"] in ("body", "stream")]
    lost = [i for i in complete if not isinstance(out.get(i), list)]
    differ = [i for i in complete if i not in lost and out[i] != wanted[i]]
    ties = [i for i in differ if tie(parts, made[i], out[i], wanted[i])]
    return len(lost), len(ties), len(differ) - len(ties)


def rss(pid: int) -> float:
    """MiB."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


@contextmanager
def on_host() -> Iterator[None]:
    """The calling thread, which runs the clients, on the cores that are not the device's."""
    os.sched_setaffinity(0, HOST)
    try:
        yield
    finally:
        os.sched_setaffinity(0, DEVICE)


def cpu(pid: int | str = "self") -> float:
    """Seconds of CPU that a process has used, all its threads together."""
    with open(f"/proc/{pid}/stat") as file:
        user, system = file.read().rpartition(") ")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def gauges(url: str) -> dict[str, float]:
    import httpx

    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return {name: float(value) for name, value in (line.split(" ") for line in lines if line.startswith("slca_engine"))}


def faults(url: str, pid: int, options: argparse.Namespace, parts: Any) -> None:
    """Load with faults; every complete answer against the offline sampler's."""
    made = requests(options.requests, True)
    with on_host():
        asyncio.run(load(url, requests(300, True), options.clients))
        before = rss(pid)
        out, seconds, counts, took = asyncio.run(load(url, made, options.clients))
    deadline = time.monotonic() + 30
    while (left := gauges(url))["slca_engine_in_flight"] and time.monotonic() < deadline:
        time.sleep(0.1)
    wanted, _ = offline(*parts, made, MAX_TOKENS)
    lost, ties, wrong = compared(parts, made, out, wanted)
    p50, p95 = np.percentile(seconds, [50, 95])
    print(f"{len(made)} requests, {options.clients} clients, {options.slots} slots: {took:.1f} s; {dict(counts)}")
    print(f"complete answers {len(seconds)}: lost {lost}, near-ties {ties}, other differences {wrong}")
    print(f"p50 {p50:.2f} s, p95 {p95:.2f} s")
    print(f"after it: in flight {left['slca_engine_in_flight']:.0f}, slots busy {left['slca_engine_slots_busy']:.0f}, "
          f"cancelled {left['slca_engine_cancelled_total']:.0f}, RSS {before:.0f} -> {rss(pid):.0f} MiB", flush=True)  # fmt: skip


def speed(url: str, pid: int, options: argparse.Namespace, parts: Any) -> None:
    """Tokens a second: server, offline, server, ... and the CPU seconds of each, the clients' too, which share the cores."""
    made = [
        r | {"max_tokens": SPEED_TOKENS, "kind": ("body", "stream")[i % 2]}
        for i, r in enumerate(requests(SPEED_REQUESTS, False))
    ]
    offline(*parts, made, SPEED_TOKENS)  # compiles
    rates: dict[str, list[float]] = {"server": [], "offline": []}
    for _ in range(options.rounds):
        marks = [(cpu(), cpu(pid))]
        with on_host():
            out, _, _, took = asyncio.run(load(url, made, options.clients))
        marks.append((cpu(), cpu(pid)))
        wanted, alone = offline(*parts, made, SPEED_TOKENS)
        marks.append((cpu(), cpu(pid)))
        (clients, served), (sampled, _) = (tuple(b - a for a, b in zip(*pair)) for pair in pairwise(marks))
        lost, _, wrong = compared(parts, made, out, wanted)
        assert not lost and not wrong, f"{lost} answers lost, {wrong} differ from the offline sampler's"
        tokens = sum(map(len, wanted))
        print(f"server {tokens / took:.0f}, offline {tokens / alone:.0f} tokens/s; CPU seconds: clients {clients:.1f} and server {served:.1f} "
              f"in {took:.1f} s, offline {sampled:.1f} in {alone:.1f} s", flush=True)  # fmt: skip
        rates["server"].append(tokens / took)
        rates["offline"].append(tokens / alone)
    ratios = [a / b for a, b in zip(rates["server"], rates["offline"])]
    for name, found in rates.items():
        print(f"{name}: {statistics.median(found):.0f} tokens/s ({min(found):.0f} to {max(found):.0f})")
    print(f"server / offline: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


async def talk(http: Any, template: Any, seed: int, turns: int) -> list[tuple[int, list[int], list[int]]]:
    """(seed, prompt, answer) of each turn of one conversation."""
    rng, out = random.Random(seed), []
    prompt = template.prompt([{"role": "user", "content": " ".join(rng.choices(WORDS, k=30))}])
    for _ in range(turns):
        asked = {"model": "slca", "prompt": prompt, "seed": seed, "max_tokens": 32, "return_token_ids": True}
        response = await http.post("/v1/completions", json=asked)
        ids = response.json()["choices"][0]["token_ids"]
        out.append((seed, prompt, ids))
        prompt = [*prompt, *ids, *template.tokenizer.encode(" ".join(rng.choices(WORDS, k=5)))]
    return out


def conversations(url: str, options: argparse.Namespace, parts: Any) -> tuple[list[tuple[int, list[int], list[int]]], float]:
    """All turns of all conversations, and seconds."""
    import httpx

    async def go() -> list[list[tuple[int, list[int], list[int]]]]:
        limit = asyncio.Semaphore(options.clients)
        async with httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits(max_connections=options.clients)) as http:

            async def one(seed: int) -> list[tuple[int, list[int], list[int]]]:
                async with limit:
                    return await talk(http, parts[2], seed, options.turns)

            return await asyncio.gather(*[one(seed) for seed in range(options.conversations)])

    began = time.monotonic()
    with on_host():
        found = asyncio.run(go())
    return [turn for turns in found for turn in turns], time.monotonic() - began


def checked(found: list[tuple[int, list[int], list[int]]], parts: Any) -> tuple[int, int]:
    """(answers that part from the offline sampler's at a near-tie, other differences)."""
    from slca.rollout.sampler import row_keys
    from slca.serve.run import marker_ids

    sampler, params, template = parts
    stops = tuple(sorted({*template.stop_ids, *marker_ids(template)}))
    zero = np.zeros(len(found), np.int32)
    keys = row_keys(np.array([seed for seed, _, _ in found], np.int32), 0, zero, zero, zero)
    made = sampler.generate(params, [prompt for _, prompt, _ in found], keys=keys, max_new_tokens=32, stop_ids=stops)
    wanted = [row[:n].tolist() for row, n in zip(made.tokens, made.length)]
    differ = [i for i, (_, _, ids) in enumerate(found) if ids != wanted[i]]
    ties = [i for i in differ if near_tie(parts, found[i][1], found[i][0], 1.0, found[i][2], wanted[i])]
    return len(ties), len(differ) - len(ties)


def turns(urls: dict[str, str], options: argparse.Namespace, parts: Any) -> None:
    """Conversations on both servers in turns: seconds, what was computed, and every answer against the offline sampler's."""
    names = ("continued_total", "continued_tokens_total", "tokens_prefilled_total", "tokens_appended_total")
    seconds: dict[str, list[float]] = {name: [] for name in urls}
    for url in urls.values():
        conversations(url, argparse.Namespace(**{**vars(options), "conversations": options.clients}), parts)
    for _ in range(options.rounds):
        for name, url in urls.items():
            before = gauges(url)
            found, took = conversations(url, options, parts)
            after = gauges(url)
            counts = {n: int(after[f"slca_engine_{n}"] - before[f"slca_engine_{n}"]) for n in names}
            ties, wrong = checked(found, parts)
            seconds[name].append(took)
            print(
                f"{name}: {len(found)} answers in {took:.2f} s; near-ties {ties}, other differences {wrong}; {counts}",
                flush=True,
            )
    for name, every in seconds.items():
        print(f"{name}: {statistics.median(every):.2f} s ({min(every):.2f} to {max(every):.2f})")
    ratios = [a / b for a, b in zip(seconds["whole"], seconds["kept"])]
    print(f"whole / kept: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=0, help="of each conversation; 0 = the load test")
    parser.add_argument("--conversations", type=int, default=256)
    parser.add_argument("--whole", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    parser.add_argument("--host", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.slots, options.serve, not options.whole, [int(core) for core in options.host.split(",")])
    os.sched_setaffinity(0, DEVICE)  # before JAX starts its threads; the server's process inherits it
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        kinds = ("kept", "whole") if options.turns else ("kept",)
        ports = {kind: Path(folder) / kind for kind in kinds}
        servers = {kind: stack.enter_context(started(options, port, kind)) for kind, port in ports.items()}
        parts = model(options.slots)
        urls = {kind: address(servers[kind], ports[kind]) for kind in kinds}
        if options.turns:
            turns(urls, options, parts)
        else:
            faults(urls["kept"], servers["kept"].pid, options, parts)
            speed(urls["kept"], servers["kept"].pid, options, parts)


@contextmanager
def started(options: argparse.Namespace, port: Path, kind: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server in a process of its own, as long as the context lasts."""
    command = [
        sys.executable,
        "-m",
        "bench.serve",
        f"--slots={options.slots}",
        f"--serve={port}",
        f"--host={','.join(map(str, HOST))}",
    ]
    command += ["--whole"] if kind == "whole" else []
    with subprocess.Popen(command, stdin=subprocess.PIPE) as server:
        try:
            yield server
        finally:
            assert server.stdin is not None
            server.stdin.close()


def address(server: subprocess.Popen[bytes], port: Path) -> str:
    while not port.exists():
        if server.poll() is not None:
            sys.exit("the server ended")
        time.sleep(0.1)
    return f"http://127.0.0.1:{port.read_text()}"


if __name__ == "__main__":
    main()
