"""Credit estimators against the truth on a toy tool game, and the speed of scoring.

    python -m bench.credit          # about a minute on one core; prints the tables of bench/RESULTS.md

The game: two tool turns and a summary, an action each. A tool action has a quality q in 0..1, the process reward is their mean;
the summary reward is s(b) + coupling * process + judge noise. The value of everything is known, so the true advantage of a
segment is E[total | actions up to it] - E[total | actions before it]. The table gives the correlation of each estimator's
credit with it, mean and 95 % interval over seeds.
"""

import time

import numpy as np

from bench import arguments
from configs.default import get_config
from slca.credit.algorithms import ALGORITHMS, algorithm
from slca.rewards.annotate import annotate
from slca.types import (
    ENV,
    POLICY,
    PROMPT,
    SUMMARY,
    TOOL,
    Block,
    Episode,
    Observation,
    Parsed,
    Rollouts,
    Task,
    ToolCall,
)  # fmt: skip

SEEDS, PROMPTS, GROUP, ACTIONS = 5, 256, 16, 5
T_95 = 2.776  # Student t, 4 degrees of freedom
SETTINGS = {"independent": (0.0, 0.0), "coupled": (1.0, 0.0), "noisy judge": (0.0, 0.5), "coupled, noisy": (1.0, 0.5)}
NAMES = (
    "grpo", "dr_grpo", "rloo", "gdpo", "slca", "slca_state", "mix@0.25", "mix@0.5", "support_control", "tool_only_global", "toolpo",
    "toolpo_slca_repo", "rltr", "segment_decomposed", "segment_decomposed@0.5", "matchtir_dual", "gigpo", "triage", "cue", "signal",
)  # fmt: skip


def play(seed: int, coupling: float, noise: float) -> tuple[Rollouts, np.ndarray]:
    """(rollouts, true advantage [N, 3]) of PROMPTS groups under a random policy for each prompt."""
    random = np.random.default_rng(seed)
    policy = random.dirichlet(np.full(ACTIONS, 1.5), (PROMPTS, 3))
    quality = random.permuted(np.broadcast_to(np.linspace(0, 1, ACTIONS), (PROMPTS, 3, ACTIONS)), axis=2)
    prompt = np.repeat(np.arange(PROMPTS), GROUP)
    drawn = random.uniform(size=(len(prompt), 3, 1))
    action = np.minimum((np.cumsum(policy, 2)[prompt] < drawn).sum(2), ACTIONS - 1)
    q = np.take_along_axis(quality[prompt], action[..., None], 2)[..., 0]
    tool = q[:, :2].mean(1)
    summary = q[:, 2] + coupling * tool + noise * random.normal(size=len(prompt))
    weight = np.array([0.5 * (1 + coupling), 0.5 * (1 + coupling), 1.0])
    truth = weight * (q - (policy * quality).sum(2)[prompt])
    return _rollouts(prompt, action, q, tool, summary), truth


def _rollouts(prompt, action, q, tool, summary) -> Rollouts:
    right = q == 1.0
    solved = (right[:, 0] & right[:, 1]).astype(float)
    total = tool + summary
    rewards = {
        "tool": tool, "summary": summary, "total": total, "solved": solved, "success": solved * (summary >= 0.5),
        "action": right[:, :2].sum(1), "action_share": right[:, :2].mean(1), "plan": right[:, :2].mean(1),
        "layered": np.where(solved > 0, 1.0, 0.5 * (tool > 0.25)), "segment": np.column_stack([q[:, :2], summary]),
        "final": np.column_stack([0 * tool, 0 * tool, total]),
    }  # fmt: skip
    role = np.where(q == 1, 0, np.where(q >= 0.5, 1, np.where(q > 0, 2, 3)))
    state = np.column_stack([0 * prompt, 1 + action[:, 0], 10 + action[:, 0] * ACTIONS + action[:, 1]])
    score = np.array([1.0, 0.5, 0.5, 0.25])[role]
    labels = {
        "role": role, "state": state, "cell": action[:, 0] * ACTIONS + action[:, 1], "step": score / score.mean(1, keepdims=True)
    }  # fmt: skip
    kind = np.tile([TOOL, TOOL, SUMMARY], (len(prompt), 1))
    return Rollouts(prompt, kind, {k: np.asarray(v, float) for k, v in rewards.items()}, labels, np.full(kind.shape, 10))


def correlation(name: str, coupling: float, noise: float) -> dict[str, list[float]]:
    out: dict[str, list[float]] = {"tool": [], "summary": []}
    for seed in range(SEEDS):
        rollouts, truth = play(seed, coupling, noise)
        credit = algorithm(name).credit(rollouts)
        for part, at in (("tool", slice(0, 2)), ("summary", slice(2, 3))):
            a, b = credit[:, at].ravel(), truth[:, at].ravel()
            out[part].append(float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 else float("nan"))
    return out


def table() -> str:
    lines = [
        "| credit | " + " | ".join(f"{s}: tool | summary" for s in SETTINGS) + " |",
        "|---" * (1 + 2 * len(SETTINGS)) + "|",
    ]
    for name in NAMES:
        cells = []
        for coupling, noise in SETTINGS.values():
            for values in correlation(name, coupling, noise).values():
                half = T_95 * np.std(values, ddof=1) / np.sqrt(SEEDS)
                cells.append("none" if np.isnan(values[0]) else f"{np.mean(values):.3f} ± {half:.3f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def episodes(groups: int = 128, size: int = 16, tool_turns: int = 7, tokens: int = 30) -> list[Episode]:
    """Rollouts of `tool_turns` calls and an answer, some of them wrong, as an engine would record them."""
    spec = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    out = []
    for g in range(groups):
        gold = [ToolCall("weather", {"city": f"City{g}", "day": d, "units": "metric"}) for d in range(tool_turns)]
        task = Task(
            f"t{g}", [{"role": "user", "content": f"How warm will it be in City{g}?"}], [spec], [[c] for c in gold], [["17.4"]]
        )
        for s in range(size):
            made = [
                ToolCall("weather", {**call.arguments, "day": (d * s) % 9}) if s % 3 else call for d, call in enumerate(gold)
            ]
            turns = [Parsed((c,), blocks=(Block((c,)),), opened=1, closed=1) for c in made]
            turns.append(Parsed(text=f"It will be 17.4 degrees in City{g} on {s} days, and 9.5 degrees later."))
            result = Observation(
                f'{{"city": "City{g}", "temperature": 17.4, "station": "Blindern {s}", "readings": [17.4, 9.5]}}'
            )
            one = [POLICY] * tokens + [ENV] * 10
            writer = [PROMPT] * 50 + one * tool_turns + [POLICY] * tokens
            turn = [-1] * 50 + [t for k in range(tool_turns) for t in [k] * tokens + [-1] * 10] + [tool_turns] * tokens
            out.append(Episode(
                task, g, s, np.arange(len(writer), dtype=np.int32), np.asarray(writer, np.int8), np.asarray(turn, np.int16),
                np.zeros(len(writer), np.float32), turns, [[result]] * tool_turns + [[]], [0] * (tool_turns + 1), [], "answered",
            ))  # fmt: skip
    return out


def speed() -> str:
    rows, config = episodes(), get_config()
    scoring, crediting = [], []
    for _ in range(5):
        began = time.process_time()
        rollouts = annotate(rows, config)
        scoring.append(time.process_time() - began)
        began = time.process_time()
        for name in ("slca", "gigpo", "triage"):
            ALGORITHMS[name].credit(rollouts)
        crediting.append((time.process_time() - began) / 3)
    return (
        f"{len(rows)} rollouts of {rollouts.kind.shape[1]} segments: annotate {np.median(scoring):.2f} s, "
        f"credit {1e3 * np.median(crediting):.1f} ms (CPU seconds of one core, median of 5)"
    )


if __name__ == "__main__":
    arguments.none("bench.credit", __doc__)
    print(speed())
    print(table())
