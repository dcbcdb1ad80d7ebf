"""Episodes on disk: every token of a step with its writer, segment, log-prob, rewards and credit, readable again bit for bit.

`episodes/step_000010.jsonl.gz` holds a header line and then one JSON object an episode. Floats are written with all their
digits, so a stored batch can be credited again under another algorithm and compared exactly.
"""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from slca.credit.algorithms import algorithm
from slca.credit.segments import segments as segmenter
from slca.files import whole
from slca.report.redact import MASK, redact_tree
from slca.types import Block, CallError, Episode, Observation, Parsed, Rollouts, Segment, Task, ToolCall

FORMAT = 1
FOLDER = "episodes"
SHOWN_ALGORITHMS = ("slca", "grpo", "toolpo", "rltr")  # credits stored beside the trained one, for the viewer
HIDDEN_ID = -1  # stands for a token whose text was a secret
_TOKEN_ARRAYS = {"tokens": np.int32, "writer": np.int8, "turn": np.int16, "logprob": np.float32}


@dataclass(frozen=True)
class Stored:
    """The episodes of one step and what was decided about them. N episodes, S segments, T tokens of an episode.

    segments[n]: segments of episode n; credits: algorithm -> [N, S] advantages; pieces[n][t]: text of token t of episode n;
    series: name -> one [T] array an episode, further numbers of each token (trainer's log-prob, focus).
    """

    episodes: list[Episode]
    rollouts: Rollouts
    credits: dict[str, np.ndarray]
    segments: list[list[Segment]]
    pieces: list[list[str]]
    step: int = 0
    series: dict[str, list[np.ndarray]] = field(default_factory=dict)


def collect(
    episodes: Sequence[Episode],
    rollouts: Rollouts,
    credits: Mapping[str, Any],
    decode: Callable[[list[int]], str],
    *,
    segments: Sequence[Sequence[Segment]] | None = None,
    series: Mapping[str, Sequence[Any]] | None = None,
    step: int = 0,
) -> Stored:
    """Join the parts of a step. credits: algorithm -> [N, S]; decode: ids -> text; segments: default the `content` segmenter's.

    Raises ValueError when a part speaks of another number of episodes.
    """
    if segments is None:
        segments = [segmenter(episode) for episode in episodes]
    parts = {"rollouts": rollouts.kind, "segments": segments, **credits, **(series or {})}
    for name, part in parts.items():
        if len(part) != len(episodes):
            raise ValueError(f"{name} has {len(part)} rows for {len(episodes)} episodes")
    table = piece_table({int(i) for episode in episodes for i in np.unique(episode.tokens)}, decode)
    return Stored(
        episodes=list(episodes),
        rollouts=rollouts,
        credits={name: np.asarray(values, np.float64) for name, values in credits.items()},
        segments=[list(row) for row in segments],
        pieces=[token_texts(episode.tokens.tolist(), table, decode) for episode in episodes],
        step=step,
        series={name: [np.asarray(row, np.float64) for row in rows] for name, rows in (series or {}).items()},
    )


def piece_table(ids: Iterable[int], decode: Callable[[list[int]], str]) -> dict[int, str]:
    """Text of each id as it stands inside a text. Decoders strip the space before a first word, so each id is decoded twice over."""
    table = {}
    for i in ids:
        once, twice = decode([i]), decode([i, i])
        table[i] = twice[len(once) :] if twice.startswith(once) else once
    return table


def token_texts(tokens: list[int], table: Mapping[int, str], decode: Callable[[list[int]], str]) -> list[str]:
    """Text of each token. A character split over several byte tokens is shown whole at the last of them."""
    texts = [table[i] for i in tokens]
    t = 0
    while t < len(texts):
        stop = t
        while stop < len(texts) and "\ufffd" in texts[stop]:
            stop += 1
        whole = decode(tokens[t:stop]) if stop > t + 1 else "\ufffd"
        if "\ufffd" not in whole:
            texts[t:stop] = [""] * (stop - t - 1) + [whole]
        t = stop + 1
    return texts


def save_episodes(
    path: str | os.PathLike[str],
    episodes: Sequence[Episode],
    rollouts: Rollouts,
    credits: Mapping[str, Any],
    decode: Callable[[list[int]], str],
    *,
    hidden: tuple[str, ...] = (),
    **parts: Any,
) -> Path:
    """Write `collect(episodes, rollouts, credits, decode, **parts)` to `path` (.jsonl.gz), whole or not at all.

    hidden: values to mask (`redact.secrets(config)`); they are masked in texts and in the tokens that spell them.
    The same episodes give the same bytes.
    """
    stored = collect(episodes, rollouts, credits, decode, **parts)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as temporary, open(temporary, "wb") as raw:
        with gzip.GzipFile("", "wb", compresslevel=4, fileobj=raw, mtime=0) as file:
            for record in _records(stored, hidden):
                file.write(json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n")
    return path


def save_step(
    workdir: str | os.PathLike[str],
    step: int,
    episodes: Sequence[Episode],
    rollouts: Rollouts,
    credits: Mapping[str, Any],
    decode: Callable[[list[int]], str],
    config: Any,
    **parts: Any,
) -> Path:
    """`save_episodes` of a training step, its segments by the config's segmenter, as in `rollouts`. credits: algorithm -> [N, S] of the
    trained one; beside it goes what each of `SHOWN_ALGORITHMS` would have given: the leak made visible in the viewer."""
    others = {name: algorithm(name, config.credit).credit(rollouts) for name in SHOWN_ALGORITHMS if name not in credits}
    spans = [segmenter(episode, config.credit.segmenter) for episode in episodes]
    path = episode_file(workdir, step)
    return save_episodes(path, episodes, rollouts, {**credits, **others}, decode, segments=spans, step=step, **parts)


def episode_file(workdir: str | os.PathLike[str], step: int) -> Path:
    """`workdir/episodes/step_000010.jsonl.gz`."""
    return Path(workdir) / FOLDER / f"step_{step:06d}.jsonl.gz"


def latest(workdir: str | os.PathLike[str]) -> Path | None:
    """The file of the last stored step of a run, None when there is none."""
    return max((Path(workdir) / FOLDER).glob("step_*.jsonl.gz"), default=None)


def _records(stored: Stored, hidden: tuple[str, ...]) -> Iterable[dict[str, Any]]:
    """The header, with the text of each id once, and a record an episode."""
    texts: dict[int, str] = {}
    for episode, pieces in zip(stored.episodes, stored.pieces):
        for i, piece in zip(episode.tokens.tolist(), pieces):
            texts.setdefault(i, piece)
    labels = {name: str(np.asarray(values).dtype) for name, values in stored.rollouts.labels.items()}
    head = {"format": FORMAT, "step": stored.step, "count": len(stored.episodes), "labels": labels, "texts": texts}
    yield redact_tree(jsonable(head), hidden)
    for n in range(len(stored.episodes)):
        yield _record(stored, n, texts, hidden)


def _record(stored: Stored, n: int, texts: Mapping[int, str], hidden: tuple[str, ...]) -> dict[str, Any]:
    episode, pieces, rollouts = stored.episodes[n], list(stored.pieces[n]), stored.rollouts
    tokens = episode.tokens.tolist()
    for start, stop in _spans("".join(pieces), pieces, hidden):
        tokens[start:stop] = [HIDDEN_ID] * (stop - start)
        pieces[start:stop] = [MASK, *[""] * (stop - start - 1)]
    plain = {field.name: getattr(episode, field.name) for field in fields(episode) if field.name not in _TOKEN_ARRAYS}
    record = {
        **plain,
        "task": asdict(episode.task),
        "turns": [asdict(turn) for turn in episode.turns],
        "observations": [[asdict(result) for result in results] for results in episode.observations],
        "odd": {t: piece for t, (i, piece) in enumerate(zip(tokens, pieces)) if texts.get(i) != piece},
        "segments": [list(asdict(segment).values()) for segment in stored.segments[n]],
        "row_group": rollouts.group[n],
        "row_kind": rollouts.kind[n],
        "row_tokens": None if rollouts.tokens is None else rollouts.tokens[n],
        "rewards": {name: np.asarray(values)[n] for name, values in rollouts.rewards.items()},
        "labels": {name: np.asarray(values)[n] for name, values in rollouts.labels.items()},
        "credits": {name: values[n] for name, values in stored.credits.items()},
        "series": {name: rows[n] for name, rows in stored.series.items()},
    }
    # Nine digits hold a float32 exactly. Numbers cannot hold a secret, so the long arrays go round the masking.
    logprob = [float(f"{value:.9g}") if math.isfinite(value) else None for value in episode.logprob.tolist()]
    arrays = {"tokens": tokens, "writer": episode.writer.tolist(), "turn": episode.turn.tolist(), "logprob": logprob}
    return redact_tree(jsonable(record), hidden) | arrays


def _spans(text: str, pieces: list[str], hidden: tuple[str, ...]) -> list[tuple[int, int]]:
    """Token ranges whose text spells a hidden value."""
    ends = np.cumsum([len(piece) for piece in pieces])
    spans = []
    for value in hidden:
        at = text.find(value)
        while at >= 0:
            first, last = np.searchsorted(ends, [at, at + len(value) - 1], side="right")
            spans.append((int(first), int(last) + 1))
            at = text.find(value, at + len(value))
    return spans


def jsonable(value: Any) -> Any:
    """The value as plain JSON: arrays as lists, what is not finite as null, anything unknown as its repr."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, np.ndarray | np.generic):
        return jsonable(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(item) for item in value]
    return repr(value)


def load_episodes(path: str | os.PathLike[str]) -> Stored:
    """What `save_episodes` wrote, as the same records (text masked then stays masked).

    Raises ValueError with file and line when the file is damaged or of another format.
    """
    rows: list[dict[str, Any]] = []
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                rows.append(json.loads(line))
        head = rows[0]
        if head["format"] != FORMAT or head["count"] != len(rows) - 1:
            raise ValueError(
                f"format {head['format']} with {len(rows) - 1} of {head['count']} episodes, expected format {FORMAT}"
            )
        return _stored(head, rows[1:])
    except (ValueError, KeyError, IndexError, TypeError, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: after line {len(rows)}: not an episode file of this version ({error!r})") from error


def _stored(head: dict[str, Any], rows: list[dict[str, Any]]) -> Stored:
    def table(name: str, dtype: Mapping[str, str] | None = None) -> dict[str, np.ndarray]:
        names = rows[0][name] if rows else {}
        return {k: np.array([row[name][k] for row in rows], dtype[k] if dtype else np.float64) for k in names}

    rollouts = Rollouts(
        group=np.array([row["row_group"] for row in rows]),
        kind=np.array([row["row_kind"] for row in rows]),
        rewards=table("rewards"),
        labels=table("labels", head["labels"]),
        tokens=None if not rows or rows[0]["row_tokens"] is None else np.array([row["row_tokens"] for row in rows]),
    )
    return Stored(
        episodes=[_episode(row) for row in rows],
        rollouts=rollouts,
        credits=table("credits"),
        segments=[[Segment(*segment) for segment in row["segments"]] for row in rows],
        pieces=[_pieces(row, head["texts"]) for row in rows],
        step=head["step"],
        series={
            name: [np.array(row["series"][name], np.float64) for row in rows] for name in (rows[0]["series"] if rows else {})
        },
    )


def _pieces(row: Mapping[str, Any], texts: Mapping[str, str]) -> list[str]:
    pieces = [texts.get(str(i), "") for i in row["tokens"]]
    for t, piece in row["odd"].items():
        pieces[int(t)] = piece
    return pieces


def _episode(row: dict[str, Any]) -> Episode:
    task = dict(row["task"])
    task["gold_steps"] = [[ToolCall(**call) for call in step] for step in task["gold_steps"]]
    arrays: dict[str, Any] = {name: np.array(row[name], dtype) for name, dtype in _TOKEN_ARRAYS.items()}
    plain = {name: row[name] for name in ("group", "sample", "user_turn", "messages", "end", "temperature", "info")}
    return Episode(
        task=Task(**task),
        turns=[_parsed(turn) for turn in row["turns"]],
        observations=[[Observation(**result) for result in results] for results in row["observations"]],
        **arrays,
        **plain,
    )


def _parsed(turn: dict[str, Any]) -> Parsed:
    def calls(items: list[dict[str, Any]]) -> tuple[ToolCall, ...]:
        return tuple(ToolCall(**call) for call in items)

    def errors(items: list[dict[str, Any]]) -> tuple[CallError, ...]:
        return tuple(CallError(**error) for error in items)

    blocks = tuple(Block(calls(b["calls"]), errors(b["errors"]), b["raw"]) for b in turn["blocks"])
    return Parsed(**{**turn, "calls": calls(turn["calls"]), "errors": errors(turn["errors"]), "blocks": blocks})
