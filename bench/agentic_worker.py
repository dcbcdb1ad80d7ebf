"""One contender of `bench.agentic`, in a process (and often an interpreter) of its own.

    python bench/agentic_worker.py WHO MODEL SHAPE      # WHO: ours | tunix; MODEL, SHAPE: JSON objects

Multi-turn GRPO from random weights: every turn samples exactly `new` tokens and gets `result` tokens back from a tool that answers at
once, `turns` times. Reads one line for each step it may take and answers with one JSON line: its seconds and mean reward.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))  # a peer's interpreter knows nothing of the project
from step_worker import ALWAYS, RATE, Clock, even, tunix_cluster

STEPS = 64  # prompts of so many steps are made beforehand


def ours(c: dict[str, int], s: dict[str, int], clock: Clock) -> None:
    """The project's engine, state machine, credit, packing and update, see `bench.tool_step`."""
    from bench.tool_step import Shape, ToolStep
    from slca.policy.config import ModelConfig

    model = ModelConfig("qwen3", **c, max_length=2048, rope_theta=1e4)  # type: ignore[arg-type]
    own = ToolStep(model, Shape(**s), rate=RATE)
    state = own.init()
    for number in range(ALWAYS):
        clock.wait()
        state, seconds, reward = own.step(state, number)
        clock.tell(reward, **{name: seconds[name] for name in ("rollout", "update")})


def tunix(c: dict[str, int], s: dict[str, int], clock: Clock) -> None:
    """google-tunix's agentic GRPOLearner: its orchestrator, trajectory engine and agent over its own sampler (the one engine of it
    that runs on a CPU), an environment that answers at once. A step is what lies between two reward calls: update, then rollout.

    Its engine lets a turn run to the rest of the response budget; `Turns` gives it the budget of a turn.
    """
    import optax
    from tunix.rl import rl_cluster
    from tunix.rl.agentic.agentic_grpo_learner import GRPOConfig, GRPOLearner
    from tunix.rl.agentic.agents.model_agent import ModelAgent
    from tunix.rl.agentic.environments.base_environment import BaseTaskEnv, EnvStepResult
    from tunix.rl.rollout import base_rollout

    size, draw = c["vocab"], random.Random(0)

    def words(count: int) -> str:
        return " ".join(str(draw.randrange(2, size - 1)) for _ in range(count))

    result = words(s["result"])

    class Chat:
        """Messages one after the other, without marks. (A prompt comes as an array of one text.)"""

        def parse(self, messages: list[dict[str, Any]], **_: Any) -> str:
            return " ".join(np.asarray(message["content"]).item() for message in messages)

    class Environment(BaseTaskEnv):
        def _initial_observation(self) -> Any:
            return self.task

        def _step_impl(self, action: Any) -> EnvStepResult:
            return EnvStepResult(observation=result, reward=0.0, done=False, info={})

    class Turns(GRPOLearner):
        def _model_call(self, chat_lists: Any, env: Any = None, max_generation_steps: int | None = None) -> Any:
            return super()._model_call(chat_lists, env, s["new"])

    def reward(prompts: Any, completions: list[str], **_: Any) -> list[float]:
        found = [even(text.split()) for text in completions]
        clock.tell(float(np.mean(found)), sampled=float(np.mean([len(text.split()) for text in completions])))
        clock.wait()
        return found

    response = s["turns"] * s["new"] + (s["turns"] - 1) * s["result"] + 1  # its engine drops the turn that fills the budget
    longest = s["length"] + (s["turns"] - 1) * (s["new"] + s["result"])  # what the last turn prefills, padded to a power of two
    cache = max(1 << (longest - 1).bit_length(), s["length"]) + s["new"]
    training = rl_cluster.RLTrainingConfig(
        actor_optimizer=optax.adamw(RATE), eval_every_n_steps=ALWAYS, max_steps=STEPS, mini_batch_size=s["prompts"],
        train_micro_batch_size=s["prompts"], rollout_micro_batch_size=1, compute_logps_micro_batch_size=s["prompts"],
    )  # fmt: skip
    sampling = base_rollout.RolloutConfig(
        max_tokens_to_generate=response, max_prompt_length=s["length"], kv_cache_size=cache,
        temperature=1.0, top_p=1.0, top_k=None, eos_tokens=[size + 5], return_logprobs=True,
    )  # fmt: skip
    cluster = tunix_cluster(c, training, sampling)
    grpo = GRPOConfig(num_generations=s["group"], num_iterations=1, beta=0.0, epsilon=0.2, max_response_length=response)
    learner = Turns(
        rl_cluster=cluster, algo_config=grpo, reward_fns=[reward], chat_parser=Chat(), agent_class=ModelAgent,
        env_class=Environment, env_kwargs={"max_steps": s["turns"]},
    )  # fmt: skip
    batches = [np.array([words(s["length"] - 1) for _ in range(s["prompts"])]) for _ in range(STEPS)]
    clock.wait()
    learner.train([{"prompts": batch} for batch in batches])


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    who, model, shape = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    out, sys.stdout = sys.stdout, sys.stderr  # what a library prints must not look like an answer
    {"ours": ours, "tunix": tunix}[who](model, shape, Clock(out))


if __name__ == "__main__":
    main()
