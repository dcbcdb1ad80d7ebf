"""Out-of-domain sets as tasks: Seal-Tools, NESTFUL and API-Bank. Nothing is downloaded; the files are the user's.

    python -m slca.tasks.outside seal-tools test_out_domain.jsonl --tools tool.jsonl --out data/seal_tools.jsonl
    python -m slca.tasks.outside nestful executable-data.json --tools executable-spec.json --out data/nestful.jsonl
    python -m slca.tasks.outside api-bank level-1-api.json --out data/api_bank.jsonl
    python -m slca.evals.indomain --checkpoint=runs/x --set tasks.source=jsonl:data/nestful.jsonl --splits=heldout_tools

The tasks have split heldout_tools. Licences when this was written: Seal-Tools and NESTFUL Apache-2.0; look up API-Bank's before
passing anything on. An argument that is the result of an earlier call has no value in the data: its gold is the reference as
written (`API_call_0`, `$var1.id$`), the task's `meta.flags` says `references`, and the value term of such a task cannot be
full.
Exit codes: 0 written; 2 the command or a file is wrong; 1 no row was usable.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slca.types import Task, ToolCall

SPLIT = "heldout_tools"
OFFERED = 5  # tools of a Seal-Tools task, distractors included
_TYPES = {"str", "string", "int", "integer", "float", "number", "bool", "boolean", "list", "array", "dict", "object"}
_SEAL_REFERENCE = re.compile(r"API_call_\d+")
_NESTFUL_REFERENCE = re.compile(r"\$(\w+?)(?:\.[^$]*)?\$")
_REQUEST = re.compile(r"API-Request:\s*\[?\s*(\w+\(.*\))\s*\]?\s*$", re.DOTALL)
_SPEAKER = re.compile(r"(?m)^(User|AI|API): ?")

Row = Mapping[str, Any]


def seal_tools(row: Row, tools: Mapping[str, dict[str, Any]], offered: int = OFFERED) -> Task:
    """A Seal-Tools row {id, query, calling: [{api, parameters, responses}]}. tools: by name, of its tool.jsonl.

    The set offers no tools of its own: those it calls are offered, with distractors drawn by the row's id. Raises Unusable.
    """
    calls = [_call(one.get("api"), one.get("parameters")) for one in row["calling"]]
    makes = {label: i for i, one in enumerate(row["calling"]) for label in one.get("responses") or ()}
    needs = [
        {makes[label] for label in _SEAL_REFERENCE.findall(json.dumps(dict(call.arguments))) if label in makes}
        for call in calls
    ]
    named = _known({call.name for call in calls}, tools)
    own = str(row["id"])
    others = sorted(tools.keys() - named.keys(), key=lambda name: _digest(own, name))
    shown = [*named, *others[: max(0, offered - len(named))]]
    order = sorted(shown, key=lambda name: _digest("order", own, name))
    return _task("seal-tools", own, row["query"], calls, needs, [tools[name] for name in order])


def nestful(row: Row, tools: Mapping[str, dict[str, Any]], number: int = 0) -> Task:
    """A NESTFUL row {input, output: [{name, arguments, label}]}; its own `tools` or those of the specification file. The
    closing `var_result` is no call. Raises Unusable."""
    output = [one for one in _data(row["output"]) if one.get("name") != "var_result"]
    own = {spec["function"]["name"]: spec for spec in map(_spec, _data(row["tools"]))} if row.get("tools") else tools
    calls = [_call(one.get("name"), one.get("arguments")) for one in output]
    makes = {str(one.get("label", "")).strip("$"): i for i, one in enumerate(output)}
    found = [_NESTFUL_REFERENCE.findall(json.dumps(dict(call.arguments))) for call in calls]
    needs = [{makes[label] for label in labels if label in makes} for labels in found]
    named = _known({call.name for call in calls}, own)
    shown = own if row.get("tools") else named
    return _task("nestful", str(row.get("sample_id", f"nestful-{number}")), row["input"], calls, needs, list(shown.values()))


def api_bank(row: Row, number: int = 0) -> Task:
    """An API-Bank row {instruction, input, output | expected_output}: descriptions as JSON lines, a dialogue by `User:` and
    `AI:`, and the request `API-Request: [Name(key='value')]`, which is read as data, never run. Raises Unusable."""
    from slca.tasks.dialogues import Unusable

    request = _REQUEST.search(str(row.get("output") or row.get("expected_output") or ""))
    if request is None:
        raise Unusable("no API request")
    call = _request(request.group(1))
    text = f"{row.get('instruction') or ''}\n{row.get('input') or ''}"
    specs = {spec["function"]["name"]: spec for spec in map(_spec, _json_lines(text))}
    parts = _SPEAKER.split(str(row.get("input") or ""))
    turns = [(who, said.strip()) for who, said in zip(parts[1::2], parts[2::2])]
    turns = [(who, said.split("Generate API Request:")[0].strip()) for who, said in turns if who in ("User", "AI")]
    if not turns or not any(who == "User" for who, _ in turns):
        raise Unusable("no user turn")
    messages = [{"role": "user" if who == "User" else "assistant", "content": said} for who, said in turns if said]
    _known({call.name}, specs)
    return _task("api-bank", str(row.get("id", f"api-bank-{number}")), messages, [call], [set()], list(specs.values()))


# Parts


def _task(
    source: str, name: str, question: Any, calls: Sequence[ToolCall], needs: Sequence[set[int]], tools: list[dict[str, Any]]
) -> Task:
    """Calls that need no result of each other are one step: a call comes one step after the last one it needs."""
    from slca.tasks.dialogues import Unusable
    from slca.tasks.schema import ToolSet
    from slca.types import Task

    usable = ToolSet.load(tools)
    if {call.name for call in calls} - usable.tools.keys():
        raise Unusable("a call of a tool whose description cannot be used")
    level: list[int] = []
    for i, wanted in enumerate(needs):
        level.append(1 + max((level[j] for j in wanted if j < i), default=-1))
    steps = [[call for call, own in zip(calls, level) if own == wanted] for wanted in range(max(level, default=-1) + 1)]
    messages: Any = question if isinstance(question, list) else [{"role": "user", "content": str(question)}]
    kind = "sequential" if len(steps) > 1 else "parallel" if len(calls) > 1 else "single"
    meta = {"source": source, "flags": ["references"] if any(needs) else []}
    return Task(name, messages, usable.specs, steps, kind=kind, split=SPLIT, meta=meta)


def _spec(tool: Row) -> dict[str, Any]:
    """A function spec of any of the three formats. Types that are none of JSON's (`file`) become strings."""
    name = tool.get("name") or tool.get("api_name") or tool.get("apiCode") or ""
    given: Mapping[str, Any] = next(
        (tool[key] for key in ("query_parameters", "input_parameters", "parameters") if tool.get(key) is not None), {}
    )
    made: Mapping[str, Any] = next((tool[key] for key in ("output_parameters", "responses", "response") if tool.get(key)), {})
    given, made = (part.get("properties", part) for part in (given, made))
    required = tool.get("required") or [
        key for key, part in given.items() if isinstance(part, Mapping) and part.get("required") is True
    ]
    function = {
        "name": name,
        "description": tool.get("description") or tool.get("api_description") or "",
        "parameters": {
            "type": "object",
            "properties": _properties(given),
            "required": [key for key in required if key in given],
        },
    }
    if made:
        function["response"] = {"type": "object", "properties": _properties(made)}
    return {"type": "function", "function": function}


def _described(path: str, found: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Specs by name. Raises ValueError where a row is no description of a tool."""
    specs = {}
    for number, row in enumerate(found):
        try:
            spec = _spec(row)
            specs[spec["function"]["name"]] = spec
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path}: row {number} describes no tool ({type(error).__name__}: {error})") from None
    return specs


def _properties(parts: Mapping[str, Any]) -> dict[str, Any]:
    out = {}
    for key, part in parts.items():
        if isinstance(part, Mapping):
            kept = {
                name: value for name, value in part.items() if name in ("description", "enum", "items") and value is not None
            }
            kind = str(part.get("type", "string")).lower()
            out[key] = {"type": kind if kind in _TYPES else "string", **kept}
    return out


def _known(names: set[str], tools: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    from slca.tasks.dialogues import Unusable

    if names - tools.keys():
        raise Unusable("a call of a tool that is not described")
    return {name: tools[name] for name in sorted(names)}


def _call(name: Any, arguments: Any) -> ToolCall:
    from slca.tasks.dialogues import calls_of

    return calls_of({"name": name, "arguments": arguments})[0]


def _request(text: str) -> ToolCall:
    """`Name(key='value', ...)` as a call: literals only."""
    from slca.tasks.dialogues import Unusable
    from slca.types import ToolCall

    try:
        node = ast.parse(text, mode="eval").body
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            return ToolCall(node.func.id, {str(part.arg): ast.literal_eval(part.value) for part in node.keywords})
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        pass
    raise Unusable("an API request that cannot be read")


def _json_lines(text: str) -> list[dict[str, Any]]:
    found = []
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and (value.get("name") or value.get("apiCode")):
            found.append(value)
    return found


def _data(value: Any) -> Any:
    from slca.tasks.dialogues import loaded

    return loaded(value) or []


def _digest(*parts: str) -> bytes:
    return hashlib.blake2b("/".join(parts).encode(), digest_size=8).digest()


# The command


def convert(
    source: str, rows: Iterable[Row], tools: Mapping[str, dict[str, Any]], offered: int
) -> tuple[list[Task], Counter[str]]:
    """(tasks, why the other rows were dropped)."""
    from slca.tasks.dialogues import Unusable

    tasks: list[Task] = []
    dropped: Counter[str] = Counter()
    for number, row in enumerate(rows):
        try:
            if source == "seal-tools":
                tasks.append(seal_tools(row, tools, offered))
            else:
                tasks.append(nestful(row, tools, number) if source == "nestful" else api_bank(row, number))
        except Unusable as reason:
            dropped[str(reason)] += 1
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            dropped[f"not a {source} row ({type(error).__name__}: {error})"] += 1
    return tasks, dropped


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slca.tasks.outside", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("format", choices=("seal-tools", "nestful", "api-bank"))
    parser.add_argument("file", help="the rows: .jsonl, .json or .parquet")
    parser.add_argument("--tools", default="", metavar="FILE", help="the tools of Seal-Tools and NESTFUL")
    parser.add_argument(
        "--offered", type=int, default=OFFERED, metavar="N", help="tools of a Seal-Tools task, distractors included"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="tasks, JSON lines")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments()
    options = parser.parse_args(argv)
    if options.format == "seal-tools" and not options.tools:
        parser.error("seal-tools needs --tools, its tool.jsonl")
    if options.offered < 0:
        parser.error(f"--offered {options.offered}: a number of tools, 0 or more (those that are called are always offered)")
    from slca.tasks.datasets import write_jsonl
    from slca.tasks.rowfiles import rows

    try:
        tools = _described(options.tools, rows([options.tools])) if options.tools else {}
        tasks, dropped = convert(options.format, rows([options.file]), tools, options.offered)
        Path(options.out).parent.mkdir(parents=True, exist_ok=True)
        if tasks:
            write_jsonl(options.out, tasks)
    except (OSError, ValueError, ImportError) as error:
        print(f"slca.tasks.outside: {error}", file=sys.stderr)
        return 2
    for reason, n in sorted(dropped.items()):
        print(f"{n:9,d}  dropped: {reason}")
    print(f"{len(tasks):9,d}  tasks, {sum(bool(task.meta['flags']) for task in tasks):,d} of them with references")
    return 0 if tasks else 1


if __name__ == "__main__":
    sys.exit(main())
