"""What the algorithm's record and the rest of the config ask of each other: no record trains something else than it says.

record = apply_record(config)                # the record's loss fields and updates go into the config
faults(config, processes)                    # lines for slca.validate; [] = they fit
no_room(config, record, shards)              # the same of what depends on the devices
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slca.credit.algorithms import Algorithm


def apply_record(config: Any) -> Algorithm:
    """The algorithm's record; the loss fields that it sets go into the config, and enough sweeps for the updates that it needs."""
    from slca.credit.algorithms import algorithm

    record = algorithm(config.credit.algorithm, config.credit)
    with config.unlocked():
        config.loss.update(dict(record.loss))
        if 0 < config.train.mu * config.train.mini_batches < record.updates:
            config.train.mu = record.updates
    return record


def recorded(c: Any) -> dict[str, Any]:
    """What the algorithm's record sets (`apply_record`), by field; these are no choices of the user's."""
    from slca.credit.algorithms import algorithm

    try:
        return {f"loss.{name}": value for name, value in algorithm(c.credit.algorithm, c.credit).loss.items()}
    except (KeyError, ValueError):  # `faults` says why
        return {}


def faults(c: Any, processes: int = 1) -> list[str]:
    """What does not fit, one line each, naming the field and the remedy. processes: those of the run."""
    from slca.credit.algorithms import algorithm, check
    from slca.credit.focus import PROVIDES
    from slca.learn.terms import make_terms
    from slca.rewards.annotate import CHANNELS, LABELS

    try:
        record = algorithm(c.credit.algorithm, c.credit)
        check(record, CHANNELS, LABELS, PROVIDES[record.focus.probe] if record.focus else (), c.loss.ratio)
        make_terms(record.terms)
    except (KeyError, ValueError) as error:
        return [f"credit.algorithm={c.credit.algorithm!r}: {error.args[0] if error.args else error}"]
    out: list[str] = []
    if record.whole_batch and processes > 1:
        by_norm = not replace(record, options=replace(record.options, norm="zscore")).whole_batch
        field = "credit.norm='batch_std'" if by_norm else f"credit.algorithm={c.credit.algorithm!r}"
        out.append(
            f"{field}: compares the rollouts of the whole batch, of which {processes} processes hold a part each; use one process (with "
            "any number of devices), or choose another"
        )
    if c.rollout.resample and "peer" in record.rule.channels:
        out.append(
            f"rollout.resample={c.rollout.resample}: credit.algorithm={c.credit.algorithm!r} has credit for unsolved groups, from a "
            "probe of the finished batch; use rollout.resample=0"
        )
    return out


def no_room(c: Any, record: Algorithm, shards: int) -> str:
    """What to say where the record needs whole groups and a group of the longest episodes fits no micro-batch; "" = nothing.

    shards: devices of a process that hold different rows; each has `train.micro_rows` of a micro-batch.
    """
    rows, longest = c.train.micro_rows * shards, c.rollout.max_prompt_tokens + c.rollout.max_response_tokens
    a_row = max(c.train.row_lengths) // longest if c.train.pack else 1
    if not record.whole_groups or rows * a_row >= c.rollout.group:
        return ""
    return (
        f"train.micro_rows={c.train.micro_rows}: credit.algorithm={c.credit.algorithm!r} needs a whole group in one micro-batch, and {rows} "
        f"rows ({shards} of the devices here hold different ones) of {max(c.train.row_lengths)} tokens hold {rows * a_row} episodes of "
        f"{longest} tokens, not rollout.group={c.rollout.group}; raise train.micro_rows or train.row_lengths, or lower rollout.group"
    )
