"""Seeded tasks from tool schemas: what is asked, which calls are right, what a good answer states, and a demonstration.

Example i depends only on (seed, split, i) and the options. Splits: `train`; `heldout_tasks` (same tools, values and
phrasings that training never shows); `heldout_tools` (tools that training never shows).
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any

from slca.tasks import catalog, skills
from slca.tasks.entry import Link
from slca.tasks.schema import ToolSet, canonical
from slca.tasks.skills import Skill
from slca.tasks.values import respond, response_seed
from slca.types import Message, Task, ToolCall

SPLITS = ("train", "heldout_tasks", "heldout_tools")
KINDS = ("single", "parallel", "sequential", "distractor", "abstain", "ask", "two_turn")
TOOLS_NEEDED = {"sequential": 2, "distractor": 2, "two_turn": 1, "parallel": 1}

# (training, held-out) wordings around the tools' own.
_JOIN = ((" and ", ", and also ", ". also "), (", plus ",))
_NEXT = (("", "thanks, now ", "ok, "), ("great, next: ",))
_REPLY = (("{value}", "{value} please", "use {value}"), ("let it be {value}",))
_QUESTION = ("Which {argument} should I use?", "What {argument} do you mean?")
_SORRY = ("Sorry, I have no tool for that.", "I cannot help with that, no tool fits.")
_CHAT = (
    (
        "tell me a joke",
        "who are you?",
        "write a poem about rain",
        "why is the sky blue?",
        "i feel sad today",
        "sing a song for me",
    ),
    ("what is the meaning of life?", "make me laugh", "explain magnets to a child"),
)
_NEAR_DOMAINS = ({"maps", "travel"}, {"calendar", "messages"}, {"shop", "finance"})  # their tools could stand in for each other


@dataclass(frozen=True)
class _Turn:
    """One user message with the calls it asks for, their results, and the answer."""

    query: str
    answer: str
    facts: list[str] = field(default_factory=list)
    steps: list[list[tuple[ToolCall, Any]]] = field(default_factory=list)


def tasks(
    seed: int,
    split: str,
    n: int | None = None,
    *,
    domains: Sequence[str] = (),
    kinds: Sequence[str] = KINDS,
    max_tools: int = 6,
    made_up: float = 0.3,
) -> Iterator[Task]:
    """Tasks over the built-in catalogue, without end when n is None.

    domains: built-in domains to use, () = all. kinds: mixed evenly; those impossible with the options (a sequence needs
    two linked tools) are left out. max_tools: schemas in a prompt. made_up: share of names, cities and songs replaced by
    words nobody has seen. Raises ValueError for unknown names and when no kind is possible.
    """
    source = builtin_source(seed, split, domains=domains, kinds=kinds, max_tools=max_tools, made_up=made_up)
    return (source.task(i) for i in (itertools.count() if n is None else range(n)))


def tasks_from_specs(
    specs: Sequence[Any],
    seed: int,
    n: int | None = None,
    split: str = "train",
    *,
    kinds: Sequence[str] = KINDS,
    max_tools: int = 6,
    made_up: float = 0.3,
) -> Iterator[Task]:
    """The same over any tool specs (OpenAPI, MCP, botocore, ...), worded after their names. Bad specs are skipped.

    Every fifth tool by hash of its name is held out. Raises ValueError when no usable tool is left for the split.
    """
    source = spec_source(specs, seed, split, kinds=kinds, max_tools=max_tools, made_up=made_up)
    return (source.task(i) for i in (itertools.count() if n is None else range(n)))


def builtin_source(seed: int, split: str, *, domains: Sequence[str] = (), **options: Any) -> TaskSource:
    """Random access to `tasks`. Raises ValueError."""
    known = catalog.domains()
    unknown = [name for name in domains if name not in known]
    if unknown:
        raise ValueError(f"tasks.domains: unknown {', '.join(unknown)}; there are {', '.join(known)}")
    every = _builtin_skills()
    chosen = tuple(skill for skill in every if not domains or skill.domain in domains)
    return TaskSource(seed, split, chosen, catalog.links(), elsewhere=every, **options)


def spec_source(specs: Sequence[Any], seed: int, split: str, **options: Any) -> TaskSource:
    """Random access to `tasks_from_specs`. Raises ValueError."""
    chosen = tuple(skills.from_tool(tool) for tool in ToolSet.load(specs).tools.values())
    return TaskSource(seed, split, chosen, (), elsewhere=chosen, **options)


@lru_cache(maxsize=1)
def _builtin_skills() -> tuple[Skill, ...]:
    return tuple(skills.from_entry(entry, domain) for domain, entries in catalog.domains().items() for entry in entries)


class TaskSource:
    """Random access to the tasks of one split: `task(i)` is a pure function of the constructor's arguments and i."""

    def __init__(
        self,
        seed: int,
        split: str,
        chosen: Sequence[Skill],
        links: Sequence[Link],
        *,
        elsewhere: Sequence[Skill],
        kinds: Sequence[str] = KINDS,
        max_tools: int = 6,
        made_up: float = 0.3,
    ):
        if split not in SPLITS:
            raise ValueError(f"split {split!r}: must be one of {', '.join(SPLITS)}")
        unknown = [kind for kind in kinds if kind not in KINDS]
        if unknown:
            raise ValueError(f"tasks.kinds: unknown {', '.join(unknown)}; there are {', '.join(KINDS)}")
        if max_tools < 1 or not 0 <= made_up <= 1:
            raise ValueError(f"tasks.max_tools must be at least 1 and tasks.made_up within 0..1, got {max_tools} and {made_up}")
        self.seed, self.split, self.max_tools, self.made_up = seed, split, max_tools, made_up
        held_out = split == "heldout_tools"
        self.gold = [skill for skill in chosen if skill.held_out == held_out]
        self.beside = [skill for skill in chosen if held_out or not skill.held_out]
        self.elsewhere = [skill for skill in elsewhere if held_out or not skill.held_out]
        crowds = Counter(skill.domain for skill in self.beside)
        self.crowded = [skill for skill in self.gold if crowds[skill.domain] > 1] or self.gold
        self.asking = [skill for skill in self.gold if skill.gap]
        by_name = {skill.name: skill for skill in self.gold}
        self.links = [(by_name[x.first], by_name[x.second], x) for x in links if x.first in by_name and x.second in by_name]
        if not self.gold:
            raise ValueError(f"split {split!r}: the chosen tools have none for it")
        self.kinds = [kind for kind in kinds if self._possible(kind)]
        if not self.kinds:
            raise ValueError(f"tasks.kinds: none of {', '.join(kinds)} is possible with max_tools={max_tools} and these tools")

    def _possible(self, kind: str) -> bool:
        if kind == "sequential" and not self.links:
            return False
        if kind == "ask" and not self.asking:
            return False
        return TOOLS_NEEDED.get(kind, 1) <= self.max_tools and (kind != "distractor" or len(self.beside) > 1)

    def task(self, i: int) -> Task:
        """Example i >= 0."""
        return _Scene(self, i).task()


class _Scene:
    """The random state of one task while it is made."""

    def __init__(self, source: TaskSource, i: int):
        self.source = source
        self.id = f"{source.split}-{source.seed}-{i}"
        self.kind = source.kinds[i % len(source.kinds)]
        self.rng = Random(f"{source.seed}|{source.split}|{i}")
        self.unseen = source.split == "heldout_tasks"
        self.world = response_seed(self.id)
        self.transcript: list[tuple[ToolCall, Any]] = []
        self.calls = 0

    def task(self) -> Task:
        make = {
            "single": self._single, "distractor": self._single, "parallel": self._parallel, "sequential": self._sequential,
            "abstain": self._abstain, "ask": self._ask, "two_turn": self._two_turn,
        }[self.kind]  # fmt: skip
        turns, used, meta = make()
        gold = [(k, [call for call, _ in step]) for k, turn in enumerate(turns) for step in turn.steps]
        return Task(
            id=self.id,
            messages=[{"role": "user", "content": turns[0].query}],
            tools=self._tools(used, meta.get("domain")),
            gold_steps=[calls for _, calls in gold],
            facts=[turn.facts for turn in turns],
            followups=[turn.query for turn in turns[1:]],
            demo=_demonstration(turns),
            kind=self.kind,
            split=self.source.split,
            meta={"gold_turns": [k for k, _ in gold], **meta},
        )

    # The kinds. Each returns the turns, the skills that must be among the tools, and notes.

    def _single(self) -> tuple[list[_Turn], list[Skill], dict[str, Any]]:
        skill = self._pick()
        return [self._turn(skill)], [skill], {}

    def _parallel(self) -> tuple[list[_Turn], list[Skill], dict[str, Any]]:
        first = self._pick()
        second = first if self.source.max_tools < 2 or self.rng.random() < 0.4 else self._pick()
        one = self._turn(first)
        other = self._turn(second, unlike=one)
        step = [*one.steps[0], *other.steps[0]]
        joint = self._wording(_JOIN)
        query = (
            one.query + joint.lstrip(".")
            if one.query.endswith("?") and joint.startswith(".")
            else one.query.rstrip("?") + joint
        ) + other.query
        return [_Turn(query, f"{one.answer} {other.answer}", one.facts + other.facts, [step])], _distinct(first, second), {}

    def _sequential(self) -> tuple[list[_Turn], list[Skill], dict[str, Any]]:
        first, second, link = self.rng.choice(self.source.links)
        template = self.rng.choice(link.unseen if self.unseen else link.asks)
        told = skills.mentioned(template)
        given = self._draw(first, told)
        rest = {name: value for name, value in self._draw(second, told).items() if name != link.argument}
        rest.update({name: given[name] for name in rest if name in given})
        result = self._call(first, given)
        passed = {
            name: result[1][link.field] if name == link.argument else rest[name]
            for name in self._order(second)
            if name in rest or name == link.argument
        }
        final = self._call(second, passed)
        answer, facts = second.answer(passed, final[1])
        turn = _Turn(skills.fill(template, {**rest, **given}), answer, facts, [[result], [final]])
        return [turn], [first, second], {"feeds": {"field": link.field, "argument": link.argument}}

    def _abstain(self) -> tuple[list[_Turn], list[Skill], dict[str, Any]]:
        present = self._pick()
        query = self._wording(_CHAT)
        strangers = [s for s in self.source.elsewhere if not _near(s.domain, present.domain)]
        if strangers and self.rng.random() < 0.7:
            query = self._turn(self.rng.choice(strangers)).query
            self.transcript.clear()
        return [_Turn(query, self.rng.choice(_SORRY))], [present], {"domain": present.domain}

    def _ask(self) -> tuple[list[_Turn], list[Skill], dict[str, Any]]:
        skill = self._pick()
        argument, train, unseen = skill.gap or ("", "", "")
        template = unseen if self.unseen else train
        given = self._draw(skill, skills.mentioned(template))
        question = self.rng.choice(_QUESTION).format(argument=skills.spoken(argument))
        turns = [_Turn(skills.fill(template, given), question)]
        if self.rng.random() < 0.5:
            call = self._call(skill, given)
            answer, facts = skill.answer(given, call[1])
            reply = self._wording(_REPLY).format(value=skills.said(given[argument]))
            turns.append(_Turn(reply, answer, facts, [[call]]))
        return turns, [skill], {"missing": argument, "domain": skill.domain}

    def _two_turn(self) -> tuple[list[_Turn], list[Skill], dict[str, Any]]:
        first = self._pick()
        second = first if self.source.max_tools < 2 or self.rng.random() < 0.3 else self._pick()
        one = self._turn(first)
        other = self._turn(second, unlike=one)
        return (
            [one, _Turn(self._wording(_NEXT) + other.query, other.answer, other.facts, other.steps)],
            _distinct(first, second),
            {},
        )

    # Pieces.

    def _pick(self) -> Skill:
        return self.rng.choice({"ask": self.source.asking, "distractor": self.source.crowded}.get(self.kind, self.source.gold))

    def _draw(self, skill: Skill, told: frozenset[str]) -> dict[str, Any]:
        return skill.draw(self.rng, self.unseen, self.source.made_up, told)

    def _call(self, skill: Skill, arguments: dict[str, Any]) -> tuple[ToolCall, Any]:
        call = ToolCall(skill.name, arguments, f"call_{self.calls}")
        self.calls += 1
        pair = (call, respond(skill.tool, arguments, self.world, self.transcript))
        self.transcript.append(pair)
        return pair

    def _turn(self, skill: Skill, unlike: _Turn | None = None) -> _Turn:
        template = self.rng.choice(skill.unseen if self.unseen else skill.asks)
        before = {canonical(call) for step in unlike.steps for call, _ in step} if unlike else set()
        for _ in range(20):
            arguments = self._draw(skill, skills.mentioned(template))
            if canonical(ToolCall(skill.name, arguments)) not in before:
                break
        pair = self._call(skill, arguments)
        answer, facts = skill.answer(arguments, pair[1])
        return _Turn(skills.fill(template, arguments), answer, facts, [[pair]])

    def _order(self, skill: Skill) -> list[str]:
        return list(skill.tool.parameters.get("properties", {}))

    def _wording(self, pair: tuple[Sequence[str], Sequence[str]]) -> str:
        return self.rng.choice(pair[self.unseen])

    def _tools(self, used: list[Skill], only_far_from: str | None) -> list[dict[str, Any]]:
        """The tools in the prompt, shuffled. Distractor tasks fill up with siblings of the right tool, others with strangers."""
        names = {skill.name for skill in used}
        others = [skill for skill in self.source.beside if skill.name not in names]
        self.rng.shuffle(others)
        domains = {skill.domain for skill in used}
        siblings = self.kind == "distractor"
        if self.kind == "abstain":  # present: one domain only, so that the stranger's query stays without a tool
            others = [skill for skill in others if skill.domain == only_far_from]
        elif self.kind == "ask":  # no sibling that could do with what is given
            others = [skill for skill in others if not _near(skill.domain, only_far_from or "")]
        else:
            others.sort(key=lambda skill: (skill.domain in domains) != siblings)
        least = len(used) + (1 if siblings else 0)
        count = self.rng.randint(min(least, self.source.max_tools), self.source.max_tools)
        chosen = used + others[: max(0, count - len(used))]
        self.rng.shuffle(chosen)
        return [skill.tool.spec for skill in chosen]


def _near(one: str, other: str) -> bool:
    return one == other or any(one in pair and other in pair for pair in _NEAR_DOMAINS)


def _distinct(*used: Skill) -> list[Skill]:
    return list({skill.name: skill for skill in used}.values())


def _demonstration(turns: Sequence[_Turn]) -> list[Message]:
    """Assistant, tool and further user messages; results are the JSON text that the scripted simulator returns."""
    out: list[Message] = []
    for k, turn in enumerate(turns):
        if k:
            out.append({"role": "user", "content": turn.query})
        for step in turn.steps:
            out.append({"role": "assistant", "content": "", "tool_calls": [call.message() for call, _ in step]})
            for call, result in step:
                text = json.dumps(result, ensure_ascii=False)
                out.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text})
        out.append({"role": "assistant", "content": turn.answer})
    return out
