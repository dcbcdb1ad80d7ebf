"""The server of bench.serve as a process, on cores of its own, and what is read of it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EVERY_CORE = sorted(os.sched_getaffinity(0))
DEVICE = EVERY_CORE[: max(1, len(EVERY_CORE) // 2)]  # cores of the sampler
HOST = EVERY_CORE[len(DEVICE) :] or DEVICE  # of everything else


def model(slots: int, size: str) -> tuple[Any, Any, Any]:
    """(sampler, parameters, template): the architecture of configs/tiny.py, or the mid one of bench.rollout, with random weights."""
    import jax

    from bench.rollout import SIZES
    from configs.tiny import get_config
    from slca.chat import tokenizer
    from slca.chat.template import Template
    from slca.policy import transformer
    from slca.policy.config import ModelConfig
    from slca.rollout.sampler import Sampler

    template = Template(tokenizer.load("tiny"))
    shape = get_config().model
    if size == "mid":
        shape.update(SIZES["mid"])
    config = ModelConfig.random(shape, -(-template.tokenizer.size // 64) * 64)
    sampler = Sampler(config, slots=slots, cache_length=512, prompt_buckets=(128, 512), suffix_buckets=(16,), decode_steps=32)
    return sampler, transformer.init(config, jax.random.key(0)), template


def serve(slots: int, size: str, port_file: str, reuse: bool, host: list[int]) -> None:
    """The server's process: writes its port, then serves until its standard input closes. host: cores of HTTP."""
    import threading

    import uvicorn

    from slca.serve import make_app
    from slca.serve.__main__ import SWITCH
    from slca.serve.slots import APPEND_COST, SlotEngine

    sys.setswitchinterval(SWITCH)
    sampler, params, template = model(slots, size)
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


@contextmanager
def started(options: argparse.Namespace, port: Path, kind: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server in a process of its own, as long as the context lasts."""
    command = [
        sys.executable,
        "-m",
        "bench.serve",
        f"--slots={options.slots}",
        f"--size={options.size}",
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


def rss(pid: int) -> float:
    """MiB."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


def gauges(url: str) -> dict[str, float]:
    import httpx2

    lines = httpx2.get(f"{url}/metrics").text.splitlines()
    return {name: float(value) for name, value in (line.split(" ") for line in lines if line.startswith("slca_engine"))}
