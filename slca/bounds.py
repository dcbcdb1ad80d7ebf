"""What fields of a config may hold, one table a kind of rule; `slca.validate` applies them."""

CHOICES = {
    "chat.wire": ("hermes", "llama_json", "llama_python"),
    "chat.history": ("template", "append"),
    "model.family": ("qwen2", "qwen3", "llama", "gemma3"),
    "model.dtype": ("float32", "bfloat16"),
    "model.attention": ("auto", "xla", "blockwise", "splash", "cudnn"),
    "model.remat": ("none", "block", "dots"),
    "rollout.cache_dtype": ("float32", "bfloat16"),
    "sgls.backend": ("scripted", "jax", "openai"),
    "reward.combine": ("additive", "gated", "multiplicative"),
    "reward.matching": ("greedy", "hungarian"),
    "reward.value_eq": ("loose", "strict", "typed"),
    "reward.parallel": ("first_step", "all_steps"),
    "reward.blocks": ("turn", "tag"),
    "reward.abstain": ("sane", "paper"),
    "reward.summary": ("rule", "judge"),
    "reward.judge_failure": ("exclude", "zero"),
    "reward.checker": ("rule", "judge"),
    "reward.roles": ("rule", "judge"),
    "reward.execution": ("hierr", "solved", "none"),
    "reward.efficiency": ("none", "dup_penalty", "turn_cost"),
    "credit.segmenter": ("content", "position"),
    "credit.presence": ("exclude", "floor", "none"),
    "credit.omission": ("route_summary", "route_all", "subtract"),
    "credit.omission_test": ("parsed", "tag"),
    "credit.norm": ("zscore", "center", "rloo", "batch_std"),
    "credit.dead_groups": ("keep", "drop"),
    "loss.ratio": ("token", "segment", "sequence"),
    "loss.policy": ("clip", "cispo"),
    "loss.aggregation": ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant", "per_segment_mean"),
    "loss.denominator": ("learnable", "active"),
    "loss.kl": ("k1", "k2", "k3", "k1+", "k3+", "k2_sequence"),
    "loss.correction": ("none", "tis", "mis"),
    "optim.name": ("adamw", "adafactor", "muon"),
    "optim.schedule": ("constant", "cosine", "linear"),
    "sft.optimizer": ("adamw", "adafactor", "muon"),
    "sft.schedule": ("constant", "cosine", "linear"),
}

# Fields that count or measure something and must be positive.
POSITIVE = (
    "tasks.max_tools", "tasks.train", "chat.tool_result_tokens", "chat.max_calls_per_turn", "model.width", "model.layers",
    "model.heads", "model.kv_heads", "model.head_dim", "model.ff", "model.max_length", "rollout.prompts", "rollout.max_turns",
    "rollout.max_turn_tokens", "rollout.max_response_tokens", "rollout.max_prompt_tokens", "rollout.slots", "rollout.decode_steps",
    "rollout.tool_threads", "rollout.tool_timeout", "credit.std_floor", "train.mu", "train.mini_batches", "train.micro_rows",
    "train.logprob_bytes", "eval.tasks", "model.lora.alpha", "checkpoint.keep", "sft.batch_rows", "sft.row_length",
)  # fmt: skip
NOT_NEGATIVE = (
    "run.watchdog_seconds",
    "train.steps", "sft.steps", "sft.demonstrations", "optim.warmup", "eval.every", "checkpoint.every", "checkpoint.sft_every",
    "loss.kl_coef", "loss.entropy_coef",
    "reward.kl_coef", "reward.overlong_penalty", "reward.summary_noise", "rollout.resample", "rollout.shared_slots", "report.gradient_every", "optim.clip_norm",
    "optim.weight_decay", "sft.weight_decay", "model.lora.rank", "rollout.max_calls", "credit.tool_weight", "credit.summary_weight",
    "reward.format", "reward.name", "reward.key", "reward.value", "reward.parallel_weight", "reward.process_weight",
    "reward.summary_weight", "reward.repeat_penalty", "reward.error_penalty", "reward.efficiency_cost",
)  # fmt: skip
LENGTHS = ("rollout.prompt_buckets", "rollout.suffix_buckets", "train.row_lengths")
RANGES = {
    "sft.warmup": (0, 1),
    "optim.b1": (0, 1), "optim.b2": (0, 1), "optim.eps": (1e-30, 1), "loss.clip_low": (0, 1), "loss.clip_high": (0, 1e6),
    "loss.constant": (0, 1e9), "loss.correction_cap": (1e-6, 1e6), "credit.ddof": (0, 2), "credit.eps": (0, 1),
    "run.seed": (0, 2**31), "tasks.train": (1, 2**40), "eval.seed": (0, 2**31), "reward.judge_retries": (0, 100), "reward.judge_concurrency": (1, 10_000),
    "report.episodes_every": (0, 10**9), "rollout.max_malformed": (0, 10**9), "rollout.max_repeats": (0, 10**9),
    "chat.tool_result_tokens": (32, 10**7), "model.vocab": (0, 10**8), "model.rope_theta": (1, 1e12),
    "reward.summary_noise_rho": (-1, 1), "reward.summary_noise": (0, 1e6), "reward.judge_timeout": (1e-3, 1e9),
    "reward.omission_penalty": (-1e6, 1e-9), "rollout.temperature": (1e-3, 1e3), "model.lora.rank": (0, 2**16),
}  # fmt: skip
SHARES = ("tasks.made_up", "sft.noise", "reward.overlong_share")
