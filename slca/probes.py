"""What a record's focus must measure on the episodes of a step before credit reaches tokens: teachers and saliency.

    probe = make_probe(config, parts)                       # None when the record has no focus
    found = probe(state.params, episodes, rollouts, step)
    rollouts.rewards.update(found.channels)                 # `peer`, where credit reads it
    focus = focus_of(found, episodes, credit, config)       # goes to `pack`

Probes: `peer` - the same policy shown a rollout of the group (SC-GRPO); `gold` - shown the gold calls (GEAR, CREST); `saliency`,
`ablation` - which tokens the answer hangs on (OAR-G, OAR-P). All use the parameters before the first update of the step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float

from slca.assemble import Parts
from slca.credit.focus import Focus, peer_scores, references
from slca.credit.segments import segments
from slca.learn.loss import kl_penalty
from slca.learn.probe import Answers, Pair, Rows, make_ablation, make_divergence, make_saliency
from slca.learn.rows import bucket, shortest
from slca.learn.sharding import by_rows, row_shards
from slca.types import POLICY, SUMMARY, Episode, Message, Rollouts

GAP_TEMPERATURE = 2.0  # tau of CREST
ROW_UNIT = 64  # teacher rows are this times a power of two long, tokens

PEER_GUIDE = "A reference trajectory for this conversation follows. Use it as a guide.\n\n{}"
GOLD_GUIDE = "The right tool calls for this conversation follow, one step a line. Use them as a guide.\n\n{}"


class Measured(NamedTuple):
    """focus: what reads them. aux: arrays [N, K] over the response tokens of each episode (`reference` [N]); mask: those that are trained.

    channels: reward channels that the measurement gives; counts: numbers for the log.
    """

    focus: Focus
    aux: dict[str, np.ndarray]
    mask: Bool[np.ndarray, "N K"]
    channels: dict[str, np.ndarray]
    counts: dict[str, float]


Probe = Callable[[Any, Sequence[Episode], Rollouts, int], Measured]


def make_probe(config: Any, parts: Parts, params_at: Any = None) -> Probe | None:
    """The probe of the run's record: (params, episodes, rollouts, step) -> `Measured`; None when its credit is uniform."""
    focus = parts.algorithm.focus
    if focus is None:
        return None
    place = {"mesh": parts.mesh, "params_at": params_at}
    if focus.probe in ("saliency", "ablation"):
        return _importance_probe(config, parts, focus, place)
    return _teacher_probe(config, parts, focus, place)


def focus_of(
    measured: Measured, episodes: Sequence[Episode], credit: Float[np.ndarray, "N S"], config: Any
) -> list[Float[np.ndarray, "T"]]:
    """Factors of every token of every episode, as `pack` takes them; 1 before the response."""
    sign = np.zeros(measured.mask.shape)
    for n, episode in enumerate(episodes):
        for k, part in enumerate(segments(episode, config.credit.segmenter)):
            first = episode.prompt_length
            sign[n, part.start - first : part.stop - first] = np.sign(credit[n, k])
    factor = measured.focus({**measured.aux, "sign": sign}, measured.mask)
    return [
        np.concatenate([np.ones(e.prompt_length), row[: len(e.tokens) - e.prompt_length]])
        for e, row in zip(episodes, factor, strict=True)
    ]


# Teachers


def _teacher_probe(config: Any, parts: Parts, focus: Focus, place: dict[str, Any]) -> Probe:
    divergence = make_divergence(parts.hidden, parts.unembed, config, **place)
    unit = config.train.micro_rows * row_shards(parts.mesh)
    reads_peer = "peer" in parts.algorithm.rule.channels

    def probe(params: Any, episodes: Sequence[Episode], rollouts: Rollouts, step: int) -> Measured:
        mask = trained_mask(episodes, config.rollout.max_response_tokens)
        reference: np.ndarray = np.full(len(episodes), -1)
        unsolved = np.zeros(len(episodes), bool)
        if focus.probe == "peer":
            solved = np.where(mask.any(1), rollouts.rewards["solved"], np.nan)
            reference = references(rollouts.group, solved, config.run.seed + step)
            unsolved = (reference >= 0) & ~np.isin(rollouts.group, rollouts.group[np.nan_to_num(solved) > 0])
            if not reads_peer:  # credit of another record: there is nothing to learn from a failed peer
                reference = np.where(unsolved, -1, reference)
        taught = np.flatnonzero(mask.any(1) if focus.probe == "gold" else reference >= 0)
        contexts = {
            n: teacher_context(episodes[n], parts.template, episodes[j] if j >= 0 else None)
            for n, j in zip(taught.tolist(), reference[taught].tolist(), strict=True)
        }
        size = {n: len(prompt) + len(episodes[n].tokens) - episodes[n].prompt_length for n, prompt in contexts.items()}
        kept = [n for n in contexts if size[n] <= parts.model.max_length]
        reference = np.where(np.isin(np.arange(len(episodes)), kept), reference, -1)
        aux: dict[str, np.ndarray] = {name: np.zeros(mask.shape) for name in ("teacher_kl", "entropy", "gap", "surprisal")}
        if kept:
            pair = pairs([episodes[n] for n in kept], [contexts[n] for n in kept], config, unit, parts.model.max_length)
            found = jax.device_get(divergence(params, params, put_rows(pair, parts.mesh)))
            kl, logprob, teacher, entropy = (np.asarray(x, np.float64)[: len(kept)] for x in found)
            values = {"teacher_kl": kl, "entropy": entropy, "gap": (teacher - logprob) / GAP_TEMPERATURE, "surprisal": -logprob}
            for name, value in values.items():
                aux[name][kept] = np.where(mask[kept], value, 0.0)
        aux["reference"] = reference
        channels = {}
        if reads_peer:
            weight = focus(aux, mask)
            rows = [row[own] for row, own in zip(weight, mask, strict=True)]
            channels["peer"] = peer_scores(rows, np.where(unsolved, reference, -1))
        counts = {"taught": float(len(kept)), "too_long": float(len(taught) - len(kept))}
        return Measured(focus, aux, mask, channels, counts)

    return probe


def teacher_context(episode: Episode, template: Any, reference: Episode | None) -> list[int]:
    """Prompt ids of the episode's task with a guide in its system message: the reference's trajectory, or the gold calls.

    The guide is content like any other: it can hold no control token (contract 2).
    """
    if reference is None:
        steps = [
            json.dumps([{"name": c.name, "arguments": dict(c.arguments)} for c in step]) for step in episode.task.gold_steps
        ]
        guide = GOLD_GUIDE.format("\n".join(steps) or "No call is right here.")
    else:
        guide = PEER_GUIDE.format("\n".join(map(_line, reference.messages[len(reference.task.messages) :])))
    messages = list(episode.task.messages)
    if messages and messages[0]["role"] == "system":
        messages[0] = Message(role="system", content=messages[0]["content"] + "\n\n" + guide)
    else:
        messages.insert(0, Message(role="system", content=guide))
    ids: list[int] = template.prompt(messages, episode.task.tools)
    return ids


def _line(message: Message) -> str:
    calls = [
        json.dumps({key: call["function"][key] for key in ("name", "arguments")}) for call in message.get("tool_calls", [])
    ]
    return "\n".join([f"{message['role']}: {message.get('content', '')}", *(f"call: {call}" for call in calls)])


# Saliency


def _importance_probe(config: Any, parts: Parts, focus: Focus, place: dict[str, Any]) -> Probe:
    if focus.probe == "saliency":
        measure: Any = make_saliency(parts.model, parts.unembed, config, **place)
    else:
        ablation = make_ablation(parts.hidden, parts.unembed, config, **place)
        measure = lambda params, rows, key: ablation(params, rows)  # noqa: E731
    unit = config.train.micro_rows * row_shards(parts.mesh)

    def probe(params: Any, episodes: Sequence[Episode], rollouts: Rollouts, step: int) -> Measured:
        mask = trained_mask(episodes, config.rollout.max_response_tokens)
        rows = answers(episodes, config, unit)
        key = jax.random.fold_in(jax.random.key(config.run.seed), step)
        found = np.asarray(jax.device_get(measure(params, put_rows(rows, parts.mesh), key)), np.float64)
        importance = np.full(mask.shape, np.nan)
        for n, episode in enumerate(episodes):
            response = found[n, episode.prompt_length : len(episode.tokens)]
            importance[n, : len(response)] = response
        return Measured(focus, {"importance": importance}, mask, {}, {"measured": float(np.isfinite(importance).any(1).sum())})

    return probe


def answer_span(episode: Episode, segmenter: str) -> tuple[int, int] | None:
    """[start, stop) of the answer that reasoning is held against: the last summary, else the last segment; None without any."""
    parts = segments(episode, segmenter)
    last = [part for part in parts if part.kind == SUMMARY][-1:] or parts[-1:]
    return (last[0].start, last[0].stop) if last else None


def answers(episodes: Sequence[Episode], config: Any, unit: int) -> Answers:
    """The whole episodes, one a row: trained tokens before the answer are the reasoning. Dead episodes have neither."""
    length = shortest(config.train.row_lengths, max(len(episode.tokens) for episode in episodes))
    tokens, episode_of = _stack([episode.tokens for episode in episodes], length, unit)
    reasoning, answer = np.zeros(tokens.shape, bool), np.zeros(tokens.shape, bool)
    for n, episode in enumerate(episodes):
        span = answer_span(episode, config.credit.segmenter) if episode.scored else None
        if span:
            reasoning[n, : span[0]] = np.asarray(episode.writer[: span[0]]) == POLICY
            answer[n, span[0] : span[1]] = True
    return Answers(tokens, episode_of, reasoning, answer)  # type: ignore[arg-type]


# KL to the reference


def make_segment_kl(config: Any, parts: Parts, params_at: Any = None) -> Callable[..., Float[np.ndarray, "N S"]]:
    """(params, reference, episodes, S) -> estimates of KL(policy || reference) summed over each segment, nats (`loss.kl`).

    Of its value token by token: a gradient (`+`) or a whole rollout (`_sequence`) means nothing here.
    """
    kind = config.loss.kl.rstrip("+").removesuffix("_sequence")
    divergence = make_divergence(parts.hidden, parts.unembed, config, mesh=parts.mesh, params_at=params_at)
    unit = config.train.micro_rows * row_shards(parts.mesh)

    def segment_kl(params: Any, reference: Any, episodes: Sequence[Episode], width: int) -> Float[np.ndarray, "N S"]:
        prompts = [episode.tokens[: episode.prompt_length] for episode in episodes]
        pair = pairs(episodes, prompts, config, unit, parts.model.max_length)
        found = divergence(params, reference, put_rows(pair, parts.mesh))
        kl = np.asarray(kl_penalty(found.logprob, found.teacher_logprob, kind), np.float64)
        out = np.zeros((len(episodes), width))
        for n, episode in enumerate(episodes):
            first = episode.prompt_length
            for k, part in enumerate(segments(episode, config.credit.segmenter)):
                out[n, k] = kl[n, part.start - first : part.stop - first].sum()
        return out

    return segment_kl


# Rows


def trained_mask(episodes: Sequence[Episode], width: int) -> Bool[np.ndarray, "N K"]:
    """Which of the first `width` response tokens of each episode are trained: sampled, of an episode that has a score."""
    mask = np.zeros((len(episodes), width), bool)
    for n, episode in enumerate(episodes):
        if episode.scored:
            response = np.asarray(episode.writer[episode.prompt_length :]) == POLICY
            mask[n, : len(response)] = response
    return mask


def pairs(episodes: Sequence[Episode], contexts: Sequence[Any], config: Any, unit: int, limit: int) -> Pair:
    """The responses behind their own prompts and behind `contexts`, padded to few shapes (rows `unit` x a power of two)."""
    responses = [episode.tokens[episode.prompt_length :] for episode in episodes]
    taught = [np.concatenate([context, response]) for context, response in zip(contexts, responses, strict=True)]
    length = min(bucket(max(map(len, taught)), ROW_UNIT), limit)
    student = shortest(config.train.row_lengths, max(len(episode.tokens) for episode in episodes))
    return Pair(
        _rows([episode.tokens for episode in episodes], [episode.prompt_length for episode in episodes], student, unit),
        _rows(taught, [len(context) for context in contexts], length, unit),
        _stack(responses, config.rollout.max_response_tokens, unit)[0],  # type: ignore[arg-type]
    )


def _rows(texts: Sequence[np.ndarray], starts: Sequence[int], length: int, unit: int) -> Rows:
    tokens, episode = _stack(texts, length, unit)
    start = np.ones(len(tokens), np.int32)
    start[: len(starts)] = starts
    return Rows(tokens, episode, start)  # type: ignore[arg-type]


def _stack(texts: Sequence[np.ndarray], length: int, unit: int) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, 1 where there are any) [B, length], right-padded, B `unit` times a power of two."""
    tokens = np.zeros((bucket(len(texts), unit), length), np.int32)
    inside = np.zeros_like(tokens)
    for row, text in enumerate(texts):
        tokens[row, : len(text)], inside[row, : len(text)] = text, 1
    return tokens, inside


def put_rows(rows: Any, mesh: Any) -> Any:
    return rows if mesh is None else jax.device_put(rows, by_rows(mesh))
