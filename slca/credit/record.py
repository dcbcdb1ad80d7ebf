"""What an algorithm is: a frozen record of credit, focus and loss, and how records are joined and checked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from slca.credit.credit import ALL_OPTIONS, DEFAULTS, Credit, Options
from slca.credit.estimators import outcome
from slca.credit.focus import Focus
from slca.types import Rollouts

GRPO = outcome("total")


@dataclass(frozen=True)
class Algorithm:
    """One entry of the table. `record.credit(rollouts)` -> float64 [N, S]; everything else is data for the learner.

    doc: paper, equation, what is published and what is inferred. focus: None = every token of a segment alike.
    loss: fields of `config.loss` the record sets. terms: extra loss terms by name with their constants
    (llds {weight}, search_sapo {weight, threshold}, rebel {eta}). locked: a kind's tokens must never feel the other kind's
    rewards, which a sequence-level ratio would break. whole_groups: a micro-batch must hold complete groups.
    updates: optimiser steps on one rollout batch that it needs at least (a term or a clipping may be silent at the old policy).
    at: the record with its one parameter set (`name@x`). options: the part of `config.credit` the arithmetic reads.
    """

    name: str
    doc: str
    rule: Credit = GRPO
    focus: Focus | None = None
    loss: Mapping[str, Any] = field(default_factory=dict)
    terms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    locked: bool = False
    whole_groups: bool = False
    updates: int = 1
    at: Callable[[float], Algorithm] | None = None
    options: Options = DEFAULTS

    def credit(self, rollouts: Rollouts) -> Float[np.ndarray, "N S"]:
        """Credit of each segment; 0 for absent segments and unscored rollouts. Raises KeyError for a missing channel."""
        return self.rule(rollouts, self.options)

    @property
    def needs(self) -> tuple[str, ...]:
        """Channels, labels and aux arrays this record reads."""
        return (*self.rule.channels, *self.rule.labels, *(self.focus.aux if self.focus else ()))

    @property
    def whole_batch(self) -> bool:
        """Whether it compares rollouts of different groups, and so needs all of the batch in one process."""
        own = self.options.norm == "batch_std" and "norm" in self.rule.options
        return own or self.rule.whole_batch or (self.focus is not None and self.focus.whole_batch)

    @property
    def unread(self) -> dict[str, Any]:
        """The options that differ from their defaults and that this record does not read."""
        given = {name: getattr(self.options, name) for name in ALL_OPTIONS if name not in self.rule.options}
        return {name: value for name, value in given.items() if value != getattr(DEFAULTS, name)}


def join(base: Algorithm, other: Algorithm) -> Algorithm:
    """`base+other`: the credit of `base` with the focus, loss fields and loss terms of `other`.

    Raises ValueError when `other` adds nothing, both set the same thing, or the ratio would break `base`'s lock.
    """
    name = f"{base.name}+{other.name}"
    if other.focus is None and not other.loss and not other.terms:
        raise ValueError(f"{name}: {other.name} only changes the credit, which {base.name} already decides")
    if base.focus is not None and other.focus is not None:
        raise ValueError(f"{name}: both bring a focus")
    clash = sorted(set(base.loss) & set(other.loss) | set(base.terms) & set(other.terms))
    if clash:
        raise ValueError(f"{name}: both set {', '.join(clash)}")
    joined = replace(
        base, name=name, doc=f"{base.doc} With the focus and loss of {other.name}: {other.doc}", focus=base.focus or other.focus,
        loss={**base.loss, **other.loss}, terms={**base.terms, **other.terms}, at=None,
        whole_groups=base.whole_groups or other.whole_groups, updates=max(base.updates, other.updates),
    )  # fmt: skip
    check_lock(joined, str(joined.loss.get("ratio", "token")))
    return joined


def check_lock(record: Algorithm, ratio: str) -> None:
    """Raises ValueError for a sequence-level ratio, or a regression of whole rollouts, under segment-locked credit.

    The gradient of a sequence ratio spreads every token's advantage over the whole rollout, so summary rewards would reach
    tool tokens again (0.04 on a 4 x 8 example). REBEL's residual is one number a rollout: the same leak.
    """
    if record.locked and record.whole_groups:
        raise ValueError(f"{record.name}: rebel regresses whole rollouts on one reward each, which breaks the segment lock")
    if record.locked and ratio == "sequence":
        raise ValueError(
            f"{record.name}: loss.ratio=sequence breaks the segment lock (its gradient spreads each advantage over the whole "
            "rollout); use token or segment"
        )


def check(
    record: Algorithm, channels: Collection[str], labels: Collection[str] = (), aux: Collection[str] = (), ratio: str = "token"
) -> None:
    """Raises ValueError before sampling starts when the run does not provide what `record` reads, naming what is missing.

    ratio: the run's `loss.ratio`; a record's own `loss["ratio"]` wins over it.
    """
    missing = sorted(set(record.needs) - {*channels, *labels, *aux})
    if missing:
        raise ValueError(f"credit.algorithm={record.name!r} needs {', '.join(missing)}, which nothing in this run provides")
    check_lock(record, str(record.loss.get("ratio", ratio)))
