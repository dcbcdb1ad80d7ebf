"""Summary reward by rule: is the answer faithful to the tool results, complete and concise? No model, no server.

    summary = complete * faithful * concise            0 when empty, copied from the prompt, or claiming calls never made

A product, so that nothing pays alone: a short harmless text that answers nothing scores 0 (WildClawBench#24). Graded, so
that a group of imperfect answers still has spread. It judges the answer against what the tools *returned*, not against
the gold calls: what they are worth is the process reward's to say, and mixing both would undo the routing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from typing import Any

from slca.types import Observation

VERSION = "rule-1"
MIN_CHARACTERS = 10  # shorter is no answer (as published)
FREE_WORDS = 32  # words an answer may have without loss, and
WORDS_PER_FACT = 12  # further ones for each fact
DISTINCT_PAIRS = (
    0.5  # share of distinct word pairs below which an answer repeats itself ("It is 9:00 in A. It is 8:00 in B." does not)
)
COPY_SPAN = 4  # words; an answer is a copy when nearly all its spans of this length stand in the question
COPY_SHARE = 0.8
MAX_LEAF = 60  # characters; longer results are prose, not values to state

# A number may carry a short unit (17C, 5km) and is not the tail of a word or of a longer number
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?=[^\W\d_]{0,3}(?!\w))(?!\.\d)")
MEASURE = re.compile(NUMBER.pattern + r"[^\W\d_]{0,3}")
NAME = re.compile(r"\b[A-Z][\w'’-]*")
WORD = re.compile(r"\w+(?:['’]\w+)?")
MARKUP = re.compile(r"</?(?:tool_call|tool_response|think|tools?)>|<\|")
CLAIM = re.compile(
    r"\b(?:i|we)(?:'ve| have)? (?:just |already |successfully )?"
    r"(?:called|invoked|queried|ran|fetched|retrieved|looked (?:it |that |this )?up|booked|sent|created|scheduled|cancelled|canceled"
    r"|updated|ordered|reserved|converted|searched)\b"
    r"|\baccording to the (?:tool|api|results?|search|data)\b"
    r"|\bthe (?:tool|api|search|function|call|system) (?:returned|returns|shows?|showed|says|said|reports?|reported)\b"
    r"|\bbased on the (?:tool|api|results?|search|data)\b",
    re.IGNORECASE,
)
# Words written with a capital wherever they stand; not names to check
CAPITALISED = frozenset("i i'm i'll i've i'd ok okay am pm api id url".split())


def rule_reward(
    summary: str, question: str, observations: Sequence[str | Observation], facts: Sequence[str]
) -> dict[str, float]:
    """Grade the final text of one user turn.

    question: what the user said up to here. observations: tool results up to here, oldest first. facts: strings a good answer
    states ([] = the right answer is a refusal or a question back: any clean text that invents nothing is complete).

    Keys, all in [0, 1]: summary, faithful (share of numbers, identifiers and names that occur in a result or the question),
    complete, concise (length and repetition), empty, copied, claimed (flags). Never raises on any text.
    """
    sources = Sources.of(question, observations)
    words = WORD.findall(summary.lower())
    out = {
        "faithful": _faithful(summary, sources),
        "complete": _complete(summary, facts, sources),
        "concise": _concise(summary, words, len(facts)),
        "empty": float(len(summary.strip()) < MIN_CHARACTERS or len(words) < 2),
        "copied": float(_copied(words, sources.question_words)),
        "claimed": float(bool(MARKUP.search(summary)) or (not sources.answered and bool(CLAIM.search(summary)))),
    }
    refused = out["empty"] or out["copied"] or out["claimed"]
    return {"summary": 0.0 if refused else out["complete"] * out["faithful"] * out["concise"], **out}


@dataclass(frozen=True)
class Sources:
    """What an answer may draw on. answered: some tool gave a result; leaves: its scalar values that the question lacks."""

    text: str
    question: str
    question_words: tuple[str, ...]
    words: frozenset[str]
    numbers: tuple[Decimal, ...]
    leaves: tuple[str, ...]
    answered: bool

    @classmethod
    def of(cls, question: str, observations: Sequence[str | Observation]) -> Sources:
        return _sources(question, tuple(_result(o) for o in observations))


def _result(observation: str | Observation) -> tuple[str, bool]:
    if isinstance(observation, Observation):
        return observation.text, observation.status == "ok"
    return observation, not observation.lstrip().startswith(("error", '{"error"'))


@lru_cache(maxsize=256)  # the rollouts of a group, which come one after the other, mostly saw the same results
def _sources(question: str, results: tuple[tuple[str, bool], ...]) -> Sources:
    asked = _plain(question)
    values = [(value, ok) for result, ok in results for value in _leaves(result)]
    plain = [value for value, _ in values if isinstance(value, str)]  # also without the JSON escapes of the raw text
    text = "\n".join([asked, *(_plain(result) for result, _ in results), *plain])
    numbers = [_number(n) for n in NUMBER.findall(text)] + [Decimal(v) for v, _ in values if isinstance(v, int)]
    leaves = dict.fromkeys(v for v, ok in values if ok and isinstance(v, str) and not _states(asked, v))
    return Sources(
        text, asked, tuple(WORD.findall(asked)), frozenset(WORD.findall(text)), tuple(numbers), tuple(leaves),
        any(ok for _, ok in results),
    )  # fmt: skip


def _leaves(result: str) -> Iterator[str | int]:
    """Scalars of a JSON result as text, and the sizes of its lists as int ("3 flights were found" is faithful)."""
    try:
        value: Any = json.loads(result)
    except (ValueError, RecursionError):
        value = result
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            stack += value.values()
        elif isinstance(value, list):
            yield len(value)
            stack += value
        elif isinstance(value, str) and 0 < len(value) <= MAX_LEAF:
            yield _plain(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield _plain(json.dumps(value))


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _number(text: str) -> Decimal:
    """Exact: a float would take an order number of 17 digits for its neighbour."""
    return Decimal(text.replace(",", ""))


def _stated(value: Decimal, digits: str, numbers: Iterable[Decimal]) -> bool:
    """Is `value`, written as `digits`, one of `numbers` or a rounding of one to as many places?"""
    half = Decimal(5).scaleb(-1 - len(digits.partition(".")[2]))
    return any(abs(value - n) <= half for n in numbers)


def _states(text: str, fact: str) -> bool:
    """Does plain `text` state `fact`: the same number, or the same words at word boundaries? An empty fact never counts."""
    fact = fact.strip(" .,;:!?\"'")
    if not fact:
        return False
    if NUMBER.fullmatch(fact):
        wanted = _number(fact)
        return any(_number(n) == wanted for n in NUMBER.findall(text))
    at = text.find(fact)
    while at >= 0:
        end = at + len(fact)
        if not (at and _wordy(text[at - 1]) and _wordy(fact[0])) and not (
            end < len(text) and _wordy(text[end]) and _wordy(fact[-1])
        ):
            return True
        at = text.find(fact, at + 1)
    return False


def _wordy(character: str) -> bool:
    return character.isalnum() or character == "_"


def _complete(summary: str, facts: Sequence[str], sources: Sources) -> float:
    """Share of the facts stated. A fact this rollout's tools never returned cannot be known: any other returned value does.

    Restating the question is no answer: without one fact beyond it, 0.
    """
    facts = [plain for plain in map(_plain, facts) if plain]
    if not facts:
        return 1.0
    text = _plain(summary)
    echoes = [fact for fact in facts if _states(sources.question, fact)]
    news = [fact for fact in facts if fact not in echoes]
    known = [fact for fact in news if _states(sources.text, fact)]
    found = sum(_states(text, fact) for fact in known)
    unknown = len(news) - len(known)
    if unknown and sources.answered:
        others = (leaf for leaf in sources.leaves if leaf not in known)
        found += min(unknown, sum(_states(text, leaf) for leaf in others))
    if news and not found:
        return 0.0
    return (found + sum(_states(text, fact) for fact in echoes)) / len(facts)


def _faithful(summary: str, sources: Sources) -> float:
    """Share of the checkable items that a result or the question supports; 1 when there is nothing to check."""
    right = total = 0
    plain = _plain(summary)
    for digits in NUMBER.findall(plain):
        total += 1
        right += _stated(_number(digits), digits.replace(",", ""), sources.numbers)
    for token in map(_bare, plain.split()):
        if ("@" in token or any(map(str.isdigit, token))) and not MEASURE.fullmatch(token):
            total += 1
            right += token in sources.text
    for match in NAME.finditer(summary):
        word = match.group().casefold()
        if word in CAPITALISED or any(map(str.isdigit, word)) or _starts_sentence(summary, match.start()):
            continue
        total += 1
        right += word in sources.words or word.removesuffix("'s") in sources.text
    return right / total if total else 1.0


def _bare(token: str) -> str:
    return token.strip(".,;:!?/+#()[]{}\"'’*-$€£%°")


def _starts_sentence(text: str, at: int) -> bool:
    """Capitals that grammar asks for say nothing about names."""
    before = text[max(at - 8, 0) : at].rstrip(" \t\"'(*")
    return not before or before[-1] in ".!?:\n-"


def _concise(summary: str, words: Sequence[str], facts: int) -> float:
    """1 up to the free length, then falling as its share; less for repeated word pairs; halved for a JSON dump."""
    length = min(1.0, (FREE_WORDS + WORDS_PER_FACT * facts) / max(len(words), 1))
    pairs = list(pairwise(words))
    fresh = min(1.0, len(set(pairs)) / len(pairs) / DISTINCT_PAIRS) if pairs else 1.0
    return length * fresh * (0.5 if '":' in summary or summary.lstrip().startswith(("{", "[")) else 1.0)


def _copied(words: Sequence[str], question: Sequence[str]) -> bool:
    """Nearly all spans of the answer stand in the question. An answer shorter than a span is not a copy."""
    spans = list(zip(*(words[i:] for i in range(COPY_SPAN))))
    if not spans:
        return False
    asked = set(zip(*(question[i:] for i in range(COPY_SPAN))))
    return sum(span in asked for span in spans) >= COPY_SHARE * len(spans)
