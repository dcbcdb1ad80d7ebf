"""Rewards of what an episode achieved, by rule: solved, right calls (ToolPO), completeness (RLTR), and what it cost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slca.rewards.hierr import Pairs, match, similarity
from slca.rewards.values import identity, loose, same_call
from slca.types import Observation, Parsed, ToolCall

REFUSED = frozenset({"unknown_tool", "invalid_arguments"})

# Roles of segments (TRIAGE), by rule
PROGRESS, EXPLORATION, INFRASTRUCTURE, REGRESSION = 0, 1, 2, 3

# Score of a step by role, before it is scaled to a token-weighted mean of 1 (Signal Reshaping; the scale is inferred)
STEP_SCORE = (1.0, 0.5, 0.5, 0.25)


def solved(turns: Sequence[Parsed], gold_steps: Sequence[Sequence[ToolCall]]) -> bool:
    """The calls made are exactly the gold calls as a multiset, names and values strictly equal, and nothing unusable beside.

    Order is free: where it matters, a later call needs a value of an earlier result.
    """
    rest = [call for step in gold_steps for call in step]
    for turn in turns:
        if turn.errors:
            return False
        for call in turn.calls:
            at = next((i for i, gold in enumerate(rest) if same_call(call, gold)), None)
            if at is None:
                return False
            del rest[at]
    return not rest


@dataclass(frozen=True)
class Compared:
    """The calls of an episode held against the gold calls once, for every reward below.

    identities: of the calls, turn by turn. pairs: gold index -> (call index, key, value) of the loose greedy matching (HierR,
    MatchTIR). right: indices of the calls that met a gold call (`right_ones`).
    """

    turns: Sequence[Parsed]
    gold: Sequence[ToolCall]
    identities: list[list[str]]
    pairs: Pairs
    right: frozenset[int]

    @classmethod
    def of(cls, turns: Sequence[Parsed], gold_steps: Sequence[Sequence[ToolCall]]) -> Compared:
        gold = [call for step in gold_steps for call in step]
        calls = [call for turn in turns for call in turn.calls]
        made = [[identity(call) for call in turn.calls] for turn in turns]
        return cls(turns, gold, made, match(calls, gold, loose), right_ones(calls, gold))


def right_ones(calls: Sequence[ToolCall], gold: Sequence[ToolCall]) -> frozenset[int]:
    """Indices of the calls that are right: equal name, every gold key there and loosely equal, one call to one gold call.

    Calls in order, each counted when it adds to what those before it met; earlier ones move to another gold call to make room, so
    the number is the largest there is. Surplus keys do not matter, unlike in HierR's matching, where they can hide a right call.
    """
    meets = [
        [g for g, due in enumerate(gold) if call.name == due.name and similarity(call, due, loose)[1] >= 1.0] for call in calls
    ]
    taken: dict[int, int] = {}

    def place(call: int, tried: set[int]) -> bool:
        for g in meets[call]:
            if g not in tried:
                tried.add(g)
                if g not in taken or place(taken[g], tried):
                    taken[g] = call
                    return True
        return False

    return frozenset(call for call in range(len(calls)) if place(call, set()))


def right_calls(compared: Compared) -> int:
    """Sum of C(call) of ToolPO. Bounded by the gold calls, so repeating a right call pays nothing (DeepEyes#83)."""
    return len(compared.right)


def completeness(compared: Compared) -> float:
    """RLTR's R_comp by rule, in [0, 1]: mean over the gold calls of the verdict "this call was made".

    No call is right: 1 when none was tried. The LLM checker (N verdicts of the whole episode) is slca.rewards.judge.
    """
    if not compared.gold:
        return float(not any(turn.attempted for turn in compared.turns))
    return right_calls(compared) / len(compared.gold)


def rltr(
    complete: float, repeats: int, errors: int, valid: bool, repeat_penalty: float = 0.1, error_penalty: float = 0.2
) -> float:
    """RLTR's planner reward (2508.19598): completeness minus penalties per event; -1 when the format is invalid."""
    return complete - repeat_penalty * repeats - error_penalty * errors if valid else -1.0


def format_valid(turns: Sequence[Parsed]) -> bool:
    """No forged environment turn, and at least one usable call if any was tried."""
    if any(turn.forged for turn in turns):
        return False
    return any(turn.calls for turn in turns) or not any(turn.attempted for turn in turns)


def duplicates(compared: Compared) -> int:
    """Calls that repeat an earlier call of the episode, name and arguments."""
    made = [name for names in compared.identities for name in names]
    return len(made) - len(set(made))


def unusable(turns: Sequence[Parsed], observations: Sequence[Sequence[Observation]]) -> int:
    """Calls that could not run: unreadable ones and those refused for their tool name or arguments."""
    refused = sum(observation.status in REFUSED for results in observations for observation in results)
    return sum(len(turn.errors) for turn in turns) + refused


def layered(is_solved: bool, unusable_calls: int, attempted: bool, due: bool) -> float:
    """Tiers of Signal Reshaping (2605.07276; values inferred): 0 nothing usable, 0.5 every call ran, 1 solved."""
    if is_solved:
        return 1.0
    return 0.5 if unusable_calls == 0 and attempted == due else 0.0


def overlong(tokens: int, limit: int, share: float = 0.2, factor: float = 1.0) -> float:
    """DAPO's soft over-long penalty in [-factor, 0]: falls linearly over the last `share` of `limit` response tokens.

    Published: 4,096 of 20,480 tokens, factor 1.
    """
    margin = share * limit
    return -factor * min(max((tokens - (limit - margin)) / margin, 0.0), 1.0) if margin > 0 else 0.0


@dataclass(frozen=True)
class Step:
    """What the rules say of one assistant turn."""

    role: int
    state: tuple[str, ...]  # identities of the calls that had run before it, sorted
    similarity: float  # MatchTIR's turn reward: mean over its calls of the similarity to the matched gold call


def steps(compared: Compared, observations: Sequence[Sequence[Observation]], allowed: Collection[str]) -> list[Step]:
    """One `Step` an assistant turn, in order.

    Roles: PROGRESS, a call meets a still open gold call; REGRESSION, a call repeats an earlier one or cannot run;
    INFRASTRUCTURE, no call; EXPLORATION, anything else. The most serious fault of a turn decides, then progress.
    """
    met = {p: _similarity(key, value, len(compared.gold[g].arguments)) for g, (p, key, value) in compared.pairs.items()}
    seen: list[str] = []
    out, first = [], 0
    for k, turn in enumerate(compared.turns):
        names = compared.identities[k]
        inside = range(first, first + len(names))
        first += len(names)
        results = observations[k] if k < len(observations) else []
        faulty = bool(turn.errors) or any(call.name not in allowed for call in turn.calls)
        faulty |= any(observation.status in REFUSED for observation in results)
        if not turn.attempted:
            role = INFRASTRUCTURE
        elif faulty or not set(names).isdisjoint(seen):
            role = REGRESSION
        else:
            role = PROGRESS if any(p in compared.right for p in inside) else EXPLORATION
        similar = sum(met.get(p, 0.0) for p in inside) / len(inside) if inside else 0.0
        out.append(Step(role, tuple(sorted(seen)), similar))
        seen += names
    return out


def _similarity(key: float, value: float, keys: int) -> float:
    """(1 + Jaccard of keys + number of equal values) / (2 + number of gold keys), MatchTIR (2601.10712)."""
    return (1.0 + key + value * keys) / (2.0 + keys)
