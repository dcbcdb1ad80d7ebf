"""Load test of the server over loopback, with a small model: is any answer lost, swapped or slow?

    python -m bench.serve [--requests 2000] [--clients 64] [--slots 32] [--rounds 3]     # half a million parameters
    python -m bench.serve --size mid --requests 0 [--rounds 3]                           # 30 M; throughput alone
    python -m bench.serve --turns 4 --clients 32 [--conversations 256] [--slots 32] [--rounds 3]

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
import os
import random
import statistics
import tempfile
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bench.arguments import natural, positive
from bench.serve_load import MAX_TOKENS, WORDS, compared, load, near_tie, offline, requests
from bench.serve_process import DEVICE, address, cpu, gauges, model, on_host, rss, serve, started

SPEED_TOKENS, SPEED_REQUESTS = 128, {"tiny": 512, "mid": 192}


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
        for i, r in enumerate(requests(SPEED_REQUESTS[options.size], False))
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
    import httpx2

    async def go() -> list[list[tuple[int, list[int], list[int]]]]:
        limit = asyncio.Semaphore(options.clients)
        async with httpx2.AsyncClient(base_url=url, timeout=300, limits=httpx2.Limits(max_connections=options.clients)) as http:

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
            counts = {n: int(after.get(f"slca_engine_{n}", 0) - before.get(f"slca_engine_{n}", 0)) for n in names}
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
    parser.add_argument("--size", choices=("tiny", "mid"), default="tiny")
    parser.add_argument("--requests", type=natural, default=2000, help="of the load with faults; 0 leaves it out")
    parser.add_argument("--clients", type=positive, default=64)
    parser.add_argument("--slots", type=positive, default=32)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--turns", type=natural, default=0, help="of each conversation; 0 = the load test")
    parser.add_argument("--conversations", type=positive, default=256)
    parser.add_argument("--whole", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    parser.add_argument("--host", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(
            options.slots, options.size, options.serve, not options.whole, [int(core) for core in options.host.split(",")]
        )
    os.sched_setaffinity(0, DEVICE)  # before JAX starts its threads; the server's process inherits it
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        kinds = ("kept", "whole") if options.turns else ("kept",)
        ports = {kind: Path(folder) / kind for kind in kinds}
        servers = {kind: stack.enter_context(started(options, port, kind)) for kind, port in ports.items()}
        parts = model(options.slots, options.size)
        urls = {kind: address(servers[kind], ports[kind]) for kind in kinds}
        if options.turns:
            turns(urls, options, parts)
        else:
            if options.requests:
                faults(urls["kept"], servers["kept"].pid, options, parts)
            speed(urls["kept"], servers["kept"].pid, options, parts)


if __name__ == "__main__":
    main()
