"""The paper's cold start of Qwen2.5-7B-Instruct: 42,423 demonstrations, 2 epochs, batch 32, lr 5e-6 cosine, 16,384 tokens.

    python -m slca.main --config=configs/7b_sft.py

A demonstration of more tokens is left out and counted (`sft/too_long`), not cut off.
Nothing is evaluated here, for that needs tool results: configs/7b.py evaluates what it starts from, before its first step and on
the held-out tasks of its own file.
Hardware: 32 TPU v5p chips or 8 GPUs of 80 GB and more; hours: not measured here.
"""

import importlib

from configs import default

BATCH = 32
STEPS = 2 * 42_423 // BATCH


def get_config(arg: str = "slca"):
    c = importlib.import_module("configs.7b").get_config(arg)
    c.tasks.source = "jsonl:data/toucan_sft.jsonl"
    c.tasks.train = 42_423
    c.sgls = default.get_config().sgls  # no simulator and no judge are needed
    c.reward.summary = "rule"
    # As many rows as demonstrations, so that they fit however long they are; rows that packing leaves empty cost next to nothing.
    c.sft.steps, c.sft.demonstrations, c.sft.batch_rows, c.sft.row_length = STEPS, BATCH, BATCH, 16_384
    c.sft.lr, c.sft.schedule, c.sft.warmup = 5e-6, "cosine", 0.1
    c.train.steps, c.eval.splits = 0, ()
    c.checkpoint.sft_every = 100
    return c
