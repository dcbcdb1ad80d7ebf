"""Qwen2.5-0.5B-Instruct on one accelerator, with the scripted simulator and the rule-based summary reward: no servers.

    python -m slca.main --config=configs/0_5b.py

Weights: `hf download Qwen/Qwen2.5-0.5B-Instruct --local-dir models/Qwen2.5-0.5B-Instruct`.
Hardware: one GPU of 40 GB and more, or four TPU v5e chips (compiled, not run: the update 8.7 GiB of 15.75 a chip, 464 slots fit, bench/RESULTS.md,
"Pods"); hours: not measured here.
"""

from configs import default


def get_config(arg: str = "slca"):
    c = default.get_config(arg)
    c.chat.tokenizer = c.model.source = "models/Qwen2.5-0.5B-Instruct"
    c.model.max_length, c.model.dtype, c.model.attention = 4_096, "bfloat16", "auto"
    c.mesh.data, c.mesh.fsdp = 1, -1
    c.rollout.prompts, c.rollout.group, c.rollout.slots, c.rollout.cache_dtype = 32, 8, 256, "bfloat16"
    c.rollout.max_prompt_tokens, c.rollout.max_response_tokens, c.rollout.max_turn_tokens = 2_048, 1_024, 512
    c.rollout.prompt_buckets, c.rollout.suffix_buckets = (1_024, 2_048), (64, 512)
    c.sft.steps, c.sft.batch_rows, c.sft.row_length, c.sft.lr = 200, 16, 4_096, 1e-5
    c.loss.kl_coef = 0.001
    c.train.steps, c.train.micro_rows, c.train.row_lengths = 200, 8, (2_048, 4_096)
    c.eval.every = 20
    return c
