"""The update: its share of matrix products, what packing saves, padding by row lengths, Python's part, gradient identity.

    python -m bench.update matmuls      # seconds of an update beside the summed seconds of its own matrix products, 2 M and 30 M
    python -m bench.update packing      # packed beside padded rows on mixed lengths
    python -m bench.update padding      # the tiny config's rows: padding share and seconds for several micro-batches and lengths
    python -m bench.update prompts      # a group's prompt once a row (train.share_prompts) beside once a rollout
    python -m bench.update overhead     # Python's milliseconds a step
    python -m bench.update identity [MESH ...]   # the gradient over micro-batches, packing and meshes of 8 CPU devices (minutes)

What is compared is run in turns in one process. Medians (least to most).
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

if sys.argv[1:2] == ["identity"]:
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax
import numpy as np
import optax

from bench.arguments import unknown_names
from bench.matmuls import flops, products, seconds
from configs import default, tiny
from slca.learn.batch import pack, padding_share
from slca.learn.forward import policy_forward
from slca.learn.update import init_state, make_update
from slca.policy import transformer
from slca.policy.config import ModelConfig
from slca.report.metrics import finalize
from slca.types import POLICY, PROMPT, Episode, Parsed, Task

SIZES: dict[str, dict[str, int]] = {
    "2 M": dict(vocab=1024, width=192, layers=4, heads=6, kv_heads=2, head_dim=32, ff=512),
    "30 M": dict(vocab=8192, width=512, layers=8, heads=8, kv_heads=4, head_dim=64, ff=1536),
}
MESHES: dict[str, tuple[int, int, int] | None] = {
    "one device": None,
    **{f"dp {n}": (n, 1, 1) for n in (1, 2, 4, 8)},
    **{f"fsdp {n}": (1, n, 1) for n in (2, 4, 8)},
    **{f"tp {n}": (1, 1, n) for n in (2, 4, 8)},
    "dp 2 fsdp 2 tp 2": (2, 2, 2),
}


def episodes(lengths: list[int], vocab: int, group: int = 8, prompt: int = 0) -> list[Episode]:
    """Made-up episodes of these lengths, the last third of each sampled; with `prompt` all behind so many tokens, the same in a group."""
    rng, out = np.random.default_rng(0), []
    for n, length in enumerate(lengths):
        writer = np.where(np.arange(length) < (prompt or length - length // 3), PROMPT, POLICY).astype(np.int8)
        tokens = rng.integers(1, vocab, length).astype(np.int32)
        if prompt and n % group:
            tokens[:prompt] = out[-1].tokens[:prompt]
        out.append(
            Episode(
                task=Task(f"{n // group}", [], [], []), group=n // group, sample=n % group,
                tokens=tokens, writer=writer,
                turn=np.where(writer == POLICY, 0, -1).astype(np.int16), logprob=np.full(length, -1.0, np.float32),
                turns=[Parsed()], end="answered",
            )
        )  # fmt: skip
    return out


class Learner:
    """An update of a random model under a config, with its state."""

    def __init__(self, config: Any, sizes: dict[str, int]):
        self.config = config
        self.model = ModelConfig("qwen3", **sizes, max_length=4096)  # type: ignore[arg-type]
        hidden, unembed = policy_forward(self.model)
        self.tx = optax.adamw(1e-4)
        self.update = make_update(hidden, unembed, self.tx, config)
        self.state = init_state(transformer.init(self.model, jax.random.key(0)), self.tx, jax.random.key(0))

    def pack(self, lengths: list[int], **how: int) -> Any:
        rows = episodes(lengths, self.model.vocab, **how)
        credit = np.random.default_rng(1).normal(size=(len(rows), 1))
        (batch,) = pack(rows, credit, config=self.config)
        return batch

    def step(self, batch: Any) -> float:
        """Seconds of an update, its metrics on the host included."""
        began = time.perf_counter()
        self.state, metrics = self.update(self.state, batch)
        finalize(jax.device_get(metrics))
        jax.block_until_ready(self.state.params)
        return time.perf_counter() - began


def shown(values: list[float], unit: float = 1.0, digits: int = 3) -> str:
    low, mid, high = min(values) * unit, statistics.median(values) * unit, max(values) * unit
    return f"{mid:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def in_turns(contenders: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, run one after the other in every round, so that all see the same load."""
    for run in contenders.values():
        run()
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            found[name].append(run())
    return found


def matmuls(rounds: int = 3) -> None:
    print(
        "| parameters | rows x tokens | update, s | its products alone, s | share | GFLOP/s of the update |\n|---|---|---|---|---|---|"
    )
    for name, sizes in SIZES.items():
        config = default.get_config()
        config.train.update(micro_rows=2, row_lengths=(512,))
        learner = Learner(config, sizes)
        batch = learner.pack([512] * 4)
        found = products(lambda state, batch, u=learner.update: u(state, batch), learner.state, batch)
        learner.step(batch)
        took, alone = [], []
        for _ in range(rounds):
            took.append(learner.step(batch))
            alone.append(sum(seconds(product, repeats=4, rounds=1) * count for product, count in found.items()))
        shares = [a / b for a, b in zip(alone, took, strict=True)]
        rate = flops(found) / statistics.median(took) / 1e9
        print(
            f"| {name} | {batch.tokens.shape[0]} x 512 | {shown(took)} | {shown(alone)} | {shown(shares, 100, 0)} % | {rate:.0f} |"
        )


def packing(rounds: int = 3) -> None:
    lengths = np.clip(np.random.default_rng(0).lognormal(5.0, 0.6, 16), 40, 512).astype(int).tolist()
    learners, batches = {}, {}
    for name, packed in (("packed", True), ("padded", False)):
        config = default.get_config()
        config.train.update(micro_rows=2, row_lengths=(512,), pack=packed)
        learners[name] = Learner(config, SIZES["2 M"])
        batches[name] = learners[name].pack(lengths)
    took = in_turns({name: lambda n=name: learners[n].step(batches[n]) for name in learners}, rounds)
    ratios = [b / a for a, b in zip(took["packed"], took["padded"], strict=True)]
    print(f"16 episodes of {min(lengths)} to {max(lengths)} tokens, mean {np.mean(lengths):.0f}, 2 M parameters")
    print("| rows | padding | s an update |\n|---|---|---|")
    for name, batch in batches.items():
        padding, computed = padding_share(batch, 2)
        print(f"| {name} | {100 * padding / computed:.0f} % | {shown(took[name])} |")
    print(f"padded over packed: {shown(ratios, 1, 2)}")


def padding(rounds: int = 3) -> None:
    c = tiny.get_config()
    m = c.model
    sizes = dict(vocab=2816, width=m.width, layers=m.layers, heads=m.heads, kv_heads=m.kv_heads, head_dim=m.head_dim, ff=m.ff)
    rng = np.random.default_rng(0)
    steps = [np.clip(rng.integers(110, 200, 6).repeat(8) + rng.integers(-40, 40, 48), 60, 320).tolist() for _ in range(2)]
    choices = [(6, (512,)), (2, (512,)), (1, (384, 512)), (2, (320, 384, 448, 512))]
    learners, batches, contenders = {}, {}, {}
    for rows, lengths in choices:
        config = tiny.get_config()
        config.train.update(micro_rows=rows, row_lengths=lengths)
        key = f"{rows} rows of {', '.join(map(str, lengths))}"
        learners[key] = Learner(config, sizes)
        batches[key] = [learners[key].pack(step) for step in steps]
        contenders[key] = lambda k=key: sum(learners[k].step(batch) for batch in batches[k])
    took = in_turns(contenders, rounds)
    print("| micro-batch | padding | s for 2 updates |\n|---|---|---|")
    for (rows, _), key in zip(choices, took, strict=True):
        shares = [padding_share(batch, rows) for batch in batches[key]]
        print(f"| {key} | {100 * sum(p for p, _ in shares) / sum(t for _, t in shares):.1f} % | {shown(took[key])} |")


def prompts(rounds: int = 5) -> None:
    """Every group's rollouts begin with one prompt; answers are of geometric length around their mean. The prediction is the tokens."""
    print(
        "| prompt, mean answer, group | row | tokens: whole, shared | by tokens | s: whole | s: shared | measured |\n|---|---|---|---|---|---|---|"
    )
    for prompt, answer, group, row in ((64, 64, 4, 512), (128, 240, 4, 512), (91, 72, 8, 512), (400, 100, 16, 1024)):
        rng, count = np.random.default_rng(0), 8 * group
        lengths = prompt + np.clip(rng.geometric(1 / answer, count), 1, row - prompt)
        learners, batches, contenders = {}, {}, {}
        for name, share in (("whole", False), ("shared", True)):
            config = default.get_config()
            config.train.update(micro_rows=2048 // row, row_lengths=(row,), share_prompts=share)
            learners[name] = Learner(config, SIZES["2 M"])
            batches[name] = learners[name].pack(lengths.tolist(), group=group, prompt=prompt)
            contenders[name] = functools.partial(learners[name].step, batches[name])
        took = in_turns(contenders, rounds)
        size = {name: int((batch.episode > 0).sum()) for name, batch in batches.items()}
        ratios = [a / b for a, b in zip(took["whole"], took["shared"], strict=True)]
        print(
            f"| {prompt}, {answer}, {group} | {row} | {size['whole']:,}, {size['shared']:,} | {size['whole'] / size['shared']:.2f}x "
            f"| {shown(took['whole'])} | {shown(took['shared'])} | {shown(ratios, 1, 2)} |", flush=True,
        )  # fmt: skip


def overhead(rounds: int = 300) -> None:
    config = default.get_config()
    config.train.update(micro_rows=1, row_lengths=(16,))
    learner = Learner(config, dict(vocab=16, width=8, layers=1, heads=1, kv_heads=1, head_dim=8, ff=8))
    batch = learner.pack([16])
    for _ in range(20):
        learner.step(batch)
    print(
        f"call, transfer of the batch, metrics on the host, a model of next to nothing: {shown([learner.step(batch) for _ in range(rounds)], 1000, 2)} ms a step"
    )


def identity(*only: str) -> None:
    """only: meshes by their names in the table, e.g. 'tp 4'; none = all."""
    from tests.learn.conftest import Toy, credits, shrink, two_groups
    from tests.learn.test_update import gradient, relative_difference

    jax.config.update("jax_default_matmul_precision", "highest")
    toy = Toy()

    def of(mesh: Any, micro: int, packed: bool) -> Any:
        config = shrink(default.get_config())
        config.train.update(micro_rows=micro, pack=packed)
        return gradient(config, toy, toy.params(), (two_groups(), credits()), mesh=mesh)

    base = of(None, 8, False)
    print(
        "| mesh | "
        + " | ".join(f"{k} micro, {p}" for k in (1, 2, 4) for p in ("packed", "unpacked"))
        + " |\n"
        + "|---" * 7
        + "|"
    )
    for name, mesh in MESHES.items():
        if only and name not in only:
            continue
        cells = [f"{relative_difference(of(mesh, rows, packed), base):.1e}" for rows in (4, 2, 1) for packed in (True, False)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {f.__name__: f for f in (matmuls, packing, padding, prompts, overhead, identity)}
    parser = argparse.ArgumentParser(
        prog="bench.update", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=commands)
    parser.add_argument("meshes", nargs="*", metavar="MESH", help=f"of identity: {', '.join(MESHES)}; none = all")
    args = parser.parse_args()
    if unknown := [mesh for mesh in args.meshes if args.what != "identity" or mesh not in MESHES]:
        parser.error(unknown_names(unknown, MESHES) if args.what == "identity" else f"{args.what} has no meshes")
    commands[args.what](*args.meshes)
