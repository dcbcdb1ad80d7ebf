"""Try a tool simulator by hand: validation, provenance and the observation of each call.

    python -m slca.sgls                                        # the built-in tools; one call a line, ':tools', ':metrics', ':quit'
    python -m slca.sgls --tools tools.json --call '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
    python -m slca.sgls --tools tools.json --serve             # an MCP server on standard input and output (extra: mcp)
    python -m slca.sgls --mcp 'python -m mcp_server_time'      # no simulation: the tools of a real MCP server (extra: mcp)

tools.json is a list of function specs (OpenAI, Hugging Face or MCP form), a JSON object with a list under "tools", or JSON lines.
Exit codes: 0 answered; 1 the call was refused or the simulator failed; 2 the command or the tools file is wrong.
"""

from __future__ import annotations

import argparse
import io
import json
import shlex
import sqlite3
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from slca.sgls.simulator import Simulator
    from slca.tasks.schema import ToolSet
    from slca.types import Context, Observation


REAL = ("mcp", "call", "serve", "timeout")  # options that have a meaning with --mcp


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slca.sgls", usage="python -m slca.sgls [--tools FILE | --mcp COMMAND] [--call JSON | --serve] [options]",
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--tools", metavar="FILE", type=Path, help="tool specs, JSON or JSON lines; default: the built-in tools"
    )
    parser.add_argument("--mcp", metavar="COMMAND", help="start this MCP server and call its tools for real")
    parser.add_argument(
        "--call", metavar="JSON", help='one call, {"name": ..., "arguments": {...}}; without it a prompt is read'
    )
    parser.add_argument("--serve", action="store_true", help="serve the tools as an MCP server on stdio")
    parser.add_argument("--group", default="", help="which world: the same group, the same answers")
    parser.add_argument("--mode", default="safe", choices=("safe", "paper"))
    parser.add_argument("--backend", default="scripted", choices=("scripted", "openai"))
    parser.add_argument("--url", default="", help="OpenAI-compatible endpoint, e.g. http://127.0.0.1:8001/v1")
    parser.add_argument("--model", default="", help="model name at the endpoint")
    parser.add_argument(
        "--key-env", default="SLCA_SIMULATOR_KEY", metavar="NAME", help="environment variable that holds the key"
    )
    parser.add_argument("--timeout", type=float, default=540.0, help="seconds a call")
    parser.add_argument("--cache", default="group", choices=("none", "group", "global"))
    parser.add_argument("--state", default="none", choices=("none", "transcript", "kv"))
    parser.add_argument("--store", default="", metavar="FILE", help="SQLite file of cached and recorded results")
    parser.add_argument(
        "--replays", type=Path, metavar="FILE", help='recorded results, JSON lines {"name", "arguments", "text"}'
    )
    parser.add_argument("--export", type=Path, metavar="FILE", help="write the rows of --store as JSON lines and stop")
    parser.add_argument("--fault-rate", type=float, default=0.0, metavar="SHARE", help="share of calls that meet a fault, 0..1")
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = arguments()
    options = parser.parse_args(argv)
    if options.mcp is not None and (simulated := without_effect(parser, options)):
        parser.error(f"{' and '.join([*simulated, '--mcp'])} do not go together: simulated tools, or those of a real server")
    try:
        if options.export:
            return export(options.store, options.export)
        toolset = None if options.mcp is not None else load_tools(options.tools) if options.tools else builtin_tools()
        simulator = build(options)
        toolset = toolset or simulator.toolset
    except (ImportError, ValueError, OSError, sqlite3.Error) as error:
        print(f"slca.sgls: {error}".splitlines()[0], file=sys.stderr)
        return 2
    for name, reason in toolset.refused:
        print(f"refused {name:.100}: {reason}", file=sys.stderr)
    try:
        return run(options, simulator, toolset)
    except KeyboardInterrupt:
        return 130
    finally:
        simulator.close()


def builtin_tools() -> ToolSet:
    from slca.tasks.catalog import specs
    from slca.tasks.schema import ToolSet

    return ToolSet.load(specs())


def run(options: argparse.Namespace, simulator: Simulator, toolset: ToolSet) -> int:
    from slca.types import Context

    context = Context(group=options.group)
    if options.serve:
        from slca.sgls.serve import serve

        return serve(simulator, toolset, context)
    if options.call is not None:
        return show(options.call, simulator, toolset, context, sys.stdout)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    return repl(simulator, toolset, context, sys.stdin, sys.stdout)


def without_effect(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[str]:
    """The options given that say how tools are simulated, which those of --mcp are not."""
    given = [name for name, value in vars(options).items() if value != parser.get_default(name)]
    return [f"--{name.replace('_', '-')}" for name in given if name not in REAL]


def build(options: argparse.Namespace) -> Any:
    """The simulator, or the tool server of --mcp, as the options say. Raises ValueError, OSError, ImportError."""
    if options.mcp is not None:
        from slca.sgls.remote import ToolServer

        return ToolServer(shlex.split(options.mcp), timeout=options.timeout)
    from slca.sgls.simulator import Simulator

    replays = read_replays(options.replays) if options.replays else ()
    return Simulator(
        options.backend, mode=options.mode, url=options.url, model=options.model, key_env=options.key_env, timeout=options.timeout,
        cache=options.cache, state=options.state, store=options.store, faults={"rate": options.fault_rate}, replays=replays,
    )  # fmt: skip


def load_tools(path: Path) -> ToolSet:
    """The tools of a file. Raises OSError, or ValueError when there is no usable one."""
    from slca.tasks.imports import functions
    from slca.tasks.schema import ToolSet

    text = read_text(path)
    try:
        specs = json.loads(text)
    except ValueError:
        specs = read_lines(path, text)
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply") from None
    toolset = ToolSet.load(functions(specs))
    if not toolset.tools:
        reasons = "; ".join(f"{name!r}: {reason}" for name, reason in toolset.refused[:3])
        raise ValueError(f"{path}: no usable tool{f' ({reasons})' if reasons else ''}")
    return toolset


def read_text(path: Path) -> str:
    """The text of a file (a byte order mark is dropped). Raises OSError; ValueError where it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from None


def read_lines(path: Path, text: str) -> list[Any]:
    """The values of JSON lines. Raises ValueError with the line that is none."""
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{path}, line {number}: neither JSON nor JSON lines ({error.msg}, column {error.colno})"
                ) from None
            except RecursionError:
                raise ValueError(f"{path}, line {number}: nested too deeply") from None
    return rows


def read_replays(path: Path) -> list[tuple[Any, str]]:
    """(call, body text) pairs of a JSON-lines file; `text` that is no string is taken as the JSON body itself."""
    from slca.types import ToolCall

    pairs = []
    for number, row in enumerate(read_lines(path, read_text(path)), 1):
        if not (
            isinstance(row, dict)
            and isinstance(row.get("name"), str)
            and isinstance(row.get("arguments"), dict)
            and "text" in row
        ):
            raise ValueError(f'{path}, record {number}: {{"name": ..., "arguments": {{...}}, "text": ...}} is needed')
        text = row["text"] if isinstance(row["text"], str) else json.dumps(row["text"], ensure_ascii=False)
        pairs.append((ToolCall(row["name"], row["arguments"]), text))
    return pairs


def show(text: str, simulator: Simulator, toolset: ToolSet, context: Context, out: TextIO) -> int:
    """Simulate one call given as JSON and print what happened; 0 = answered."""
    from slca.types import ToolCall

    try:
        call = json.loads(text)
        name, args = call["name"], call.get("arguments", call.get("parameters", {}))
        if not isinstance(name, str) or not isinstance(args, dict):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        print('slca.sgls: a call is {"name": "...", "arguments": {...}}', file=sys.stderr)
        return 2
    call = ToolCall(name, args)
    observation = simulator.simulate(call, toolset, context)
    context.transcript.append((call, observation))
    print(describe(observation), file=out)
    return 0 if observation.status == "ok" else 1


def describe(observation: Observation) -> str:
    cost = {name: round(amount, 6) for name, amount in observation.cost.items() if amount}
    lines = (
        ("status", observation.status),
        ("provenance", json.dumps(dict(observation.provenance))),
        ("cost", json.dumps(cost)),
    )
    return "\n".join([*(f"{name + ':':<12}{value}" for name, value in lines), observation.text])


def repl(simulator: Simulator, toolset: ToolSet, context: Context, source: TextIO, out: TextIO) -> int:
    """Read calls, one a line, until the end of input; 1 if the last one was not answered."""
    code = 0
    print(f"{len(toolset.tools)} tools; one call a line, or :tools, :metrics, :quit", file=out)
    while True:
        print("> ", end="", file=out, flush=True)
        line = source.readline()
        if not line or line.strip() in (":quit", ":q"):
            return code
        match line.strip():
            case "":
                continue
            case ":tools":
                print("\n".join(f"{tool.name}: {tool.description}" for tool in toolset.tools.values()), file=out)
            case ":metrics":
                print("\n".join(f"{name}: {value:g}" for name, value in simulator.metrics().items() if value), file=out)
            case text:
                code = show(text, simulator, toolset, context, out)


def export(store: str, path: Path) -> int:
    from slca.sgls.store import Store

    if not store or not Path(store).is_file():
        raise ValueError(f"--export needs --store with an existing file, got {store!r}")
    rows = Store(store)
    print(f"{rows.export(path)} rows written to {path}")
    rows.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
