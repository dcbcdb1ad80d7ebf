"""One task being made: the kinds of task, turn by turn, from skills and a seeded generator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from slca.tasks import skills
from slca.tasks.schema import canonical
from slca.tasks.skills import Skill
from slca.tasks.values import Unsatisfiable, respond, response_seed
from slca.types import Message, Task, ToolCall

if TYPE_CHECKING:
    from slca.tasks.synthesize import TaskSource

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
class Turn:
    """One user message with the calls it asks for, their results, and the answer."""

    query: str
    answer: str
    facts: list[str] = field(default_factory=list)
    steps: list[list[tuple[ToolCall, Any]]] = field(default_factory=list)


class Scene:
    """The random state of one task while it is made."""

    def __init__(self, source: TaskSource, i: int):
        self.source = source
        self.id = f"{source.split}-{source.seed}-{i}"
        self.kind = source.kinds[i % len(source.kinds)]
        self.rng = Random(f"{source.seed}|{source.split}|{i}")
        self.unseen = source.split == "heldout_tasks"
        self.world = response_seed(self.id)
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

    def _single(self) -> tuple[list[Turn], list[Skill], dict[str, Any]]:
        skill = self._pick()
        return [self._turn(skill)], [skill], {}

    def _parallel(self) -> tuple[list[Turn], list[Skill], dict[str, Any]]:
        first = self._pick()
        second = self._second(first, 0.4)
        one = self._turn(first)
        other = self._turn(second, unlike=one)
        step = [*one.steps[0], *other.steps[0]]
        query = _joined(one.query, self._wording(_JOIN), other.query)
        return [Turn(query, f"{one.answer} {other.answer}", one.facts + other.facts, [step])], _distinct(first, second), {}

    def _sequential(self) -> tuple[list[Turn], list[Skill], dict[str, Any]]:
        for _ in range(20):  # a value that the second tool refuses starts over
            self.calls = 0
            first, second, link = self.rng.choice(self.source.links)
            template = self.rng.choice(link.unseen if self.unseen else link.asks)
            told = skills.mentioned(template)
            given = self._draw(first, told)
            found = self._call(first, given)
            passed = {**self._draw(second, told), link.argument: found[1][link.field]}
            passed.update({name: value for name, value in given.items() if name in passed and name != link.argument})
            if not second.tool.check(passed):
                break
        else:
            raise Unsatisfiable(f"{first.name} never gives a {link.argument} that {second.name} takes")
        final = self._call(second, passed)
        answer, facts = second.answer(passed, final[1])
        remembered = second.answer(passed, respond(second.tool, passed, self.world, [found]))[1]
        facts = [fact for fact in facts if fact in remembered]  # true in a world with a memory as well
        turn = Turn(skills.fill(template, {**passed, **given}), answer, facts, [[found], [final]])
        return [turn], [first, second], {"feeds": {"field": link.field, "argument": link.argument}}

    def _abstain(self) -> tuple[list[Turn], list[Skill], dict[str, Any]]:
        present = self._pick()
        query = self._wording(_CHAT)
        strangers = [s for s in self.source.elsewhere if not _near(s.domain, present.domain)]
        if strangers and self.rng.random() < 0.7:
            query = self._turn(self.rng.choice(strangers)).query
        return [Turn(query, self.rng.choice(_SORRY))], [present], {"domain": present.domain}

    def _ask(self) -> tuple[list[Turn], list[Skill], dict[str, Any]]:
        skill = self._pick()
        argument, train, unseen = skill.gap or ("", "", "")
        template = unseen if self.unseen else train
        given = self._draw(skill, skills.mentioned(template))
        question = self.rng.choice(_QUESTION).format(argument=skills.spoken(argument))
        turns = [Turn(skills.fill(template, given), question)]
        if self.rng.random() < 0.5:
            call = self._call(skill, given)
            answer, facts = skill.answer(given, call[1])
            reply = self._wording(_REPLY).format(value=skills.said(given[argument]))
            turns.append(Turn(reply, answer, facts, [[call]]))
        return turns, [skill], {"missing": argument, "domain": skill.domain}

    def _two_turn(self) -> tuple[list[Turn], list[Skill], dict[str, Any]]:
        first = self._pick()
        second = self._second(first, 0.3)
        one = self._turn(first)
        other = self._turn(second, unlike=one)
        return (
            [one, Turn(self._wording(_NEXT) + other.query, other.answer, other.facts, other.steps)],
            _distinct(first, second),
            {},
        )

    # Pieces.

    def _pick(self) -> Skill:
        return self.rng.choice({"ask": self.source.asking, "distractor": self.source.crowded}.get(self.kind, self.source.gold))

    def _second(self, first: Skill, same: float) -> Skill:
        """A tool for a second call: with probability `same` the first one again, unless it can be called in one way only."""
        fixed = not first.tool.parameters.get("required")
        if self.source.max_tools < 2 or (not fixed and self.rng.random() < same):
            return first
        others = [skill for skill in self.source.gold if skill is not first] if fixed else self.source.gold
        return self.rng.choice(others or [first])

    def _draw(self, skill: Skill, told: frozenset[str]) -> dict[str, Any]:
        return skill.draw(self.rng, self.unseen, self.source.made_up, told)

    def _call(self, skill: Skill, arguments: dict[str, Any]) -> tuple[ToolCall, Any]:
        call = ToolCall(skill.name, arguments, f"call_{self.calls}")
        self.calls += 1
        return call, respond(skill.tool, arguments, self.world)

    def _turn(self, skill: Skill, unlike: Turn | None = None) -> Turn:
        template = self.rng.choice(skill.unseen if self.unseen else skill.asks)
        before = {canonical(call) for step in unlike.steps for call, _ in step} if unlike else set()
        for _ in range(20):
            arguments = self._draw(skill, skills.mentioned(template))
            if canonical(ToolCall(skill.name, arguments)) not in before:
                break
        pair = self._call(skill, arguments)
        answer, facts = skill.answer(arguments, pair[1])
        return Turn(skills.fill(template, arguments), answer, facts, [[pair]])

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


def _joined(one: str, joint: str, other: str) -> str:
    """Two requests in one message: a question mark stays only before a new sentence."""
    if joint.startswith(".") and one.endswith("?"):
        return one + joint[1:] + other
    return one.rstrip("?") + joint + other


def _near(one: str, other: str) -> bool:
    return one == other or any(one in pair and other in pair for pair in _NEAR_DOMAINS)


def _distinct(*used: Skill) -> list[Skill]:
    return list({skill.name: skill for skill in used}.values())


def _demonstration(turns: Sequence[Turn]) -> list[Message]:
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
