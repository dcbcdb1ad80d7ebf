"""Tools to train with: the built-in catalogue, and the ways in from OpenAPI, MCP, function JSON and botocore.

python -m slca.tasks.catalog --openapi api.yaml     # what becomes a tool, what is refused and why
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slca.tasks.aws import botocore
from slca.tasks.imports import functions, mcp, openapi

if TYPE_CHECKING:
    from slca.tasks.entry import Entry, Link

__all__ = ["botocore", "domains", "functions", "links", "main", "mcp", "openapi", "read", "specs"]

MAX_VALUES = 5_000_000  # of one file, aliases expanded

_EXIT_CODES = "exit codes: 0 tools found, 1 every tool was refused, 2 wrong usage, unreadable file or missing package"
_EXAMPLE = "example: python -m slca.tasks.catalog --botocore s3,ec2"


@lru_cache(maxsize=1)
def domains() -> dict[str, tuple[Entry, ...]]:
    """The built-in catalogue: domain -> entries."""
    from slca.tasks.builtin import journeys, language, living, money, outdoors, people

    return {
        name: entries
        for theme in (outdoors, journeys, people, money, living, language)
        for name, entries in theme.DOMAINS.items()
    }


@lru_cache(maxsize=1)
def links() -> tuple[Link, ...]:
    """The built-in pairs of tools in which a value of the first result feeds the second call."""
    from slca.tasks.builtin import journeys, language, living, money, outdoors, people

    return tuple(link for theme in (outdoors, journeys, people, money, living, language) for link in theme.LINKS)


def specs(held_out: bool | None = None) -> list[dict[str, Any]]:
    """Function specs (with `response`) of the built-in tools. held_out: only those (True), only the others (False)."""
    every = [entry for entries in domains().values() for entry in entries]
    return [entry.spec() for entry in every if held_out is None or entry.held_out == held_out]


def read(path: str) -> Any:
    """A JSON or YAML file as plain data. Raises OSError; ValueError with the file and the place of the fault."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        if path.endswith((".yaml", ".yml")):
            data = _yaml(text)
        else:
            data = json.loads(text)
        if (size := _expanded(data, {})) > MAX_VALUES:
            raise ValueError(f"{size:,} values once its aliases are expanded, more than {MAX_VALUES:,}")
        return data
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from None
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply, or an alias inside itself") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())[:300]) from None


def _expanded(node: Any, known: dict[int, int]) -> int:
    """Values of a document whose YAML aliases are written out: a kilobyte can stand for gigabytes. RecursionError on a cycle."""
    if not isinstance(node, dict | list):
        return 1
    if id(node) not in known:
        children = node.values() if isinstance(node, dict) else node
        known[id(node)] = 1 + sum(_expanded(child, known) for child in children)
    return known[id(node)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slca.tasks.catalog",
        description="List the tools that a source gives, and what is refused with the reason. Without a source: the built-in tools.",
        epilog=f"{_EXAMPLE}\n\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--openapi", metavar="FILE", help="an OpenAPI 3.x document, JSON or YAML")
    source.add_argument("--mcp", metavar="FILE", help="the result of an MCP server's tools/list, JSON")
    source.add_argument("--functions", metavar="FILE", help="a list of function specs, JSON")
    source.add_argument(
        "--botocore", metavar="SERVICES", help="comma-separated AWS services, or `default`; needs the package botocore"
    )
    parser.add_argument("--json", action="store_true", help="print the usable specs as one JSON list")
    return parser


def _load(args: argparse.Namespace) -> list[Any]:
    if args.openapi:
        return _converted(openapi, args.openapi)
    if args.mcp:
        return _converted(mcp, args.mcp)
    if args.functions:
        return _converted(functions, args.functions)
    if args.botocore:
        return list(botocore(() if args.botocore == "default" else tuple(args.botocore.split(","))))
    return list(specs())


def _converted(convert: Callable[[Any], Iterable[Any]], path: str) -> list[Any]:
    """The specs of a file. Raises ValueError that names it, OSError."""
    data = read(path)
    try:
        return list(convert(data))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        found = _load(args)
    except (OSError, ValueError, ImportError) as error:
        print(f"slca.tasks.catalog: {error}", file=sys.stderr)
        return 2
    from slca.tasks.schema import ToolSet

    tools = ToolSet.load(found)
    if args.json:
        print(json.dumps(tools.specs, ensure_ascii=False, indent=1))
    else:
        for tool in tools.tools.values():
            required = set(tool.parameters.get("required", ()))
            names = ", ".join(name if name in required else f"{name}?" for name in tool.parameters.get("properties", {}))
            print(f"{tool.name}({names}){'' if tool.response else '  [no response schema]'}  {tool.description[:80]}")
    for name, reason in tools.refused:
        print(f"refused {name:.100}: {reason}", file=sys.stderr)
    print(f"{len(tools.tools)} tools, {len(tools.refused)} refused", file=sys.stderr)
    return 0 if tools.tools else 1


if __name__ == "__main__":
    sys.exit(main())
