"""The process reward's solved-or-not against the official BFCL verdict, text by text, with the cause of every disagreement.

    PYTHONPATH=FOLDER python -m bench.bfcl_reward      # FOLDER: see bench/bfcl_parity.py; 20 seconds, one core

Gold is what a training row would hold: each ground-truth call with the first accepted value of each argument, all in one step.
A text is solved by us when its process reward is full (HierR as published: additive, loose equality) or, stricter, when
`slca.rewards.outcome.solved` says so (exact calls). The official side accepts any of several values and lets some arguments be
left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from bench import arguments
from bench.bfcl_damage import DAMAGES
from bench.bfcl_parity import SOURCE, UNEXPLAINED, Entry, Judge, entries, official
from slca.chat.parse import parse
from slca.rewards.hierr import process_reward
from slca.rewards.outcome import solved
from slca.rewards.values import identity, loose, strict, typed
from slca.types import Parsed, ToolCall

FULL = 1 - 1e-9
IGNORED = str.maketrans("", "", " ,./-_*^'\"")  # what the official checker takes out of text

Verdict = Callable[[Parsed, list[list[ToolCall]], Any], bool]
OURS: dict[str, tuple[Verdict, Callable[[Any, Any], bool]]] = {
    "process reward full": (lambda turn, gold, tools: process_reward([turn], gold, tools)["process"] >= FULL, loose),
    "exact calls": (lambda turn, gold, tools: solved([turn], gold), strict),
}


def why_ours(entry: Entry, turn: Parsed, gold: list[ToolCall], equal: Callable[[Any, Any], bool]) -> str:
    """Why we alone refuse."""
    if turn.errors:
        return f"the parser refuses it ({turn.errors[0].kind})"
    if entry.category in SOURCE:
        return "it reads Java or JavaScript source and skips blanks and punctuation; we compare the text"
    for call in turn.calls:
        meant = next((one for one in gold if one.name == call.name and call.arguments.keys() <= one.arguments.keys()), None)
        if meant is None:
            continue
        if call.arguments.keys() < meant.arguments.keys():
            return "an argument that may be left out is part of the gold call"
        for key, value in call.arguments.items():
            if not equal(value, meant.arguments[key]):
                return _differently(value, meant.arguments[key])
    return UNEXPLAINED


def _differently(value: Any, gold: Any) -> str:
    if typed(value, gold):
        return "text in other case, or with other blanks around it, is equal to it"
    if isinstance(value, str) and isinstance(gold, str) and _bare(value) == _bare(gold):
        return "it compares text without case, blanks and ,./-_*^"
    return "another accepted value than the one in the gold call"


def _bare(text: str) -> str:
    return text.translate(IGNORED).lower()


def why_official(entry: Entry, name: str, turn: Parsed, gold: list[ToolCall], sound: bool) -> str:
    """Why the official side alone refuses. sound: it accepts the undamaged text."""
    if name == "tags and JSON on one line":
        return "its handler finds a call only where both tags stand on lines of their own"
    if not sound:
        return "it refuses its own ground truth as well (an argument that the tool does not declare, or source text)"
    if entry.category in SOURCE:
        return "it reads Java or JavaScript source; we compare the text"
    pairs = [
        (value, one.arguments[key])
        for call in turn.calls for one in gold if one.name == call.name
        for key, value in call.arguments.items() if key in one.arguments and loose(value, one.arguments[key])
    ]  # fmt: skip
    if any(type(value) is float and type(other) is int for value, other in pairs):
        return "it wants an integer; 4.0 is equal to 4 for us"
    if any(not typed(value, other) for value, other in pairs):
        return "loose equality: a number or a truth value and its text are equal"
    if any(call.arguments for call in turn.calls) and not any(one.arguments for one in gold):
        return "no gold call has arguments, so surplus ones cost nothing (HierR as published)"
    if sorted(map(identity, turn.calls)) == sorted(map(identity, gold)):
        return "it pairs calls with answers greedily, in order, and an answer that accepts several calls takes the wrong one"
    return UNEXPLAINED


def compare(cases: list[Entry], judge: Judge) -> tuple[int, dict[str, int], dict[tuple[str, str, str], list[str]]]:
    """(texts, agreements by our verdict, (verdict, stricter side, cause) -> copies and entries)."""
    texts = 0
    same: dict[str, int] = dict.fromkeys(OURS, 0)
    causes: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for entry in cases:
        gold = [ToolCall(*call) for call in entry.calls]
        sound = not judge(entry, DAMAGES["as it is"](entry) or "")[1]
        for name, damage in DAMAGES.items():
            if (text := damage(entry)) is None:
                continue
            texts += 1
            accepted = not judge(entry, text)[1]
            turn = parse(text, tools=entry.toolset.tools)
            for ours, (verdict, equal) in OURS.items():
                if (done := verdict(turn, [gold], entry.toolset)) == accepted:
                    same[ours] += 1
                elif accepted:
                    causes[ours, "ours", why_ours(entry, turn, gold, equal)].append(f"{name}: {entry.id}")
                elif done:
                    causes[ours, "official", why_official(entry, name, turn, gold, sound)].append(f"{name}: {entry.id}")
    return texts, same, causes


def main() -> None:
    arguments.none("bench.bfcl_reward", __doc__)
    data, judge = official()
    texts, same, causes = compare(list(entries(data)), judge)
    print(f"bfcl-eval {version('bfcl-eval')}: {texts} texts")
    for ours, n in same.items():
        print(f"{ours}: same verdict {n} ({n / texts:.2%})")
    print("\n| our verdict | stricter | cause | texts | for example |\n|---|---|---|---|---|")
    for (ours, side, cause), found in sorted(causes.items(), key=lambda item: (item[0][0], -len(item[1]))):
        print(f"| {ours} | {side} | {cause} | {len(found)} | {found[0]} |")
    if any(cause == UNEXPLAINED for _, _, cause in causes):
        raise SystemExit("some differences have no known cause")


if __name__ == "__main__":
    main()
