"""Episodes -> `Rollouts`: every reward channel and label the algorithms of the table read. Host side; judges are asked here.

Decisions that the paper leaves open:
- Several user turns: the summary reward is the mean over the user turns, one number a rollout, as the process reward is.
  The per-turn grades are in the channel `segment`.
- The omission guard overrides here, so that `slca` credit sees routed channels and never a total (algorithms-core 1.4).
- A right abstention enters the tool statistics (label `abstained`) though it has no tool segment, unless `abstain=paper`.
- An unscored episode (the environment failed, not the policy) is NaN in every channel: it leaves all statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from slca.credit.segments import segments
from slca.rewards import hierr, outcome, summary
from slca.rewards.scores import Answer, Rules, answers, grades, measure, omitted, tool_names
from slca.types import ABSENT, TOOL, Episode, Rollouts, Segment, Task

# What credit may read; the scores of slca.rewards.scores come along under `score/` for metrics.
CHANNELS = (
    "tool", "summary", "total", "solved", "success", "action", "action_share", "plan", "layered", "overlong", "segment", "final",
)  # fmt: skip
LABELS = ("role", "state", "cell", "step", "abstained", "version")

# Grades a list of answers, NaN = could not be graded; .version names model and prompt
Judge = Callable[[list[Answer]], list[float]]

# Ends that cut a rollout off: Signal Reshaping keeps only its last step
CUT_OFF = frozenset({"max_turns", "max_calls", "context_full", "truncated"})


def annotate(
    episodes: Sequence[Episode],
    config: Any,
    judge: Judge | None = None,
    toolset_of: Callable[[Task], Any] | None = None,
    checker: Callable[[list[Episode]], list[float]] | None = None,
    roles: Callable[[list[Episode]], list[list[int]]] | None = None,
) -> Rollouts:
    """Score the episodes of a step under the whole config.

    judge: grades answers when `reward.summary` is `judge`; raises ValueError when it is then missing.
    toolset_of: the ToolSet of a task; None = the names in its specs.
    checker: completeness of episodes (RLTR), NaN = unknown; roles: a role a turn (TRIAGE), -1 = unknown; None = by rule.
    `slca.rewards.judge.graders(config)` gives judge, checker and roles as the config asks for them.

    Rewards: CHANNELS, [N] float64 but `segment` and `final` [N, S], and `score/*` [N]. Labels: LABELS. Segments follow
    `credit.segmenter`; S is the longest row.
    """
    rules = Rules.of(config)
    if config.reward.summary == "judge" and judge is None:
        raise ValueError("reward.summary=judge: no judge was given; set reward.judge_url or use reward.summary=rule")
    parts = [segments(episode, rules.segmenter) for episode in episodes]
    use_judge = judge if config.reward.summary == "judge" else None
    graded = _judged(episodes, rules, use_judge) if use_judge else [grades(e, rules) if e.scored else [] for e in episodes]
    rows = [
        _row(episode, rules, own, grade, toolset_of(episode.task) if toolset_of else None) if episode.scored else None
        for episode, own, grade in zip(episodes, parts, graded)
    ]
    width = max((len(own) for own in parts), default=0)
    kind, tokens = np.full((len(episodes), width), ABSENT), np.zeros((len(episodes), width), np.int64)
    for n, own in enumerate(parts):
        kind[n, : len(own)] = [part.kind for part in own]
        tokens[n, : len(own)] = [part.stop - part.start for part in own]
    rewards, labels = _columns(rows, width)
    if checker:
        _recheck(episodes, rewards, rules, checker)
    if roles:
        _relabel(episodes, parts, labels["role"], roles)
    labels["abstained"] = np.array([e.scored and _abstained(e, rules) for e in episodes], bool)
    labels["version"] = np.full(len(episodes), _version(use_judge, checker, roles))
    return Rollouts(np.asarray([e.group for e in episodes], np.int64), kind, rewards, labels, tokens)


def _version(judge: Any, checker: Any, roles: Any) -> str:
    """Who scored: `process/summary`, then `/checker=` and `/roles=` where a model and not the rules gave them."""

    def name(grader: Any) -> str:  # a bound method speaks for its object
        return str(getattr(grader, "version", getattr(getattr(grader, "__self__", None), "version", "unnamed")))

    parts = [hierr.VERSION, name(judge) if judge else summary.VERSION]
    return "/".join(parts + [f"{what}={name(by)}" for what, by in (("checker", checker), ("roles", roles)) if by])


def metrics(rollouts: Rollouts) -> dict[str, tuple[float, float]]:
    """(sum, weight) pairs over the scored rollouts of every channel [N], and the share of unscored ones."""
    out = {}
    for name, values in rollouts.rewards.items():
        if values.ndim == 1:
            finite = np.isfinite(values)
            out[name if "/" in name else f"reward/{name}"] = (float(values[finite].sum()), float(finite.sum()))
    n = float(len(rollouts.group))
    out["reward/unscored"] = (float(np.isnan(rollouts.rewards["tool"]).sum()), n)
    out["reward/summary_unscored"] = (float(np.isnan(rollouts.rewards["summary"]).sum()), n)
    return out


def route(found: dict[str, float], rules: Rules) -> dict[str, float]:
    """The channels tool, summary and total, with the efficiency cost and the omission guard applied.

    route_summary (paper): tool 0, summary and total the penalty. route_all: the penalty in all three. subtract: tool 0, the
    penalty added to the summary. The guard overrides a failed grade too: an omission needs no judge.
    """
    cost = {"none": 0.0, "dup_penalty": found["duplicates"], "turn_cost": found["tool_turns"]}[rules.efficiency]
    earned = {"hierr": found["process"], "solved": found["solved"], "none": 0.0}[rules.execution]
    tool, answer = max(earned - rules.efficiency_cost * cost, 0.0), found["summary"]
    total = rules.process_weight * tool + rules.summary_weight * answer
    if found["omitted"]:
        penalty = rules.omission_penalty
        if rules.omission == "subtract":
            tool, answer, total = 0.0, answer + penalty, rules.summary_weight * answer + penalty
        else:
            tool, answer, total = (0.0 if rules.omission == "route_summary" else penalty), penalty, penalty
    return {"tool": tool, "summary": answer, "total": total}


def step_weights(scores: Sequence[float], tokens: Sequence[int], cut_off: bool = False) -> Float[np.ndarray, "_"]:
    """Step scores over their token-weighted mean (mean 1 over tokens); of a cut-off rollout only the last step counts."""
    weight, size = np.asarray(scores, np.float64), np.asarray(tokens, np.float64)
    if cut_off:
        weight = np.where(np.arange(len(weight)) == len(weight) - 1, 1.0, 0.0)
    mean = (weight * size).sum() / max(size.sum(), 1.0)
    return weight if cut_off or mean <= 0 else weight / mean


def _abstained(episode: Episode, rules: Rules) -> bool:
    """No call is right and none was tried. Never under `reward.abstain=paper`, which compares callers with callers only."""
    due = any(episode.task.gold_steps)
    return rules.hierr.abstain == "sane" and not due and not any(turn.attempted for turn in episode.turns)


# One row: (numbers, [S] channels, labels)
_Row = tuple[dict[str, float], dict[str, list[float]], dict[str, Any]]


def _row(episode: Episode, rules: Rules, parts: list[Segment], graded: list[dict[str, float]], toolset: Any) -> _Row:
    allowed = tool_names(episode, toolset)
    compared = outcome.Compared.of(episode.turns, episode.task.gold_steps)
    found = measure(episode, rules, allowed, parts, graded, compared)
    routed = route(found, rules)
    steps = outcome.steps(compared, episode.observations, allowed)
    roles = [steps[part.turn].role for part in parts]
    answered = [routed["summary"] if found["omitted"] else grade["summary"] for grade in graded]
    perseg = {
        "segment": [
            steps[part.turn].similarity if part.kind == TOOL else answered[min(episode.user_turn[part.turn], len(answered) - 1)]
            for part in parts
        ],
        "final": [0.0] * (len(parts) - 1) + [routed["total"]] * min(len(parts), 1),
    }
    labels = {
        "role": roles,
        "state": [steps[part.turn].state for part in parts],
        "cell": tuple(sorted(call.name for turn in episode.turns for call in turn.calls)),
        "step": step_weights(
            [outcome.STEP_SCORE[role] for role in roles], [p.stop - p.start for p in parts], episode.end in CUT_OFF
        ),
    }
    own = {name: found[name] for name in CHANNELS if name in found and name not in routed}
    return {**own, **routed, **{f"score/{key}": value for key, value in found.items()}}, perseg, labels


def _columns(rows: Sequence[_Row | None], width: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Rows -> arrays; NaN (rewards), -1 (ids) and 0 (weights) where a row is unscored or a segment absent."""
    scored = [(n, row) for n, row in enumerate(rows) if row is not None]
    names = list(scored[0][1][0]) if scored else [name for name in CHANNELS if name not in ("segment", "final")]
    rewards = {name: np.full(len(rows), np.nan) for name in names}
    rewards |= {name: np.full((len(rows), width), np.nan) for name in ("segment", "final")}
    labels: dict[str, np.ndarray] = {name: np.full((len(rows), width), -1) for name in ("role", "state")}
    labels |= {"cell": np.full(len(rows), -1), "step": np.zeros((len(rows), width))}
    states: dict[Hashable, int] = {}
    cells: dict[Hashable, int] = {}
    for n, (numbers, perseg, own) in scored:
        for name in names:
            rewards[name][n] = numbers[name]
        for name, values in perseg.items():
            rewards[name][n, : len(values)] = values
        count = len(own["role"])
        labels["role"][n, :count] = own["role"]
        labels["state"][n, :count] = [states.setdefault(state, len(states)) for state in own["state"]]
        labels["cell"][n] = cells.setdefault(own["cell"], len(cells))
        labels["step"][n, :count] = own["step"]
    return rewards, labels


def _recheck(episodes: Sequence[Episode], rewards: dict[str, np.ndarray], rules: Rules, checker: Any) -> None:
    """Completeness, and with it the channel `plan`, by a model instead of by rule."""
    at = [n for n, episode in enumerate(episodes) if episode.scored]
    for n, verdict in zip(at, checker([episodes[n] for n in at])):
        valid = outcome.format_valid(episodes[n].turns)
        repeats, errors = int(rewards["score/duplicates"][n]), int(rewards["score/errors"][n])
        rewards["score/completeness"][n] = verdict
        rewards["plan"][n] = outcome.rltr(verdict, repeats, errors, valid, rules.repeat_penalty, rules.error_penalty)


def _relabel(episodes: Sequence[Episode], parts: Sequence[Sequence[Segment]], role: np.ndarray, roles: Any) -> None:
    at = [n for n, episode in enumerate(episodes) if episode.scored]
    for n, named in zip(at, roles([episodes[n] for n in at])):
        role[n, : len(parts[n])] = [named[part.turn] for part in parts[n]]


def _judged(episodes: Sequence[Episode], rules: Rules, judge: Judge) -> list[list[dict[str, float]]]:
    """Grades by the judge: all answers that need one in a single request list; failures NaN, or 0 when the config says so."""
    asked: list[Answer] = []
    plan: list[list[int | None]] = []
    for episode in episodes:
        own = answers(episode, rules) if episode.scored else []
        skip = episode.scored and omitted(episode, rules) and rules.omission != "subtract"
        slots: list[int | None] = []
        for answer in own:
            needed = not skip and not answer.short_circuit
            slots.append(len(asked) if needed else None)
            asked += [answer] if needed else []
        plan.append(slots)
    marks = judge(asked) if asked else []
    failed = 0.0 if rules.judge_failure == "zero" else np.nan
    marks = [mark if np.isfinite(mark) else failed for mark in marks]
    return [[{"summary": 0.0 if slot is None else float(marks[slot])} for slot in slots] for slots in plan]
