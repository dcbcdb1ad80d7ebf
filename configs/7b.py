"""The paper's recipe: Qwen2.5-7B-Instruct after its cold start (configs/7b_sft.py), SLCA-GRPO on a pod or GPUs.

    python -m slca.main --config=configs/7b.py --config.checkpoint.init=runs/7b_sft-slca     (:slca_paper :grpo :toolpo :rltr)

Weights: `hf download Qwen/Qwen2.5-7B-Instruct --local-dir models/Qwen2.5-7B-Instruct`.
Needs two OpenAI-compatible servers (launch/simulator.sh): the simulator and the judge.
Hardware: 64 TPU chips (v5p:4x4x4, v6e:8x8, v5e:8x8) or 32 GPUs of 80 GB and more, apart from the servers (the paper: 32 x H20).
HBM a TPU chip, compiled but never run (bench/RESULTS.md, "Pods"; python -m slca.aot --config=configs/7b.py --topology=v5p:4x4x4):
the update 10.1 GiB of 95.7 on v5p, 10.0 of 31.3 on v6e, 12.6 of 15.75 on v5e; slots of full length that fit: 2,976, 640, 192. The
512 of this file need v5p or v6e: on v5e set --config.rollout.slots=192.
Numbers from the paper: 31,818 rows, 128 prompts x 16 rollouts, 4 optimiser steps a rollout batch, one epoch = 248 steps,
lr 1e-6, k3 KL 0.001, prompt 24,576 + response 8,192 tokens. The defaults here keep the project's safe behaviour;
`:slca_paper` reproduces the published one.
"""

from configs import default

MODEL = "models/Qwen2.5-7B-Instruct"


def get_config(arg: str = "slca"):
    c = default.get_config(arg)
    c.tasks.source = "jsonl:data/toucan_rl.jsonl"
    c.tasks.train = 31_818
    c.chat.tokenizer = c.model.source = MODEL
    c.chat.tool_result_tokens = 1024
    c.model.max_length, c.model.dtype, c.model.attention = 32_768, "bfloat16", "auto"
    c.mesh.data, c.mesh.fsdp, c.mesh.tensor = 1, -1, 4

    c.rollout.prompts, c.rollout.group = 128, 16
    c.rollout.max_turns, c.rollout.max_calls = 7, 7 * c.chat.max_calls_per_turn  # the paper's 20 calls are those of one turn
    c.rollout.max_prompt_tokens, c.rollout.max_response_tokens, c.rollout.max_turn_tokens = 24_576, 8_192, 8_192
    c.rollout.prompt_buckets, c.rollout.suffix_buckets = (2_048, 8_192, 24_576), (64, 512, 2_048)
    c.rollout.slots, c.rollout.decode_steps, c.rollout.cache_dtype = 512, 64, "bfloat16"
    c.rollout.tool_threads, c.rollout.tool_timeout = 300, 1_800.0
    c.run.watchdog_seconds = 3_600.0

    c.sgls.backend, c.sgls.url, c.sgls.model = "openai", "http://127.0.0.1:8001/v1", "Qwen3-235B-A22B-Instruct-2507"
    c.sgls.concurrency = 300
    c.reward.summary, c.reward.judge_url, c.reward.judge_model = "judge", "http://127.0.0.1:8002/v1", "gpt-oss-120b"
    c.reward.judge_concurrency = 300

    c.loss.kl_coef, c.loss.kl = 0.001, "k3"
    c.optim.lr = 1e-6
    c.train.steps, c.train.mini_batches, c.train.micro_rows = 248, 4, 1
    c.train.row_lengths, c.train.logprob_bytes = (8_192, 32_768), 512 * 2**20
    c.eval.every, c.eval.splits, c.eval.tasks = 10, ("heldout_tasks",), 1_000
    c.eval.temperatures = (0.0,)
    c.checkpoint.every = 10
    return c
