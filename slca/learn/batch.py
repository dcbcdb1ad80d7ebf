"""Episodes and their credit -> static packed batches on the host, one `Batch` a mini-batch.

Everything a loss divides by is decided here, once, over the whole mini-batch and all processes, and folded into
`loss_weight`. The loss on the device is a plain sum: no aggregation mode can depend on micro-batches, packing or devices
(contract 8; TRL#2647, ms-swift#10117, verl#5366 are what happens otherwise).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from slca.credit.segments import segments
from slca.learn.pieces import Pieces, common_prefix, shared_layout, shares_prompts, whole
from slca.learn.rows import Layout, bucket, fill, layout, padded, ranks, shortest, whole_groups
from slca.types import ABSENT, POLICY, Batch, Episode, Segment

Gather = Callable[[np.ndarray], np.ndarray]  # this process's [K] -> all processes' [processes, K]

CUT_BY_LENGTH = frozenset({"truncated", "context_full"})  # ends that say nothing but that the room ran out
AGGREGATIONS = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant", "per_segment_mean")


class Trained(NamedTuple):
    """What the loss sees of one episode, all [T]: `learnable` tokens the policy sampled, their segment (1 + index, else 0),
    its kind, and credit x focus."""

    learnable: np.ndarray
    segment: np.ndarray
    kind: np.ndarray
    advantage: np.ndarray


def alone(counts: np.ndarray) -> np.ndarray:
    """The gather of a run with one process."""
    return counts[None]


def pack(
    episodes: Sequence[Episode],
    credit: np.ndarray,
    focus: Sequence[np.ndarray] | None = None,
    config: Any = None,
    *,
    data_size: int = 1,
    gather: Gather = alone,
    groups: bool = False,
) -> list[Batch]:
    """Pack a step's episodes into `config.train.mini_batches` batches.

    episodes: N of them, groups together (kept whole within a mini-batch). credit: [N, S], one value a segment.
    focus: per episode [>= T] factors >= 0, None = 1. config: the whole config (credit, loss, train and rollout are read).
    data_size: data-parallel devices of this process; a micro-batch has `train.micro_rows` rows on each.
    gather: all-gather of a small vector, so that divisors and shapes agree between processes.
    groups: keep every group inside one micro-batch and fill `Batch.group` (records with `whole_groups`); group numbers must then
    differ between processes.

    With `train.share_prompts` the rows hold a group's prompt once (`slca.learn.pieces`) and `Batch.prefix` is filled; groups that must be
    kept inside a micro-batch share nothing.

    Returns host batches [B, T]: T the shortest of `train.row_lengths` that holds the longest trained episode, or one
    less than twice as long that computes fewer tokens, B a power of two of micro-batches. Episodes without a trained token
    (unscored, dead, of a group without spread under
    `credit.dead_groups="drop"`, or cut by a length under `loss.mask_truncated`, DAPO's over-long filtering) are left out: they cost nothing and count in no divisor (TRL#6369, #7068).
    Raises ValueError on credit of a wrong shape, non-finite credit or focus of a trained segment, or too long an episode.
    """
    credit = np.asarray(credit, np.float64)
    if credit.ndim != 2 or len(credit) != len(episodes):
        raise ValueError(f"credit has shape {credit.shape}, expected [{len(episodes)}, segments]: one row an episode")
    dropped = dead_groups(episodes, credit) if config.credit.dead_groups == "drop" else frozenset[int]()
    trained = [
        trained_tokens(episode, segments(episode, config.credit.segmenter), credit[n], None if focus is None else focus[n], n)
        if episode.group not in dropped and not (config.loss.mask_truncated and episode.end in CUT_BY_LENGTH)
        else None
        for n, episode in enumerate(episodes)
    ]
    return [
        _mini_batch([episodes[n] for n in members], [trained[n] for n in members], config, data_size, gather, groups)
        for members in mini_batches([episode.group for episode in episodes], config.train.mini_batches)
    ]


def mini_batches(group: Sequence[int], count: int) -> list[np.ndarray]:
    """Indices of `count` mini-batches: whole groups in their order, sizes equal to within one group.

    Raises ValueError when there are fewer groups than mini-batches.
    """
    _, first, inverse = np.unique(np.asarray(group), return_index=True, return_inverse=True)
    order = np.argsort(first)
    if len(order) < count:
        raise ValueError(f"train.mini_batches={count} needs as many groups, got {len(order)}")
    return [np.flatnonzero(np.isin(inverse, part)) for part in np.array_split(order, count)]


def dead_groups(episodes: Sequence[Episode], credit: np.ndarray) -> frozenset[int]:
    """Groups none of whose members has credit: no spread, so no policy gradient."""
    alive = {episode.group for episode, row in zip(episodes, credit, strict=True) if np.any(row != 0)}
    return frozenset(episode.group for episode in episodes) - alive


def trained_tokens(
    episode: Episode, parts: Sequence[Segment], credit: np.ndarray, focus: np.ndarray | None = None, index: int = 0
) -> Trained | None:
    """Labels and advantages of one episode, None when it has nothing to train (unscored or no sampled token).

    A token's advantage is the credit of its own segment times its focus, 0 elsewhere (contract 6; SkyRL#1507 copied one
    step's advantage under another's mask). `index` names the episode in errors.
    """
    learnable = np.asarray(episode.writer) == POLICY
    if not episode.scored or not learnable.any():
        return None
    if learnable[0]:
        raise ValueError(f"episode {index} starts with a sampled token: there is no prompt to predict it from")
    if len(parts) > len(credit):
        raise ValueError(f"episode {index} has {len(parts)} segments, credit has room for {len(credit)}")
    length = len(episode.tokens)
    segment, kind = np.zeros(length, np.int32), np.full(length, ABSENT, np.int32)
    advantage = np.zeros(length, np.float64)
    for k, part in enumerate(parts):
        if not np.isfinite(credit[k]):
            raise ValueError(f"credit of episode {index}, segment {k} is {credit[k]}: unscored segments get 0, not NaN")
        inside = np.arange(part.start, part.stop)
        inside = inside[learnable[inside]]
        segment[inside], kind[inside], advantage[inside] = k + 1, part.kind, credit[k]
    if focus is not None:
        factor = np.asarray(focus, np.float64)[:length]
        if not np.all(np.isfinite(factor[segment > 0]) & (factor[segment > 0] >= 0)):
            raise ValueError(f"focus of episode {index} is negative or not finite at a trained token")
        advantage = np.where(segment > 0, advantage * factor, 0.0)
    return Trained(learnable, segment, kind, advantage)


def loss_weights(trained: Sequence[Trained], loss: Any, limit: int, gather: Gather = alone) -> list[np.ndarray]:
    """Weight of every token, [T] an episode, so that sum(weight * token_loss) is the loss of the whole mini-batch.

    With n_i counted tokens in episode i of N counted episodes (those with n_i > 0), K segments of m_k counted tokens:
    token_mean 1 / sum(n) (DAPO, verl) · seq_mean_token_mean 1 / (N n_i) (GRPO) · seq_mean_token_sum 1 / N ·
    constant 1 / (N L), L = loss.constant or `limit` (Dr. GRPO as in TRL) · per_segment_mean 1 / (K m_k).
    Counted tokens are the learnable ones; with `loss.denominator="active"` only those whose advantage is not 0, and the
    others weigh nothing. All sums run over all processes.
    """
    if loss.aggregation not in AGGREGATIONS:
        raise ValueError(f"loss.aggregation is {loss.aggregation!r}, expected one of {AGGREGATIONS}")
    counted = [t.learnable & (t.advantage != 0) if loss.denominator == "active" else t.learnable for t in trained]
    sizes = [np.bincount(t.segment[mask]) for t, mask in zip(trained, counted, strict=True)]
    here = [sum(int(m.sum()) for m in counted), sum(bool(m.any()) for m in counted), sum(np.count_nonzero(s) for s in sizes)]
    tokens, sequences, parts = np.maximum(gather(np.asarray(here, np.int64)).sum(0), 1)

    def weight(t: Trained, mask: np.ndarray, size: np.ndarray) -> np.ndarray:
        if loss.aggregation == "token_mean":
            each = 1.0 / tokens
        elif loss.aggregation == "seq_mean_token_mean":
            each = 1.0 / (sequences * max(int(mask.sum()), 1))
        elif loss.aggregation == "seq_mean_token_sum":
            each = 1.0 / sequences
        elif loss.aggregation == "constant":
            each = 1.0 / (sequences * (loss.constant or limit))
        else:
            each = 1.0 / (parts * np.maximum(np.append(size, 0)[np.where(mask, t.segment, 0)], 1))
        return np.where(mask, each, 0.0)

    return [weight(t, mask, size) for t, mask, size in zip(trained, counted, sizes, strict=True)]


def _mini_batch(
    episodes: Sequence[Episode], trained: Sequence[Trained | None], config: Any, data_size: int, gather: Gather, groups: bool
) -> Batch:
    kept = [(episode, t) for episode, t in zip(episodes, trained, strict=True) if t is not None]
    weights = loss_weights([t for _, t in kept], config.loss, config.rollout.max_response_tokens, gather)
    group = [episode.group for episode, _ in kept]
    tokens = [np.asarray(episode.tokens) for episode, _ in kept]
    sharing = shares_prompts(config.train, groups)
    prefix = common_prefix(tokens, [int(np.argmax(t.learnable)) for _, t in kept], group) if sharing else None
    place, pieces = _layout([len(t) for t in tokens], group, prefix, config.train, data_size, gather, groups)
    return _batch(
        place,
        pieces,
        tokens=tokens,
        segment=[t.segment for _, t in kept],
        kind=[t.kind for _, t in kept],
        loss_weight=weights,
        advantage=[t.advantage for _, t in kept],
        sampler_logprob=[np.where(t.learnable, episode.logprob, np.nan) for episode, t in kept],
        group=[np.full(len(t), g + 1) for t, g in zip(tokens, group, strict=True)] if groups else None,
        shared=sharing,
    )


def _layout(
    lengths: Sequence[int],
    group: Sequence[int],
    prefix: np.ndarray | None,
    train: Any,
    data_size: int,
    gather: Gather,
    groups: bool,
) -> tuple[Layout, Pieces]:
    """Rows of one mini-batch: the shortest row length that holds the longest episode, or one less than twice as long when that
    leaves fewer tokens to compute.

    Every process takes the shape of the one with the most. prefix: tokens shared in each group, None = nothing is; groups: each kept
    inside one micro-batch, in the shortest rows where that is possible in every process. Raises ValueError where it is in none.
    """
    least = shortest(train.row_lengths, int(gather(np.asarray([max(lengths, default=0)])).max()))
    unit = train.micro_rows * data_size

    def place(row_length: int) -> tuple[Layout, Pieces]:
        if prefix is not None:
            return shared_layout(lengths, prefix, group, row_length)
        if groups:
            return whole_groups(lengths, group, row_length, unit, packed=train.pack), whole(lengths)
        return layout(lengths, row_length, packed=train.pack), whole(lengths)

    def attempt(row_length: int) -> tuple[Layout, Pieces] | ValueError:
        try:
            return place(row_length)
        except ValueError as error:  # a group that no micro-batch of such rows holds; all processes hear of it below
            return error

    # A row twice as long would cost more in attention than it saves. Unpacked rows are shortest best.
    longer = [length for length in sorted(train.row_lengths) if least < length and (groups or length < 2 * least)]
    choices = [least, *(longer if train.pack else [])]
    found = [attempt(length) for length in choices]
    everywhere = gather(np.asarray([-1 if isinstance(f, ValueError) else f[0].rows for f in found]))
    fits = np.flatnonzero(everywhere.min(0) >= 0)
    if not fits.size:
        raise next(
            (f for f in found if isinstance(f, ValueError)),
            ValueError("another process holds a group that fits no micro-batch"),
        )
    rows = everywhere.max(0)
    computed = [-(-int(rows[i]) // unit) * unit * choices[i] for i in fits]
    best = int(fits[0] if groups else fits[np.argmin(computed)])
    layout_, pieces = found[best]  # type: ignore[misc]  # one that fits
    return padded(layout_, bucket(int(rows[best]), unit), unit), pieces


def _batch(
    place: Layout,
    pieces: Pieces,
    *,
    tokens: Sequence[np.ndarray],
    segment: Sequence[np.ndarray],
    kind: Sequence[np.ndarray],
    loss_weight: Sequence[np.ndarray],
    advantage: Sequence[np.ndarray],
    sampler_logprob: Sequence[np.ndarray],
    group: Sequence[np.ndarray] | None = None,
    shared: bool = False,
) -> Batch:
    """Arrays of whole episodes -> rows of their pieces."""
    rank = ranks(place)
    unknown = np.full((place.rows, place.row_length), np.nan, np.float32)

    def rows(values: Sequence[np.ndarray], empty: Any, dtype: Any) -> Any:
        return fill(place, pieces.cut(values), empty, dtype)

    def each(ids: np.ndarray) -> Any:
        return fill(place, [np.full(length, i) for length, i in zip(place.length, ids, strict=True)], 0, np.int32)

    fields: dict[str, Any] = dict(
        tokens=rows(tokens, 0, np.int32),
        positions=rows([np.arange(len(t)) for t in tokens], 0, np.int32),
        episode=each(rank),
        segment=rows(segment, 0, np.int32),
        kind=rows(kind, ABSENT, np.int32),
        loss_weight=rows(loss_weight, 0.0, np.float32),
        advantage=rows(advantage, 0.0, np.float32),
        old_logprob=unknown,
        ref_logprob=unknown.copy(),
        sampler_logprob=rows(sampler_logprob, np.nan, np.float32),
        group=None if group is None else rows(group, 0, np.int32),
        prefix=each(rank[pieces.prompt]) if shared else None,
    )
    return Batch(**fields)


def pack_sft(
    examples: Sequence[tuple[np.ndarray, np.ndarray]], config: Any, *, data_size: int = 1, gather: Gather = alone, seed: int = 0
) -> list[Batch]:
    """Demonstrations -> batches of `sft.batch_rows` packed rows of `sft.row_length` tokens.

    examples: (tokens [T], weights [T] >= 0: 1 where the token is to be learnt, the first of an example never). Rows are
    packed longest first, so their order is shuffled by `seed` before they are cut into batches. loss_weight is the weight
    over the batch's total, advantage 1: with `sft_loss` each batch is a mean over its own learnt tokens. The last
    batch is padded to the same shape with empty rows.
    """
    for n, (tokens, weights) in enumerate(examples):
        if len(tokens) != len(weights) or (len(weights) and weights[0] != 0):
            raise ValueError(f"example {n}: {len(tokens)} tokens, {len(weights)} weights; the first token cannot be learnt")
    place = layout([len(tokens) for tokens, _ in examples], config.sft.row_length)
    unit = config.train.micro_rows * data_size
    count = max(-(-int(gather(np.asarray([place.rows])).max()) // config.sft.batch_rows), 1)
    order = np.random.default_rng(seed).permutation(place.rows)
    batch_of = np.append(np.argsort(order) // config.sft.batch_rows, -1)[place.row]
    batches = []
    for b in range(count):
        members = np.flatnonzero(batch_of == b)
        rows, row = np.unique(place.row[members], return_inverse=True)
        here = Layout(row, place.start[members], place.length[members], len(rows), place.row_length)
        here = padded(here, -(-config.sft.batch_rows // unit) * unit, unit)
        chosen = [examples[int(n)] for n in members]
        total = float(gather(np.asarray([sum(float(np.sum(w)) for _, w in chosen)])).sum())
        batches.append(
            _batch(
                here,
                whole(here.length),
                tokens=[tokens for tokens, _ in chosen],
                segment=[(np.asarray(w) > 0).astype(np.int32) for _, w in chosen],
                kind=[np.full(len(w), ABSENT) for _, w in chosen],
                loss_weight=[np.asarray(w, np.float64) / max(total, 1e-9) for _, w in chosen],
                advantage=[np.ones(len(w)) for _, w in chosen],
                sampler_logprob=[np.full(len(w), np.nan) for _, w in chosen],
            )
        )
    return batches


def padding_share(batch: Batch, unit: int) -> tuple[float, float]:
    """(padding tokens, tokens computed) of a host batch with micro-batches of `unit` rows; empty micro-batches are skipped."""
    micro = np.asarray(batch.episode).reshape(unit, -1, batch.episode.shape[1])
    real = int((micro > 0).sum())
    computed = int((micro > 0).any((0, 2)).sum()) * unit * micro.shape[2]
    return float(computed - real), float(computed)
