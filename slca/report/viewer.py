"""The episode viewer: one HTML file that opens from disk, asks nothing of a network, and shows where each advantage went.

Everything from a rollout is untrusted text. It travels as JSON in a data block that no text can close (every <, > and & is
escaped) and reaches the page only as text nodes; a content policy in the page forbids any request.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from slca.report.episodes import Stored, collect, jsonable
from slca.types import KIND_NAMES, POLICY, UNSCORED_ENDS, Episode, Rollouts, ToolCall

LIMIT = 4_500_000  # bytes of data in a page; groups beyond it stay in the episode file
PREVIEW = 300  # characters of a tool result in the side panel; the whole text is among the tokens


def write(
    path: str | os.PathLike[str],
    episodes: Sequence[Episode],
    rollouts: Rollouts,
    credits: Mapping[str, Any],
    decode: Callable[[list[int]], str],
    **parts: Any,
) -> Path:
    """Write the viewer of a step's episodes. Arguments as `episodes.collect`: credits is algorithm -> advantages [N, S]."""
    path = Path(path)
    path.write_text(page("Episodes", section(collect(episodes, rollouts, credits, decode, **parts))), encoding="utf-8")
    return path


def page(title: str, body: str) -> str:
    """The whole document around `body` (trusted HTML); `title` is text."""
    return _fill("page.html", title=escape(title), style=_template("style.css"), body=body)


def section(stored: Stored, limit: int = LIMIT) -> str:
    """The viewer as a piece of HTML, for `page`. Whole groups are left out, evenly, until the data fits `limit` bytes."""
    total = sum(len(episode.tokens) - episode.prompt_length for episode in stored.episodes)
    count = int(len(stored.episodes) * min(1.0, limit / (5 * total + 1)))  # a token takes 5 bytes or more
    rows = _spread(stored, count)
    data = embed(payload(stored, rows))
    while len(data.encode()) > limit and count > 1:
        count = min(count - 1, int(count * limit / len(data.encode()) * 0.95))
        rows = _spread(stored, count)
        data = embed(payload(stored, rows))
    note = f"step {stored.step}, {len(rows)} of {len(stored.episodes)} episodes"
    return _fill("viewer.html", note=escape(note), data=data, script=_template("viewer.js"))


def _spread(stored: Stored, count: int) -> list[int]:
    """About `count` episodes: whole groups, evenly over the step; part of one group when not even one is wanted whole."""
    group = stored.rollouts.group
    names = np.unique(group)
    wanted = max(1, int(len(names) * count / max(len(group), 1)))
    chosen = names[np.linspace(0, len(names) - 1, wanted).astype(int)] if len(names) else names
    rows = np.flatnonzero(np.isin(group, chosen)).tolist()
    return rows[: max(count, 1)] if wanted == 1 else rows


def embed(value: Any) -> str:
    """JSON that is safe inside a script element: no text in it can end the element or start a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", "replace").decode()  # lone surrogates, which models can write, become "?"


def payload(stored: Stored, rows: Sequence[int]) -> dict[str, Any]:
    """What the page shows of the episodes `rows`. Token texts are a table of (id, text) and prompts are kept once a group."""
    table: dict[tuple[int, str], int] = {}
    groups: dict[int, dict[str, Any]] = {}
    shown = []
    for n in rows:
        episode = stored.episodes[n]
        ids = [table.setdefault(item, len(table)) for item in zip(episode.tokens.tolist(), stored.pieces[n])]
        start = episode.prompt_length
        group = groups.setdefault(int(stored.rollouts.group[n]), {"at": len(groups), **_task(episode), "prompt": ids[:start]})
        shared = group["prompt"] == ids[:start]
        shown.append(
            {"g": group["at"], "skip": start if shared else 0, "body": ids[start if shared else 0 :], **_episode(stored, n)}
        )
    return {
        "step": stored.step,
        "algorithms": list(stored.credits),
        "channels": list(stored.rollouts.rewards),
        "kinds": list(KIND_NAMES),
        "ids": [item[0] for item in table],
        "texts": [item[1] for item in table],
        "groups": list(groups.values()),
        "episodes": shown,
    }


def _task(episode: Episode) -> dict[str, Any]:
    task = episode.task
    questions = [str(m.get("content", "")) for m in task.messages if m.get("role") == "user"] + list(task.followups)
    return {
        "id": task.id,
        "kind": task.kind,
        "split": task.split,
        "question": " ⏎ ".join(questions),
        "tools": [str(spec.get("function", spec).get("name", "")) for spec in task.tools],
        "gold": [[_call(call) for call in step] for step in task.gold_steps],
        "facts": jsonable(task.facts),
    }


def _episode(stored: Stored, n: int) -> dict[str, Any]:
    episode, count = stored.episodes[n], len(stored.segments[n])
    policy = episode.writer == POLICY
    return {
        "s": int(episode.sample),
        "end": episode.end,
        "scored": episode.end not in UNSCORED_ENDS,
        "temperature": episode.temperature,
        "runs": _runs(episode),
        "logprob": _rounded(episode.logprob[policy], 4),
        "segments": [[s.kind, s.start, s.stop, s.turn] for s in stored.segments[n]],
        "credit": {name: _rounded(values[n][:count]) for name, values in stored.credits.items()},
        "rewards": {name: _rounded(np.asarray(values)[n]) for name, values in stored.rollouts.rewards.items()},
        "labels": {name: _rounded(np.asarray(values)[n]) for name, values in stored.rollouts.labels.items()},
        "turns": [
            {"calls": [_call(c) for c in turn.calls], "errors": [[e.kind, e.message] for e in turn.errors]}
            for turn in episode.turns
        ],
        "results": [
            [[o.status, o.text[:PREVIEW], jsonable(o.provenance), jsonable(o.cost)] for o in turn]
            for turn in episode.observations
        ],
        "series": {name: _rounded(values[n][policy], 4) for name, values in stored.series.items()},
    }


def _call(call: ToolCall) -> list[Any]:
    return [call.name, jsonable(call.arguments)]


def _runs(episode: Episode) -> list[list[int]]:
    """[writer, turn, tokens] of each stretch with one writer and turn."""
    change = np.flatnonzero(np.diff(episode.writer) | np.diff(episode.turn)) + 1
    edges = [0, *change.tolist(), len(episode.tokens)]
    return [[int(episode.writer[a]), int(episode.turn[a]), b - a] for a, b in pairwise(edges) if b > a]


def _rounded(values: Any, digits: int = 6) -> Any:
    """Floats to `digits` digits (a picture needs no more), anything else as it is."""
    if isinstance(values, np.ndarray) and values.ndim:
        return [_rounded(value, digits) for value in values]
    if not np.issubdtype(np.asarray(values).dtype, np.floating):
        return jsonable(values)
    return jsonable(float(f"{float(values):.{digits}g}"))


@cache
def _template(name: str) -> str:
    return files("slca.report").joinpath(name).read_text(encoding="utf-8")


def _fill(name: str, **slots: str) -> str:
    """The template with its slots filled in one pass: what is put in is not searched again."""
    return re.sub(r"<!--slot:(\w+)-->", lambda match: slots[match[1]], _template(name))
