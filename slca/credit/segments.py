"""Segments of an episode, from who wrote each token and what the turns parsed to. Text is never searched (contract 3)."""

from __future__ import annotations

import numpy as np

from slca.types import POLICY, SUMMARY, TOOL, Episode, Segment

SEGMENTERS = ("content", "position")


def segments(episode: Episode, how: str = "content") -> list[Segment]:
    """The trained spans of `episode` in token order; they partition `writer == POLICY` exactly.

    content: one segment an assistant turn. A turn that calls, or tries to, is TOOL with its reasoning and preamble; any
    other turn is SUMMARY. Also right for rollouts cut off on a call and for several final answers.
    position: maximal runs of policy tokens as in the released code (arXiv 2609.29050): the last run is SUMMARY, the
    earlier ones TOOL, a single run is SUMMARY whatever it holds.

    Raises ValueError for an unknown `how`.
    """
    if how not in SEGMENTERS:
        raise ValueError(f"credit.segmenter: {how!r} is not one of {', '.join(SEGMENTERS)}")
    policy = episode.writer == POLICY
    label = policy.astype(np.int32) if how == "position" else np.where(policy, episode.turn.astype(np.int32) + 1, 0)
    if not label.size:
        return []
    cuts = np.flatnonzero(label[1:] != label[:-1]) + 1
    starts = [0, *cuts.tolist()]
    stops = [*cuts.tolist(), label.size]
    runs = [(start, stop) for start, stop in zip(starts, stops) if label[start]]
    kinds = _by_position(len(runs)) if how == "position" else [_by_content(episode, start) for start, _ in runs]
    return [Segment(kind, start, stop, int(episode.turn[start])) for kind, (start, stop) in zip(kinds, runs)]


def _by_position(runs: int) -> list[int]:
    return [TOOL] * (runs - 1) + [SUMMARY] * min(runs, 1)


def _by_content(episode: Episode, start: int) -> int:
    turn = int(episode.turn[start])
    # A row that died before its last turn was parsed is unscored; its kind no longer matters.
    return TOOL if turn < len(episode.turns) and episode.turns[turn].attempted else SUMMARY
