"""Serve a policy with the OpenAI API: chat completions with tools, completions, streaming (extra: `serve`).

    python -m slca.serve --checkpoint=runs/tiny-slca --port=8000
    curl http://127.0.0.1:8000/v1/models
    python -m slca.serve --checkpoint=runs/7b-slca --mesh=data=2,tensor=4           # over eight devices
    SLCA_SERVE_KEY=... python -m slca.serve --checkpoint=export/ --host=0.0.0.0     # clients bring the key as a bearer token

--checkpoint takes a run's workdir, a step folder, a Hugging Face folder or gguf:NAME. Bound to another address than this machine's
own, the server refuses to start without a key. Neither keys nor bodies are ever logged.
Exit codes: 0 stopped by SIGTERM or SIGINT; 2 the command, the checkpoint or the installation is wrong; 1 the server failed.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

from slca.serve.build import build, options_of
from slca.serve.engine import FAILED
from slca.serve.listen import listen

if TYPE_CHECKING:
    from slca.serve.engine import Engine

SWITCH = 0.0005  # seconds a thread keeps the interpreter when another wants it; the default 5 ms would stall the device thread
GRACE = 10  # seconds that requests in flight have when the server is told to stop


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slca.serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", required=True, help="workdir, step folder, Hugging Face folder or gguf:NAME")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind to")
    parser.add_argument("--port", type=int, default=8000, help="0 = any free one, which is printed")
    parser.add_argument("--name", default="slca", help="what clients call the model")
    parser.add_argument("--key-env", default="SLCA_SERVE_KEY", metavar="NAME", help="environment variable that holds the key")
    parser.add_argument("--max-tokens", type=int, default=0, help="of one answer; 0 = what the context leaves")
    parser.add_argument("--connections", type=int, default=1024, help="open connections; further ones get 503")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds a request")
    parser.add_argument("--max-body", type=int, default=2**20, help="bytes of a request")
    options_of(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    options = arguments().parse_args(argv)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        from slca.serve.http import is_loopback
        from slca.serve.plan import Limits
    except ImportError as error:
        return _refuse(f"serving needs FastAPI and uvicorn: pip install 'slca[serve]' ({error})")
    key = os.environ.get(options.key_env, "").strip()
    if not is_loopback(options.host) and not key:
        return _refuse(f"--host={options.host}: others can reach this server; put a key into the variable {options.key_env}")
    if not 0 <= options.port < 2**16:
        return _refuse(f"--port={options.port}: 0 to 65535")
    if not math.isfinite(options.timeout):
        return _refuse(f"--timeout={options.timeout}: seconds, a finite number")
    if wrong := [name for name in ("slots", "connections", "timeout", "max_body") if getattr(options, name) <= 0]:
        return _refuse(f"--{wrong[0].replace('_', '-')} must be positive")
    if wrong := [name for name in ("queue", "context", "max_tokens") if getattr(options, name) < 0]:
        return _refuse(f"--{wrong[0].replace('_', '-')} must not be negative")
    sockets = []
    try:
        sockets = listen(options.host, options.port)
        engine = build(options, _ready)
    except (ValueError, OSError, ImportError) as error:
        for one in sockets:
            one.close()
        return _refuse(str(error))
    limits = Limits(max_tokens=options.max_tokens, seconds=options.timeout)
    from slca.serve import make_app

    app = make_app(engine, name=options.name, key=key, max_body=options.max_body, limits=limits)
    code = run(app, engine, options, sockets)
    if engine.alive:  # inside XLA, where the end of the interpreter would abort the process
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def run(app: Any, engine: Engine, options: argparse.Namespace, sockets: list[socket.socket]) -> int:
    """Serve on listening `sockets` until a signal comes, or the engine fails: it never comes back, whatever watches the server may
    start it over. Prints the address once requests are taken."""
    import uvicorn

    sys.setswitchinterval(SWITCH)
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn stops in good order, then raises the signal again
        signal.signal(number, lambda *_: None)

    wait = "" if options.cold else " (compiling; requests wait until it says ready)"

    class Announced(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            for one in sockets or ():
                host, port = one.getsockname()[:2]
                print(f"serving {options.name} at http://{f'[{host}]' if ':' in host else host}:{port}/v1{wait}", flush=True)

    failed = False

    async def watch() -> None:
        nonlocal failed
        failed = engine.health().startswith(FAILED)
        server.should_exit = server.should_exit or failed

    server = Announced(
        uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False,
            limit_concurrency=options.connections, timeout_keep_alive=30, timeout_graceful_shutdown=GRACE,
            callback_notify=watch, timeout_notify=1,
        )
    )  # fmt: skip
    try:
        server.run(sockets=sockets)
    except SystemExit as error:  # uvicorn's way of saying that it could not start
        return int(bool(error.code))
    return 0 if server.started and not failed else 1


def _ready() -> None:
    print("ready", flush=True)


def _refuse(reason: str) -> int:
    print(f"slca.serve: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
