"""The paper's recipe for Qwen3-8B-Base: configs/7b.py with other weights.

    python -m slca.main --config=configs/8b.py --config.checkpoint.init=RUN_OF_ITS_COLD_START

Qwen3's template strips old thoughts from the history, so the history is append-only here (`chat.history`).
Hardware: as configs/7b.py; hours: not measured here.
"""

import importlib


def get_config(arg: str = "slca"):
    c = importlib.import_module("configs.7b").get_config(arg)
    c.chat.tokenizer = c.model.source = "models/Qwen3-8B-Base"
    c.chat.history = "append"
    return c
