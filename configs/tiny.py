"""SLCA-GRPO from random weights on two CPU cores, nothing downloaded.

    python -m slca.main --config=configs/tiny.py            (also :grpo :toolpo :rltr :slca_paper :mix@0.5 ...)

Hardware: 2 CPU cores, 4 GiB. Time and expected table: bench/RESULTS.md, section "tiny".
To learn in minutes this config restricts itself: two domains of the built-in catalogue (8 tools, and 2 never seen in
training), at most 2 short schemas a prompt, single calls with and without a distractor; the generator does all the rest.
The cold start is deliberately imperfect: 45 % of its demonstrated assistant turns are made wrong (`sft.noise`: another
tool, an argument left out, a wrong value, a call made twice, a wrong fact), so that sampling from the model is much worse
than its best guess and RL has something to put right.
"""

from configs import default


def get_config(arg: str = "slca"):
    c = default.get_config(arg)
    c.tasks.domains, c.tasks.kinds = ("weather", "home"), ("single", "distractor")
    c.tasks.max_tools, c.tasks.made_up = 2, 0.5

    c.model.width, c.model.layers, c.model.heads, c.model.kv_heads, c.model.head_dim, c.model.ff = 96, 4, 4, 2, 24, 256
    c.model.max_length = 512

    c.rollout.prompts, c.rollout.group, c.rollout.slots = 6, 8, 64
    c.rollout.max_turns, c.rollout.max_calls = 3, 6
    c.rollout.max_prompt_tokens, c.rollout.max_response_tokens, c.rollout.max_turn_tokens = 192, 128, 96
    c.rollout.prompt_buckets, c.rollout.suffix_buckets = (128, 192), (32, 96)
    c.chat.tool_result_tokens = 64

    c.sft.steps, c.sft.batch_rows, c.sft.row_length = 1400, 6, 320
    c.sft.noise = 0.45
    c.sft.optimizer, c.sft.lr, c.sft.schedule, c.sft.warmup = "muon", 0.02, "cosine", 0.05

    c.optim.lr, c.optim.warmup, c.optim.b2, c.optim.weight_decay = 2e-4, 0.034, 0.98, 0.0
    c.train.steps = 150
    c.train.micro_rows, c.train.row_lengths, c.train.share_prompts = 1, (384, 512), True
    c.eval.tasks = 192
    c.checkpoint.every, c.checkpoint.sft_every = 25, 350
    c.report.episodes_every = 25
    return c
