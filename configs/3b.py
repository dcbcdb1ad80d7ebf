"""The paper's recipe for Qwen2.5-3B-Instruct: configs/7b.py with smaller weights.

    python -m slca.main --config=configs/3b.py --config.checkpoint.init=RUN_OF_ITS_COLD_START

Hardware: 32 TPU v5p chips or 16 GPUs of 80 GB; hours: not measured here.
"""

import importlib


def get_config(arg: str = "slca"):
    c = importlib.import_module("configs.7b").get_config(arg)
    c.chat.tokenizer = c.model.source = "models/Qwen2.5-3B-Instruct"
    c.mesh.tensor = 2
    return c
