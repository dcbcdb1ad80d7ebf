"""The paper's cold start of Qwen2.5-7B-Instruct: 42,423 demonstrations, 2 epochs, batch 32, lr 5e-6 cosine, cutoff 16,384.

    python -m slca.main --config=configs/7b_sft.py

Nothing is evaluated here, for that needs tool results: configs/7b.py evaluates what it starts from, before its first step and on
the held-out tasks of its own file.
Hardware: 32 TPU v5p chips or 8 GPUs of 80 GB and more; hours: not measured here.
"""

import importlib

from configs import default

STEPS = 2 * 42_423 // 32


def get_config(arg: str = "slca"):
    c = importlib.import_module("configs.7b").get_config(arg)
    c.tasks.source = "jsonl:data/toucan_sft.jsonl"
    c.tasks.train = 42_423
    c.sgls = default.get_config().sgls  # no simulator and no judge are needed
    c.reward.summary = "rule"
    c.sft.steps, c.sft.batch_rows, c.sft.row_length = STEPS, 32, 16_384
    c.sft.lr, c.sft.schedule, c.sft.warmup = 5e-6, "cosine", 0.1
    c.train.steps, c.eval.splits = 0, ()
    return c
