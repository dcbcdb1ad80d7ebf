"""Does routing pay, and when? A two-segment bandit with the project's own credit, many seeds, no language model.

    python -m bench.bandit          # a few minutes on one core; prints the tables of bench/RESULTS.md

A rollout of prompt p draws a tool action a and then a summary action b, each from a softmax policy of its own (ten prompts, five
actions, the summary's policy depends on p and on whether the call was right). The tool reward is the quality of a; the summary
reward is (1 - coupling) * quality of b + coupling * quality of a + noise of standard deviation ratio * sigma_T, correlated rho
with the tool reward inside the group. Policy gradient with the credit of each method; the tables give the expected quality of
the tool action under the policy after STEPS steps (tool accuracy), mean and 95 % interval over seeds.
"""

from __future__ import annotations

import functools

import numpy as np

from bench import arguments
from slca.credit.algorithms import algorithm
from slca.evals.stats import mean_interval
from slca.rewards.noise import disturb
from slca.types import SUMMARY, TOOL, Rollouts

SEEDS, PROMPTS, GROUP, ACTIONS, STEPS, RATE = 20, 10, 8, 5, 20, 0.15
NAMES = ("slca", "mix@0.5", "grpo", "support_control", "gdpo", "toolpo", "rltr")
QUALITY = np.linspace(0, 1, ACTIONS)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@functools.cache
def train(name: str, seed: int, ratio: float = 0.0, rho: float = 0.0, coupling: float = 0.3) -> tuple[float, float]:
    """(expected tool quality, expected summary quality) after STEPS steps of `name`."""
    random, credit_of = np.random.default_rng([7, seed]), algorithm(name).credit
    tool, summary = random.normal(0, 0.5, (PROMPTS, ACTIONS)), random.normal(0, 0.5, (PROMPTS, 2, ACTIONS))
    prompt = np.repeat(np.arange(PROMPTS), GROUP)
    for step in range(STEPS):
        a = draw(random, softmax(tool)[prompt])
        right = (QUALITY[a] == 1).astype(int)
        b = draw(random, softmax(summary)[prompt, right])
        rollouts = rewarded(prompt, QUALITY[a], (1 - coupling) * QUALITY[b] + coupling * QUALITY[a])
        credit = credit_of(disturb(rollouts, ratio, rho, seed=(seed, step)))
        ascend(tool, (prompt,), a, credit[:, 0])
        ascend(summary, (prompt, right), b, credit[:, 1])
    p, q = softmax(tool), softmax(summary)
    chance = np.stack([1 - p[:, -1], p[:, -1]], 1)
    return float((p @ QUALITY).mean()), float(((q @ QUALITY) * chance).sum(1).mean())


def draw(random: np.random.Generator, probabilities: np.ndarray) -> np.ndarray:
    below = np.cumsum(probabilities, 1) < random.uniform(size=(len(probabilities), 1))
    return np.minimum(below.sum(1), ACTIONS - 1)


def rewarded(prompt: np.ndarray, tool: np.ndarray, summary: np.ndarray) -> Rollouts:
    right = (tool == 1).astype(float)
    rewards = {"tool": tool, "summary": summary, "total": tool + summary, "solved": right, "success": right * (summary >= 0.5)}
    rewards |= {"action": right, "action_share": right, "plan": right}
    return Rollouts(prompt, np.tile([TOOL, SUMMARY], (len(prompt), 1)), rewards, {}, np.full((len(prompt), 2), 10))


def ascend(logits: np.ndarray, at: tuple[np.ndarray, ...], action: np.ndarray, credit: np.ndarray) -> None:
    """One policy-gradient step, in place: the gradient of sum credit * log pi over the group's size."""
    gradient = np.eye(ACTIONS)[action] - softmax(logits)[at]
    np.add.at(logits, at, RATE * credit[:, None] * gradient / GROUP * ACTIONS)


def table(column: int, settings: dict[str, dict[str, float]]) -> str:
    lines = [f"| credit | {' | '.join(settings)} |", "|" + "---|" * (len(settings) + 1)]
    for name in NAMES:
        cells = []
        for setting in settings.values():
            found = mean_interval([train(name, seed, **setting)[column] for seed in range(SEEDS)])
            cells.append(f"{found.mean:.3f} ± {found.mean - found.low:.3f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    arguments.none("bench.bandit", __doc__)
    noise = {f"noise {ratio:g}": {"ratio": ratio} for ratio in (0.0, 0.5, 1.0, 3.0)}
    correlated = {f"noise 1, rho {rho:g}": {"ratio": 1.0, "rho": rho} for rho in (-0.5, 0.0, 0.5)}
    coupled = {f"coupling {c:g}": {"ratio": 1.0, "coupling": c} for c in (0.0, 0.3, 0.8)}
    for title, column in (("tool accuracy", 0), ("summary accuracy", 1)):
        print(f"{title}\n\n{table(column, noise | correlated | coupled)}\n")


if __name__ == "__main__":
    main()
