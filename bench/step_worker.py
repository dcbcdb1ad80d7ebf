"""One contender of `bench.step`, in a process (and often an interpreter) of its own.

    python bench/step_worker.py WHO SIZE NEW [step|varied|update]      # WHO: ours | floor | trl | tunix

Single-turn GRPO from random weights: 8 prompts of 64 tokens, 4 completions each, one AdamW update a step, no KL, a reward in
plain Python. Reads one line for each step it may take and answers with one JSON line: its seconds and mean reward. `update`: the
rollouts of the first step are given again in all later ones. `floor` times the matrix products of our update. `varied`: a row ends at
any of a 64th of the ids, or after NEW tokens (ours draws such lengths beforehand: its sampler takes up to 16 stop ids).
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
from functools import partial
from typing import Any

import numpy as np

PROMPTS, GROUP, LENGTH, RATE = 8, 4, 64, 1e-3
SIZES: dict[str, dict[str, int]] = {
    "small": dict(vocab=1024, width=128, layers=6, heads=4, kv_heads=2, head_dim=32, ff=512),
    "mid": dict(vocab=8192, width=512, layers=8, heads=8, kv_heads=4, head_dim=64, ff=1536),
}
MEAN = 64  # tokens of a completion of `varied`, but for the limit
ALWAYS = 10**6  # steps a trainer is told to make; the process is killed when enough are timed


class Clock:
    """Waits for permission before a step and tells how long it took."""

    def __init__(self, out: Any):
        self._out, self._began = out, 0.0

    def wait(self) -> None:
        if not sys.stdin.readline():
            os._exit(0)
        self._began = time.perf_counter()

    def tell(self, reward: float, **more: float) -> None:
        self.say({"seconds": time.perf_counter() - self._began, "reward": reward} | more)

    def say(self, answer: dict[str, float]) -> None:
        print(json.dumps(answer), file=self._out, flush=True)


def even(ids: Any) -> float:
    """The reward: share of even ids."""
    return float(np.mean([int(i) % 2 == 0 for i in ids])) if len(ids) else 0.0


def stops(size: int) -> list[int]:
    """Ids of which one comes every MEAN tokens from a model that knows nothing; as many even as odd, so that rewards do not move them."""
    return list(range(2, 2 + size // MEAN))


def first_answer(function: Any) -> Any:
    """The function, called once; later calls get what it gave then."""
    kept: list[Any] = []

    def answer(*args: Any, **kwargs: Any) -> Any:
        if not kept:
            kept.append(function(*args, **kwargs))
        return dict(kept[0]) if isinstance(kept[0], dict) else kept[0]

    return answer


def ours(c: dict[str, int], new: int, clock: Clock, what: str, floor: bool = False) -> None:
    """The project's step, see `bench.single_turn`. floor: in place of the update, the matrix products it is made of."""
    from bench.matmuls import product_timers
    from bench.single_turn import SingleTurn
    from slca.policy.config import ModelConfig

    model = ModelConfig("qwen3", **c, max_length=512, rope_theta=1e4)  # type: ignore[arg-type]
    own = SingleTurn(model, prompts=PROMPTS, group=GROUP, length=LENGTH, new=new, rate=RATE, micro_rows=8)
    state = own.init()
    if floor:
        (batch,), _ = own.pack(*own.sample(state.params, 0))
        timers = product_timers(lambda state, batch: own.update(state, batch), state, batch)
        while True:
            clock.wait()
            clock.say({"seconds": sum(count * timer() for timer, count in timers)})
    given = None
    for step in range(ALWAYS):
        clock.wait()
        if what == "varied":
            given = own.sample_varied(state.params, step, MEAN)
        elif what == "step" or given is None:
            given = own.sample(state.params, step)
        batches, reward = own.pack(*given)
        state = own.learn(state, batches)
        clock.tell(reward)


def trl(c: dict[str, int], new: int, clock: Clock, what: str) -> None:
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
    if what == "varied":
        policy.generation_config.eos_token_id = stops(size)
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
        bf16=False, save_strategy="no", disable_tqdm=True, gradient_checkpointing=False, dataloader_num_workers=0,
        generation_kwargs={} if what == "varied" else {"min_new_tokens": new},
    )  # fmt: skip
    data = Dataset.from_list(rows)
    trainer = GRPOTrainer(
        model=policy, reward_funcs=reward, args=how, train_dataset=data, processing_class=tokenizer, callbacks=[Steps()]
    )
    if what == "update":
        trainer._generate_and_score_completions = first_answer(trainer._generate_and_score_completions)
    clock.wait()
    trainer.train()


class Words:
    """A tokenizer for tunix: an id is a word, so that sampled tokens come back as they were."""

    def __init__(self, size: int):
        self._size = size

    def encode(self, text: str, **_: Any) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: Any, **_: Any) -> str:
        return " ".join(str(int(i)) for i in ids)

    def bos_id(self) -> int:
        return 1

    def eos_id(self) -> int:
        return self._size - 1

    def pad_id(self) -> int:
        return 0


def tunix_cluster(c: dict[str, int], training: Any, sampling: Any) -> Any:
    """tunix's cluster of one device: a random Qwen3 of size `c`, its own sampler, no reference."""
    import jax
    from flax import nnx
    from tunix.models.qwen3 import model as qwen3
    from tunix.rl import rl_cluster

    config = qwen3.ModelConfig(
        vocab_size=c["vocab"], embed_dim=c["width"], num_layers=c["layers"], num_heads=c["heads"], num_kv_heads=c["kv_heads"],
        head_dim=c["head_dim"], hidden_dim=c["ff"], norm_eps=1e-6, rope_theta=10_000, use_tied_embedding=True,
    )  # fmt: skip
    roles = rl_cluster.Role
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(1, 1), ("fsdp", "tp"))
    return rl_cluster.RLCluster(
        actor=qwen3.Qwen3(config, rngs=nnx.Rngs(0)), reference=None, tokenizer=Words(c["vocab"]),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys((roles.ACTOR, roles.REFERENCE, roles.ROLLOUT), mesh), rollout_engine="vanilla",
            offload_to_cpu=False, training_config=training, rollout_config=sampling,
        ),
    )  # fmt: skip


def tunix(c: dict[str, int], new: int, clock: Clock, what: str) -> None:
    """google-tunix's GRPOLearner with its own sampler. A step is what lies between two reward calls: update, then rollout."""
    import optax
    from tunix.rl import rl_cluster
    from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
    from tunix.rl.rollout import base_rollout

    size = c["vocab"]

    def reward(prompts: Any, completions: list[str], **_: Any) -> list[float]:
        found = [even(text.split()) for text in completions]
        clock.tell(float(np.mean(found)))
        clock.wait()
        return found

    steps = 64  # prompts of so many steps are made beforehand
    training = rl_cluster.RLTrainingConfig(
        actor_optimizer=optax.adamw(RATE), eval_every_n_steps=ALWAYS, max_steps=steps, mini_batch_size=PROMPTS,
        train_micro_batch_size=PROMPTS, rollout_micro_batch_size=PROMPTS, compute_logps_micro_batch_size=PROMPTS,
    )  # fmt: skip
    sampling = base_rollout.RolloutConfig(
        max_tokens_to_generate=new, max_prompt_length=LENGTH, kv_cache_size=LENGTH + new + 8, temperature=1.0, top_p=1.0,
        top_k=None, eos_tokens=stops(size) if what == "varied" else [size + 5],
    )  # fmt: skip
    cluster = tunix_cluster(c, training, sampling)
    if what == "update":
        cluster.generate = first_answer(cluster.generate)
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
    what = sys.argv[4] if len(sys.argv) > 4 else "step"
    out, sys.stdout = sys.stdout, sys.stderr  # what a library prints must not look like an answer
    contenders = {"ours": ours, "floor": partial(ours, floor=True), "trl": trl, "tunix": tunix}
    contenders[who](SIZES[size], new, Clock(out), what)


if __name__ == "__main__":
    main()
