"""A model with random weights: uniform logits, masked by the grammars. The slowest possible `generate`."""

from __future__ import annotations

import numpy as np

from slca.sgls.grammar import Constraint, unpacked, vocabulary
from slca.sgls.local import Generated


def random_model(tokenizer, seed=0):
    """A `generate` callable over `tokenizer` whose every choice is uniform among the allowed tokens."""
    view, rng = vocabulary(tokenizer), np.random.default_rng(seed)

    def generate(prompts, grammars, max_tokens, temperature, seeds=()):
        return [reply(None if grammar is None else Constraint(view, grammar), max_tokens) for grammar in grammars]

    def reply(constraint, max_tokens):
        ids = []
        while len(ids) < max_tokens and not (constraint and constraint.stopped()):
            allowed = unpacked(constraint.mask(), tokenizer.size) if constraint else np.ones(tokenizer.size, bool)
            token = int(rng.choice(np.flatnonzero(allowed)))
            if token in tokenizer.stop_ids:
                break
            ids.append(token)
            if constraint:
                constraint.advance(token)
        return Generated(tokenizer.decode(ids), len(ids), 10)

    return generate
