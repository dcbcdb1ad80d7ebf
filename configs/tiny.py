"""SLCA-GRPO from random weights on two CPU cores, nothing downloaded.

    python -m slca.main --config=configs/tiny.py            (also :grpo :toolpo :rltr :slca_paper :mix@0.5 ...)

Hardware: 2 CPU cores, 4 GiB. Time and expected table: bench/RESULTS.md, section "tiny".
To learn in minutes this config restricts itself to short schemas (a few domains), at most 3 tools a prompt and few kinds
of task; the generator does all of them. The cold start is deliberately imperfect: it stops early and a share of its
demonstrations is wrong (`sft.noise`), so that there is something left for RL to put right.
"""

from configs import default


def get_config(arg: str = "slca"):
    c = default.get_config(arg)
    c.tasks.kinds = ("single", "parallel", "distractor", "abstain")
    c.tasks.max_tools = 3

    c.model.width, c.model.layers, c.model.heads, c.model.kv_heads, c.model.head_dim, c.model.ff = 128, 4, 4, 2, 32, 384
    c.model.max_length = 512

    c.rollout.prompts, c.rollout.group = 16, 8
    c.rollout.max_turns, c.rollout.max_calls = 3, 6
    c.rollout.max_prompt_tokens, c.rollout.max_response_tokens, c.rollout.max_turn_tokens = 320, 192, 96
    c.rollout.prompt_buckets, c.rollout.suffix_buckets = (192, 320), (32, 96)
    c.chat.tool_result_tokens = 64

    c.sft.steps, c.sft.batch_rows, c.sft.row_length = 600, 8, 512
    c.sft.noise = 0.4
    c.sft.optimizer, c.sft.lr, c.sft.schedule, c.sft.warmup = "muon", 0.02, "cosine", 0.05

    c.optim.lr, c.optim.b2, c.optim.weight_decay = 5e-4, 0.98, 0.0
    c.train.steps = 80
    c.train.micro_rows, c.train.row_lengths = 8, (512,)
    c.eval.tasks = 256
    c.checkpoint.every, c.checkpoint.sft_every = 20, 200
    return c
