"""Seeded tasks from tool schemas: what is asked, which calls are right, what a good answer states, and a demonstration.

Example i depends only on (seed, split, i) and the options. Splits: `train`; `heldout_tasks` (same tools, values and
phrasings that training never shows); `heldout_tools` (tools that training never shows).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from random import Random
from typing import Any

from slca.tasks import catalog, skills
from slca.tasks.entry import Link
from slca.tasks.scene import Scene
from slca.tasks.schema import ToolSet
from slca.tasks.skills import Skill
from slca.tasks.values import Unsatisfiable, respond
from slca.types import Task

SPLITS = ("train", "heldout_tasks", "heldout_tools")
KINDS = ("single", "parallel", "sequential", "distractor", "abstain", "ask", "two_turn")
TOOLS_NEEDED = {"sequential": 2, "distractor": 2}  # schemas in the prompt; 1 for the other kinds


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
    """The same over any tool specs (OpenAPI, MCP, botocore, ...), worded after their names. Specs that are refused,
    or for which no values are found, are skipped.

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
    every = (skills.from_tool(tool) for tool in ToolSet.load(specs).tools.values())
    chosen = tuple(skill for skill in every if _usable(skill))
    return TaskSource(seed, split, chosen, skills.chains(chosen), elsewhere=chosen, **options)


def _usable(skill: Skill) -> bool:
    """Whether arguments and results can be drawn at all: schemas may demand what no sampler finds."""
    try:
        for k in range(3):
            respond(skill.tool, skill.draw(Random(k), bool(k % 2), 0.0, frozenset()), k)
    except Unsatisfiable:
        return False
    return True


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
        return Scene(self, i).task()
