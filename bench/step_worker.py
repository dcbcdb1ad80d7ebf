"""One contender of `bench.step`, in a process (and often an interpreter) of its own.

    python bench/step_worker.py WHO SIZE NEW      # WHO: ours | trl | tunix

Single-turn GRPO from random weights: 8 prompts of 64 tokens, 4 completions each, one AdamW update a step, no KL, a reward in
plain Python. Reads one line for each step it may take and answers with one JSON line: its seconds and mean reward.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import tempfile
import time
import warnings
from typing import Any

import numpy as np

PROMPTS, GROUP, LENGTH, RATE = 8, 4, 64, 1e-3
SIZES: dict[str, dict[str, int]] = {
    "small": dict(vocab=1024, width=128, layers=6, heads=4, kv_heads=2, head_dim=32, ff=512),
    "mid": dict(vocab=8192, width=512, layers=8, heads=8, kv_heads=4, head_dim=64, ff=1536),
}
ALWAYS = 10**6  # steps a trainer is told to make; the process is killed when enough are timed


class Clock:
    """Waits for permission before a step and tells how long it took."""

    def __init__(self, out: Any):
        self._out, self._began = out, 0.0

    def wait(self) -> None:
        if not sys.stdin.readline():
            os._exit(0)
        self._began = time.perf_counter()

    def tell(self, reward: float) -> None:
        print(json.dumps({"seconds": time.perf_counter() - self._began, "reward": reward}), file=self._out, flush=True)


def even(ids: Any) -> float:
    """The reward: share of even ids."""
    return float(np.mean([int(i) % 2 == 0 for i in ids])) if len(ids) else 0.0


def ours(c: dict[str, int], new: int, clock: Clock) -> None:
    """The project's sampler, credit, packing and update as a run calls them."""
    import jax

    from configs import default
    from slca.credit.algorithms import algorithm
    from slca.learn.batch import pack
    from slca.learn.forward import policy_forward
    from slca.learn.optim import optimizer, schedule
    from slca.learn.update import init_state, make_update
    from slca.policy import transformer
    from slca.policy.config import ModelConfig
    from slca.rollout.sampler import Sampler, row_keys
    from slca.types import POLICY, PROMPT, SUMMARY, Episode, Parsed, Rollouts, Task

    config = default.get_config("grpo")
    config.optim.lr, config.train.micro_rows, config.train.row_lengths = RATE, 16, (LENGTH + new,)
    model = ModelConfig("qwen3", **c, max_length=512, rope_theta=1e4)  # type: ignore[arg-type]
    tx = optimizer(config.optim, schedule("constant", RATE, ALWAYS), transformer.logical_axes(model))
    hidden, unembed = policy_forward(model)
    update, credit_of = make_update(hidden, unembed, tx, config), algorithm("grpo").credit
    state = init_state(transformer.init(model, jax.random.key(0)), tx, jax.random.key(0))
    rows = PROMPTS * GROUP
    sampler = Sampler(
        model, slots=rows, cache_length=LENGTH + new, prompt_buckets=(LENGTH,), suffix_buckets=(16,), decode_steps=32
    )
    draw = np.random.default_rng(0)
    prompt_of, sample_of = np.repeat(np.arange(PROMPTS), GROUP), np.tile(np.arange(GROUP), PROMPTS)
    task = Task("bench", [], [], [])
    for step in range(ALWAYS):
        prompts = draw.integers(2, c["vocab"], (PROMPTS, LENGTH))
        clock.wait()
        keys = row_keys(0, step, prompt_of, sample_of, np.zeros(rows, int))
        repeated = prompts[prompt_of].tolist()
        found = sampler.generate(state.params, repeated, keys=keys, max_new_tokens=new, temperature=1.0)
        rewards = np.array([even(found.tokens[n, : found.length[n]]) for n in range(rows)])
        kind = np.full((rows, 1), SUMMARY)
        credit = credit_of(Rollouts(prompt_of, kind, {"total": rewards, "tool": 0 * rewards, "summary": rewards}))
        episodes = []
        for n in range(rows):
            length = int(found.length[n])
            writer = np.array([PROMPT] * LENGTH + [POLICY] * length, np.int8)
            turn = np.where(writer == POLICY, 0, -1).astype(np.int16)
            tokens = np.concatenate([prompts[prompt_of[n]], found.tokens[n, :length]]).astype(np.int32)
            logprob = np.concatenate([np.zeros(LENGTH, np.float32), found.logprob[n, :length]])
            episodes.append(
                Episode(
                    task,
                    int(prompt_of[n]),
                    int(sample_of[n]),
                    tokens,
                    writer,
                    turn,
                    logprob,
                    [Parsed(text="x")],
                    [[]],
                    [0],
                    end="answered",
                )
            )
        for batch in pack(episodes, credit, None, config):
            state, _ = update(state, batch)
        jax.block_until_ready(state.params)
        clock.tell(float(rewards.mean()))


def trl(c: dict[str, int], new: int, clock: Clock) -> None:
    """TRL's GRPOTrainer over transformers on torch CPU."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "WANDB_DISABLED": "true"}
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, TrainerCallback
    from transformers.utils.logging import set_verbosity_error
    from trl import GRPOConfig, GRPOTrainer

    set_verbosity_error()
    size = c["vocab"]
    words = {f"w{i}": i for i in range(size - 3)} | {"<pad>": size - 3, "<eos>": size - 2, "<unk>": size - 1}
    model = models.WordLevel(words, unk_token="<unk>")
    inner = Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    policy = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=size, hidden_size=c["width"], num_hidden_layers=c["layers"], num_attention_heads=c["heads"],
            num_key_value_heads=c["kv_heads"], head_dim=c["head_dim"], intermediate_size=c["ff"], tie_word_embeddings=True,
            max_position_embeddings=512, eos_token_id=size - 2, pad_token_id=size - 3, bos_token_id=None,
        )
    )  # fmt: skip
    draw, mean = random.Random(0), [0.0]
    rows = [{"prompt": " ".join(f"w{draw.randrange(size - 3)}" for _ in range(LENGTH))} for _ in range(512)]

    def reward(completions: list[str], **_: Any) -> list[float]:
        found = [even([w[1:] for w in text.split() if w[0] == "w"]) for text in completions]
        mean[0] = float(np.mean(found))
        return found

    class Steps(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            pass

        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.tell(mean[0])
            clock.wait()

    how = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=PROMPTS * GROUP, num_generations=GROUP, max_completion_length=new,
        temperature=1.0, top_k=0, beta=0.0, max_steps=ALWAYS, learning_rate=RATE, logging_steps=ALWAYS, report_to=[], use_cpu=True,
        bf16=False, save_strategy="no", disable_tqdm=True, gradient_checkpointing=False, generation_kwargs=dict(min_new_tokens=new),
        dataloader_num_workers=0,
    )  # fmt: skip
    data = Dataset.from_list(rows)
    trainer = GRPOTrainer(
        model=policy, reward_funcs=reward, args=how, train_dataset=data, processing_class=tokenizer, callbacks=[Steps()]
    )
    clock.wait()
    trainer.train()


def tunix(c: dict[str, int], new: int, clock: Clock) -> None:
    """google-tunix's GRPOLearner with its own sampler. A step is what lies between two reward calls: update, then rollout."""
    import jax
    import optax
    from flax import nnx
    from tunix.models.qwen3 import model as qwen3
    from tunix.rl import rl_cluster
    from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
    from tunix.rl.rollout import base_rollout

    size = c["vocab"]
    config = qwen3.ModelConfig(
        vocab_size=size, embed_dim=c["width"], num_layers=c["layers"], num_heads=c["heads"], num_kv_heads=c["kv_heads"],
        head_dim=c["head_dim"], hidden_dim=c["ff"], norm_eps=1e-6, rope_theta=10_000, use_tied_embedding=True,
    )  # fmt: skip

    class Tokenizer:
        def encode(self, text: str, **_: Any) -> list[int]:
            return [int(word) for word in text.split()]

        def decode(self, ids: Any, **_: Any) -> str:
            return " ".join(str(int(i)) for i in ids)

        def bos_id(self) -> int:
            return 1

        def eos_id(self) -> int:
            return size - 1

        def pad_id(self) -> int:
            return 0

    def reward(prompts: Any, completions: list[str], **_: Any) -> list[float]:
        found = [even(text.split()) for text in completions]
        clock.tell(float(np.mean(found)))
        clock.wait()
        return found

    roles = rl_cluster.Role
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(1, 1), ("fsdp", "tp"))
    steps = 64  # prompts of so many steps are made beforehand
    training = rl_cluster.RLTrainingConfig(
        actor_optimizer=optax.adamw(RATE), eval_every_n_steps=ALWAYS, max_steps=steps, mini_batch_size=PROMPTS,
        train_micro_batch_size=PROMPTS, rollout_micro_batch_size=PROMPTS, compute_logps_micro_batch_size=PROMPTS,
    )  # fmt: skip
    sampling = base_rollout.RolloutConfig(
        max_tokens_to_generate=new, max_prompt_length=LENGTH, kv_cache_size=LENGTH + new + 8, temperature=1.0, top_p=1.0,
        top_k=None, eos_tokens=[size + 5],
    )  # fmt: skip
    cluster = rl_cluster.RLCluster(
        actor=qwen3.Qwen3(config, rngs=nnx.Rngs(0)), reference=None, tokenizer=Tokenizer(),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys((roles.ACTOR, roles.REFERENCE, roles.ROLLOUT), mesh), rollout_engine="vanilla",
            offload_to_cpu=False, training_config=training, rollout_config=sampling,
        ),
    )  # fmt: skip
    grpo = GRPOConfig(num_generations=GROUP, num_iterations=1, beta=0.0, epsilon=0.2)
    learner = GRPOLearner(rl_cluster=cluster, algo_config=grpo, reward_fns=[reward])
    draw = random.Random(0)
    texts = [
        [" ".join(str(draw.randrange(2, size - 1)) for _ in range(LENGTH - 1)) for _ in range(PROMPTS)] for _ in range(steps)
    ]
    clock.wait()
    learner.train([{"prompts": np.array(batch)} for batch in texts])


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    who, size, new = sys.argv[1], sys.argv[2], int(sys.argv[3])
    out, sys.stdout = sys.stdout, sys.stderr  # what a library prints must not look like an answer
    {"ours": ours, "trl": trl, "tunix": tunix}[who](SIZES[size], new, Clock(out))


if __name__ == "__main__":
    main()
