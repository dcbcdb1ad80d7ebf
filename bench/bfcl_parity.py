"""Our parser and argument check against the official BFCL checker, entry by entry, on its ground truth and on damaged copies.

    pip install --no-deps --target=FOLDER bfcl-eval==2026.3.23   # FOLDER outside this repository
    PYTHONPATH=FOLDER python -m bench.bfcl_parity                # 15 seconds, one core

Every ground truth of the single-turn sets becomes the text of an assistant turn, and so do damaged copies of it. Each text goes
two ways. Official: `QwenFCHandler` (reasoning split off, calls decoded), then `ast_checker`, both untouched. Ours:
`slca.chat.parse`, `slca.tasks.schema`, and each value equal (`slca.rewards.values.typed`) to an accepted one.

The official package imports the software kits of thirty vendors on the way to its checker and pins NumPy 1; four stand-in
modules below (the table of models, the base class of local handlers, an unused helper, a decorator) take their place, so the
wheel alone is enough. Java and JavaScript arguments are source text: the official checker converts it, we compare it.
"""

from __future__ import annotations

import copy
import json
import sys
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import arguments
from bench.bfcl_damage import DAMAGES
from slca.chat.lenient import parse_lenient
from slca.chat.parse import parse
from slca.evals.bfcl_answers import SOURCE, first, sources
from slca.rewards.values import typed
from slca.tasks.schema import ToolSet
from slca.types import ToolCall

CATEGORIES = (
    "simple_python", "simple_java", "simple_javascript", "multiple", "parallel", "parallel_multiple",
    "live_simple", "live_multiple", "live_parallel", "live_parallel_multiple",
)  # fmt: skip
MODEL = "slca"
UNEXPLAINED = "unexplained"

Calls = list[tuple[str, dict[str, Any]]]
# (entry, text) -> (the decoded calls or None, "" or the error type)
Judge = Callable[["Entry", str], tuple[list[Any] | None, str]]


@dataclass(frozen=True)
class Entry:
    """One test case.

    truth: call by call, {tool: {argument: accepted values}}; accepted: the same with values as a call writes them (source text
    for Java and JavaScript); calls: the first accepted value of each argument.
    """

    id: str
    category: str
    functions: list[dict[str, Any]]
    truth: list[dict[str, dict[str, list[Any]]]]
    accepted: list[dict[str, dict[str, list[Any]]]]
    calls: Calls
    toolset: ToolSet


# The official side


def official() -> tuple[Path, Judge]:
    """(folder of the data, judge)."""

    def stand_in(name: str, **members: Any) -> None:
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(members)

    stand_in("bfcl_eval.constants.model_config", MODEL_CONFIG_MAPPING={MODEL: types.SimpleNamespace(underscore_to_dot=False)})
    stand_in("bfcl_eval.model_handler.local_inference.base_oss_handler", OSSHandler=object)
    stand_in("bfcl_eval.model_handler.utils", convert_to_function_call=None)
    stand_in("overrides", override=lambda method: method)
    import bfcl_eval
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
    from bfcl_eval.model_handler.local_inference.qwen_fc import QwenFCHandler

    handler = object.__new__(QwenFCHandler)
    languages = {"simple_java": Language.JAVA, "simple_javascript": Language.JAVASCRIPT}

    def judge(entry: Entry, text: str) -> tuple[list[Any] | None, str]:
        choice, usage = types.SimpleNamespace(text=text), types.SimpleNamespace(prompt_tokens=0, completion_tokens=0)
        answer = handler._parse_query_response_prompting(types.SimpleNamespace(choices=[choice], usage=usage))
        language = languages.get(entry.category, Language.PYTHON)
        try:
            decoded = handler.decode_ast(answer["model_responses"], language, False)
        except Exception as error:  # its runner does the same: whatever decoding raises is "decoder failed"
            return None, f"decoder failed ({type(error).__name__})"
        output, truth = copy.deepcopy(decoded), copy.deepcopy(entry.truth)
        try:
            result = ast_checker(entry.functions, output, truth, language, entry.category, MODEL)
        except Exception as error:
            return decoded, f"checker raised {type(error).__name__}"
        return decoded, "" if result["valid"] else result["error_type"].rpartition(":")[2]

    return Path(bfcl_eval.__file__).parent / "data", judge


# Our side


def ours(entry: Entry, text: str) -> tuple[Calls, str]:
    """(calls read, "" or the first fault: of the parser, of the schema, or the number or values of the calls)."""
    parsed = parse(text, tools=entry.toolset.tools)
    calls = [(call.name, dict(call.arguments)) for call in parsed.calls]
    return calls, f"parser: {parsed.errors[0].kind}" if parsed.errors else verdict(entry, parsed.calls)


def verdict(entry: Entry, calls: Sequence[ToolCall]) -> str:
    """ "" or the first fault of the calls."""
    for call in calls:
        if faults := entry.toolset.check(call):
            return f"schema: {faults[0].kind}"
    if len(calls) != len(entry.accepted):
        return "number of calls"
    rest = list(calls)
    for wanted in entry.accepted:
        match = next((call for call in rest if meets(call, wanted)), None)
        if match is None:
            return "tool" if all(call.name not in wanted for call in rest) else "values"
        rest.remove(match)
    return ""


def meets(call: ToolCall, wanted: dict[str, dict[str, list[Any]]]) -> bool:
    return call.name in wanted and fits(dict(call.arguments), wanted[call.name])


def fits(value: dict[str, Any], accepted: dict[str, list[Any]]) -> bool:
    """Every key is expected and has an accepted value; every key that may not be left out is there."""
    if not value.keys() <= accepted.keys():
        return False
    present = all(any(equal(part, one) for one in accepted[key]) for key, part in value.items())
    return present and all("" in options for key, options in accepted.items() if key not in value)


def equal(value: Any, one: Any) -> bool:
    """A value and an accepted one; objects in the ground truth hold lists of accepted values again."""
    if isinstance(one, dict) and all(isinstance(options, list) for options in one.values()):
        return isinstance(value, dict) and fits(value, one)
    if isinstance(one, list):
        return isinstance(value, list) and len(value) == len(one) and all(map(equal, value, one))
    return typed(value, one)


# Entries


def entries(data: Path) -> Iterator[Entry]:
    """The cases of every single-turn set that has a ground truth."""
    for category in CATEGORIES:
        name = f"BFCL_v4_{category}.json"
        truths = {row["id"]: row["ground_truth"] for row in _rows(data / "possible_answer" / name)}
        for row in _rows(data / name):
            functions = shown = row["function"]
            truth = accepted = truths[row["id"]]
            if category in SOURCE:
                accepted = [{tool: sources(options, functions[0]) for tool, options in call.items()} for call in truth]
                shown = _as_text(functions)
            calls = [(tool, first(options)) for call in accepted for tool, options in call.items()]
            yield Entry(row["id"], category, functions, truth, accepted, calls, ToolSet.load(shown))


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _as_text(functions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the benchmark shows Java and JavaScript functions to a model: every argument is a string of source text."""
    shown = copy.deepcopy(functions)
    for function in shown:
        for part in function["parameters"]["properties"].values():
            part["type"] = "string"
            part.pop("items", None), part.pop("properties", None)
    return shown


# Comparison


@dataclass
class Tally:
    """Of one kind of copy: texts; accepted by the official checker, by our parser and schema, with our values; agreement.

    lenient: accepted when the reader for serving takes the place of the strict parser.
    """

    texts: int = 0
    official: int = 0
    usable: int = 0
    ours: int = 0
    same: int = 0
    read: int = 0
    lenient: int = 0


def compare(cases: Iterable[Entry], judge: Judge) -> tuple[dict[str, Tally], dict[tuple[str, str], list[tuple[str, str]]]]:
    """(tally by copy, (copy, entry) of the differing verdicts by (stricter side, cause))."""
    tallies: dict[str, Tally] = defaultdict(Tally)
    differences: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for entry in cases:
        for name, damage in DAMAGES.items():
            text = damage(entry)
            if text is None:
                continue
            decoded, theirs = judge(entry, text)
            calls, fault = ours(entry, text)
            tally = tallies[name]
            tally.texts += 1
            tally.official += not theirs
            tally.usable += bool(calls) and not fault.startswith(("parser", "schema"))
            tally.ours += not fault
            tally.same += (not theirs) == (not fault)
            tally.lenient += not verdict(entry, parse_lenient(text, tools=entry.toolset.tools).calls)
            tally.read += decoded == [{tool: arguments} for tool, arguments in calls]
            if theirs and not fault:
                differences["official", why_official(entry, name)].append((name, entry.id))
            elif fault and not theirs:
                differences["ours", why_ours(entry, name, fault)].append((name, entry.id))
    return tallies, differences


def why_official(entry: Entry, name: str) -> str:
    """Why the official checker alone refuses."""
    declared = {function["name"]: function["parameters"]["properties"] for function in entry.functions}
    if name == "tags and JSON on one line":
        return "its handler finds a call only where both tags stand on lines of their own"
    if name == "integer as 4.0":
        return "4.0 is an integer in JSON Schema; it wants Python's int"
    if entry.category in SOURCE:
        return "it reads Java or JavaScript source; we compare the text, without case"
    if any(arguments.keys() - declared[tool].keys() for tool, arguments in entry.calls):
        return "its ground truth passes an argument that the tool does not declare, which an open schema allows"
    return UNEXPLAINED


def why_ours(entry: Entry, name: str, fault: str) -> str:
    """Why we alone refuse."""
    if fault == "parser: duplicate_key":
        return "a key that is there twice is an error; Python's decoder keeps the last"
    if fault == "schema: enum":
        return "the value is not in the declared `enum`, which it does not read"
    if fault == "schema: type":
        return "the value has not the declared type; it also takes the type that its ground truth has"
    if fault == "values" and entry.category in SOURCE:
        return "it reads Java or JavaScript source and skips what it does not understand, blanks and punctuation"
    if fault == "values" and name == "text without blanks and punctuation":
        return "it compares text without blanks and ,./-_*^"
    if fault == "values" and name == "list item left out":
        return 'it takes an empty list where its ground truth has "" for "may be left out"'
    return UNEXPLAINED


def main() -> None:
    arguments.none("bench.bfcl_parity", __doc__)
    data, judge = official()
    cases = list(entries(data))
    refused = [name for entry in cases for name, _ in entry.toolset.refused]
    print(f"bfcl-eval {version('bfcl-eval')}: {len(cases)} entries; tools refused by our vetting: {refused or 'none'}\n")
    tallies, differences = compare(cases, judge)
    print(
        "| copy | texts | official accepts | our parser and schema accept | our values too | same verdict | same calls read | lenient |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, tally in tallies.items():
        print(f"| {name} | {' | '.join(map(str, astuple(tally)))} |")
    total = [sum(column) for column in zip(*map(astuple, tallies.values()))]
    print(f"| all | {' | '.join(map(str, total))} |")
    print("\n| stricter | cause | verdicts | copies | for example |\n|---|---|---|---|---|")
    for (side, cause), found in sorted(differences.items(), key=lambda item: -len(item[1])):
        copies = ", ".join(sorted({name for name, _ in found}))
        print(f"| {side} | {cause} | {len(found)} | {copies} | {found[0][1]} |")
    if any(cause == UNEXPLAINED for _, cause in differences):
        raise SystemExit("some differences have no known cause")


if __name__ == "__main__":
    main()
