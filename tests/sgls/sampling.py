"""A model with random weights: uniform logits, masked by the grammars. The slowest possible `generate`."""

from __future__ import annotations

import numpy as np

from slca.sgls.grammar import Constraint, unpacked, vocabulary
from slca.sgls.local import Generated


def random_model(tokenizer, seed=0):
    """A `generate` callable over `tokenizer` whose every choice is uniform among the allowed tokens."""
    view, rng = vocabulary(tokenizer), np.random.default_rng(seed)

    def generate(prompts, grammars, max_tokens, temperature):
        constraint = Constraint(view, grammars)
        rows = [[] for _ in prompts]
        done = np.zeros(len(prompts), bool)
        for _ in range(max_tokens):
            allowed = unpacked(constraint.mask(), tokenizer.size)
            noise = np.where(allowed, rng.random(allowed.shape), -1.0)
            tokens = noise.argmax(-1)
            for b, token in enumerate(tokens):
                if not done[b]:
                    rows[b].append(int(token))
            done |= np.isin(tokens, tokenizer.stop_ids)
            constraint.advance(tokens)
            if done.all():
                break
        ends = [row[:-1] if row[-1] in tokenizer.stop_ids else row for row in rows]
        return [Generated(tokenizer.decode(ids), len(row), 10) for ids, row in zip(ends, rows)]

    return generate
