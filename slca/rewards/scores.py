"""Everything that is measured of one episode, as plain floats: what training rewards and what evaluation reports."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from math import isnan, nan
from typing import Any

from slca.credit.segments import segments
from slca.rewards import hierr, outcome
from slca.rewards.outcome import Compared
from slca.rewards.summary import MIN_CHARACTERS, rule_reward
from slca.types import SUMMARY, TOOL, Episode, Observation, Segment

SUCCESS_AT = (0.7, 0.8, 0.9, 1.0)
TOLERANCE = 1e-9  # a published 0.90 must pass the threshold 0.9 whatever the order of the additions
WRONG_SPEECH_ACT = 0.5  # what is left of a grade for refusing where a question back is due, and for asking where it is not
EXECUTION = ("hierr", "solved", "none")
EFFICIENCY = ("none", "dup_penalty", "turn_cost")


@dataclass(frozen=True)
class Rules:
    """The fields of `config` that scoring reads, taken once a batch. Remarks in configs/default.py."""

    hierr: hierr.Options
    process_weight: float
    summary_weight: float
    omission_penalty: float
    repeat_penalty: float
    error_penalty: float
    judge_failure: str
    execution: str
    efficiency: str
    efficiency_cost: float
    segmenter: str
    omission: str
    omission_test: str
    overlong_share: float
    overlong_penalty: float
    max_response_tokens: int

    @classmethod
    def of(cls, config: Any) -> Rules:
        """From the whole config. Raises ValueError for an unknown choice."""
        reward, credit = config.reward, config.credit
        for name, known in (("efficiency", EFFICIENCY), ("execution", EXECUTION)):
            if reward[name] not in known:
                raise ValueError(f"reward.{name}: {reward[name]!r} is not one of {', '.join(known)}")
        own = {f.name: reward[f.name] for f in fields(cls) if f.name in reward}
        return cls(
            hierr=hierr.Options(**{f.name: reward[f.name] for f in fields(hierr.Options)}),
            segmenter=credit.segmenter, omission=credit.omission, omission_test=credit.omission_test,
            max_response_tokens=config.rollout.max_response_tokens, **own,
        )  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """The last text an episode gave to one user turn, and what it may be held against. `text` "" = none was given.

    results: tool results up to there, oldest first, those of the prompt's history included. needs_tools: some call was due.
    question_due: what the task's kind asks for where there is nothing to report: a question back (`ask`), none (`abstain`).
    """

    text: str
    question: str
    results: tuple[str | Observation, ...]
    facts: tuple[str, ...]
    needs_tools: bool
    question_due: bool | None = None

    @property
    def short_circuit(self) -> bool:
        """Too short to grade, or due to report tool results without having one: 0 without asking anybody (as published)."""
        return len(self.text.strip()) < MIN_CHARACTERS or (self.needs_tools and not self.results)


def answers(episode: Episode, rules: Rules) -> list[Answer]:
    """One `Answer` a user turn, in order."""
    task = episode.task
    question = [message.get("content", "") for message in task.messages if message.get("role") == "user"]
    results: list[str | Observation] = [m.get("content", "") for m in task.messages if m.get("role") == "tool"]
    # Facts mean that something is to be reported; without gold calls or facts, an answer needs no tool.
    paper = rules.hierr.abstain == "paper"
    out = []
    for user in range(1 + len(task.followups)):
        if user:
            question.append(task.followups[user - 1])
        text = ""
        for k, turn in enumerate(episode.turns):
            if episode.user_turn[k] == user:
                results += episode.observations[k]
                text = "" if turn.attempted else turn.text
        facts = tuple(task.facts[user]) if user < len(task.facts) else ()
        needs_tools = paper or (bool(facts) and bool(task.gold_steps))
        question_due = None if facts else {"ask": True, "abstain": False}.get(task.kind)
        out.append(Answer(text, "\n".join(question), tuple(results), facts, needs_tools, question_due))
    return out


def scores(episode: Episode, config: Any, toolset: Any = None) -> dict[str, float]:
    """Scores of one episode under the rules of the whole config; the summary by rule, whatever `reward.summary` says.

    toolset: what `hierr.process_reward` takes; None = the names of the task's tools.

    Keys: process and its components format, name (Name F1), key, value, parallel; argmatch = (key + value) / 2;
    success@{0.7,0.8,0.9,1.0} on process; summary, faithful, complete, concise, empty, copied, claimed; solved, success,
    action, action_share, completeness, plan, layered, overlong; omitted, answered; turns, tool_turns, calls, gold, matched,
    surplus, missing, duplicates, errors; tokens/tool, tokens/summary, tokens/environment.
    """
    rules = Rules.of(config)
    compared = Compared.of(episode.turns, episode.task.gold_steps)
    parts = segments(episode, rules.segmenter)
    return measure(episode, rules, tool_names(episode, toolset), parts, grades(episode, rules), compared)


def tool_names(episode: Episode, toolset: Any = None) -> Collection[str]:
    if toolset is not None:
        return hierr.allowed_names(toolset)
    return {str((spec.get("function") or spec).get("name")) for spec in episode.task.tools}


def grades(episode: Episode, rules: Rules) -> list[dict[str, float]]:
    """The rule-based grade of each user turn's answer; a user turn without an answer scores 0."""
    out = []
    for answer in answers(episode, rules):
        grade = rule_reward(answer.text, answer.question, answer.results, answer.facts)
        if answer.short_circuit:
            grade["summary"] = 0.0
        elif answer.question_due not in (None, "?" in answer.text):
            grade["summary"] *= WRONG_SPEECH_ACT
        out.append(grade)
    return out


def measure(
    episode: Episode,
    rules: Rules,
    allowed: Collection[str],
    parts: Sequence[Segment],
    graded: Sequence[dict[str, float]],
    compared: Compared,
) -> dict[str, float]:
    """`scores` with prepared arguments. graded: a grade an answer, averaged here; NaN = unscored."""
    out = hierr.score(episode.turns, episode.task.gold_steps, allowed, rules.hierr, compared.pairs)
    out["argmatch"] = (out["key"] + out["value"]) / 2
    for threshold in SUCCESS_AT:
        out[f"success@{threshold}"] = float(out["process"] >= threshold - TOLERANCE)
    out |= {key: sum(grade[key] for grade in graded) / len(graded) for key in graded[0]}
    out |= _counts(episode, out, compared)
    out |= _outcomes(episode, rules, out, compared)
    out |= _tokens(episode, parts)
    return out


def omitted(episode: Episode, rules: Rules) -> bool:
    """Gold needs a call and none was made: no usable one (`parsed`), or not even an opening tag (`tag`, released code)."""
    if not any(episode.task.gold_steps):
        return False
    if rules.omission_test == "tag":
        return not any(turn.opened or turn.calls for turn in episode.turns)
    return not any(turn.calls for turn in episode.turns)


def _counts(episode: Episode, process: dict[str, float], compared: Compared) -> dict[str, float]:
    turns = episode.turns
    return {
        "answered": float(episode.end == "answered"),
        "turns": float(len(turns)),
        "tool_turns": float(sum(turn.attempted for turn in turns)),
        "surplus": process["calls"] - process["matched"],
        "missing": process["gold"] - process["matched"],
        "duplicates": float(outcome.duplicates(compared)),
        "errors": float(outcome.unusable(turns, episode.observations)),
    }


def _outcomes(episode: Episode, rules: Rules, found: dict[str, float], compared: Compared) -> dict[str, float]:
    turns, gold = episode.turns, episode.task.gold_steps
    solved = found["answered"] > 0 and outcome.solved(turns, gold)
    right = float(outcome.right_calls(compared))
    complete = outcome.completeness(compared)
    attempted = found["tool_turns"] > 0
    return {
        "omitted": float(omitted(episode, rules)),
        "solved": float(solved),
        "success": nan if isnan(found["summary"]) else float(solved and found["summary"] >= 0.5),
        "action": right,
        "action_share": right / found["gold"] if found["gold"] else float(not attempted),
        "completeness": complete,
        "plan": outcome.rltr(
            complete, int(found["duplicates"]), int(found["errors"]), outcome.format_valid(turns),
            rules.repeat_penalty, rules.error_penalty,
        ),
        "layered": outcome.layered(solved, int(found["errors"]), attempted, any(gold)),
        "overlong": outcome.overlong(
            len(episode.tokens) - episode.prompt_length, rules.max_response_tokens, rules.overlong_share, rules.overlong_penalty
        ),
    }  # fmt: skip


def _tokens(episode: Episode, parts: Sequence[Segment]) -> dict[str, float]:
    by_kind = {kind: float(sum(part.stop - part.start for part in parts if part.kind == kind)) for kind in (TOOL, SUMMARY)}
    response = float(len(episode.tokens) - episode.prompt_length)
    return {
        "tokens/tool": by_kind[TOOL],
        "tokens/summary": by_kind[SUMMARY],
        "tokens/environment": response - by_kind[TOOL] - by_kind[SUMMARY],
    }
