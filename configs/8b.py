"""The paper's recipe for Qwen3-8B-Base: configs/7b.py with other weights.

    python -m slca.main --config=configs/8b.py --config.checkpoint.init=RUN_OF_ITS_COLD_START

Qwen3's template strips old thoughts from the history, so the history is append-only here (`chat.history`).
Hardware: as configs/7b.py; hours: not measured here. HBM a TPU chip, compiled but never run (python -m slca.aot --config=configs/8b.py
--topology=v5p:4x4x4 --slots=search): 592 slots of full length fit v5p:4x4x4, so the 512 of configs/7b.py do; a slot takes 1.1 GiB a chip of its
host, and as much again while decoding (two KV heads a chip; why is not known). The update takes 15.6
GiB of 15.75 on v5e:8x8, where few slots of this length would fit beside the weights (12 GiB, by arithmetic): take v5p, or shorter rows.
"""

import importlib


def get_config(arg: str = "slca"):
    c = importlib.import_module("configs.7b").get_config(arg)
    c.chat.tokenizer = c.model.source = "models/Qwen3-8B-Base"
    c.chat.history = "append"
    return c
