"""One accelerator: decode speed against its memory, train MFU, a whole GRPO step, peak memory, on random weights in bf16.

    sh bench/gpu.sh                            # = python -m bench.gpu --out=bench/figures/gpu.json, some 20 minutes
    sh bench/gpu.sh --models=0.5B --parts=decode,train --rounds=3
    sh bench/gpu.sh --dry                      # the same code at toy size, on a CPU, in seconds

The programs are the project's own: its sampler (`Sampler.decode`) and its update. Every part runs in a process of its own, so that
its peak of memory is its own and what does not fit ends that part alone. Sizes are chosen by the device's memory: the largest
micro-batch that fits; full fine-tuning with AdamW and float32 masters where 16 bytes a parameter fit, adapters (LoRA) else.

Shares are given of the data sheet's peak and of what a plain matrix product and a plain copy reach here in the same run. Bytes of
a decoded token step: every matrix once, and the keys and values of the tokens that are there. FLOPs of training: 6 x matrix
parameters x tokens and causal attention, recomputation not counted. Exit codes: 0 all parts ran; 1 one did not; 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from bench.arguments import at_least, names, output, positive
from bench.contender import machine, summary, write
from bench.gpu_fit import GIB, RESERVE, adapted, first_that_fits, parameters, variants

NAMES = {"0.5B": "Qwen2.5-0.5B-Instruct", "7B": "Qwen2.5-7B-Instruct"}
PARTS = ("speeds", "decode", "train", "step")
# Bytes a second of memory by the makers' data sheets (SXM); the first name found in the device kind counts.
BANDWIDTH = {"A100": 2.04e12, "H100": 3.35e12, "H200": 4.8e12, "B200": 8.0e12}


class Sizes(NamedTuple):
    """What is run. prompt, new: tokens of a decoded row before and during the measurement; row: tokens of a packed training row."""

    batches: tuple[int, ...] = (16, 64, 128)
    prompt: int = 512
    new: int = 64
    row: int = 2048
    micro_rows: tuple[int, ...] = (16, 8, 4, 2, 1)
    groups: tuple[int, int] = (8, 16)
    step: tuple[int, int] = (512, 256)
    matrix: int = 8192
    copied: int = 2 * GIB


DRY = Sizes((2,), 16, 4, 32, (2, 1), (2, 2), (8, 4), 64, 2**16)


def model_of(name: str, args: argparse.Namespace) -> Any:
    """The architecture: as published, bf16."""
    from slca.aot.architectures import ARCHITECTURES
    from slca.policy.config import ModelConfig

    if name == "toy":
        model = ModelConfig("qwen2", vocab=64, width=16, layers=1, heads=2, kv_heads=1, head_dim=8, ff=32, max_length=4096)
    else:
        model = ModelConfig.from_hf(ARCHITECTURES[NAMES[name]])
    return dataclasses.replace(model, dtype="bfloat16", attention=args.attention, remat=args.remat)


def limit() -> float:
    """Bytes the device lets a process use; infinite where it does not say."""
    import jax

    return float((jax.devices()[0].memory_stats() or {}).get("bytes_limit", float("inf")))


def peak_memory() -> float | None:
    import jax

    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def clocked(run: Callable[[], Any], rounds: int) -> list[float]:
    """Seconds of each call after one that compiles."""
    import jax

    jax.block_until_ready(run())
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        jax.block_until_ready(run())
        found.append(time.perf_counter() - began)
    return found


def speeds(name: str, args: argparse.Namespace, sizes: Sizes) -> list[dict[str, Any]]:
    """FLOP/s of a bf16 product of two square matrices, bytes a second of a copy (read and written), both on this device."""
    import jax
    import jax.numpy as jnp

    n, count = sizes.matrix, sizes.copied // 2
    x, big = jnp.ones((n, n), jnp.bfloat16), jnp.ones(count, jnp.bfloat16)
    product, copy = jax.jit(lambda a: a @ a), jax.jit(lambda a: a + 1)
    flops = [2 * n**3 / s for s in clocked(lambda: product(x), args.rounds)]
    moved = [2 * 2 * count / s for s in clocked(lambda: copy(big), args.rounds)]
    return [{"what": "FLOP/s", "rate": summary(flops)}, {"what": "bytes/s", "rate": summary(moved)}]


def decode(name: str, args: argparse.Namespace, sizes: Sizes) -> list[dict[str, Any]]:
    """Tokens a second of `Sampler.decode` in rounds of `new` tokens, every row with a prompt of its own."""
    import jax
    import numpy as np

    from slca.policy import transformer
    from slca.rollout.sampler import Sampler, row_keys

    model, out = model_of(name, args), []
    params = jax.jit(lambda key: transformer.computed(transformer.init(model, key), model))(jax.random.key(0))
    matrices = 2 * parameters(model)[1]
    kv = 2 * model.layers * model.kv_heads * model.head_dim * 2  # bytes a token
    for batch in sizes.batches:
        length = sizes.prompt + sizes.new * (args.rounds + 2)
        if matrices * 2 + 2 * batch * length * kv > RESERVE * limit():
            out.append({"what": f"batch {batch}", "error": "does not fit by the estimate"})
            continue
        sampler = Sampler(
            model, slots=batch, cache_length=length, prompt_buckets=(sizes.prompt,), suffix_buckets=(16,),
            decode_steps=sizes.new, cache_dtype="bfloat16",
        )  # fmt: skip
        weights, rows = sampler.prepare(params), np.arange(batch)
        prompts = np.random.default_rng(0).integers(2, model.vocab, (batch, sizes.prompt)).tolist()
        state = sampler.insert(sampler.init(), sampler.prefill(weights, prompts), rows, rows)
        budgets, taken = np.full(batch, sizes.new), []
        for turn in range(args.rounds + 1):
            began = time.perf_counter()
            keys = row_keys(0, 0, rows, 0 * rows, np.full(batch, turn))
            state, tokens, *_ = sampler.decode(weights, state, keys=keys, temperature=1.0, stop_ids=(), budgets=budgets)
            np.asarray(tokens)
            taken.append(time.perf_counter() - began)
        taken = taken[1:]
        there = sizes.prompt + sizes.new * (1 + (args.rounds + 1) / 2)  # mean tokens of a row over the timed rounds
        moved = sizes.new * (matrices + batch * there * kv)
        found = {
            "what": f"batch {batch}",
            "seconds": summary(taken),
            "tokens/s": summary([batch * sizes.new / s for s in taken]),
        }
        out.append(found | {"moved": summary([moved / s for s in taken]), "memory": peak_memory()})
        del state, weights, sampler
    return out


def train(name: str, args: argparse.Namespace, sizes: Sizes) -> list[dict[str, Any]]:
    """The update alone, on two micro-batches of full rows."""
    import jax
    import numpy as np

    from bench.single_turn import learner_config, make_optimizer
    from bench.update import episodes
    from slca.learn.batch import pack
    from slca.learn.forward import policy_forward
    from slca.learn.update import init_state, make_update
    from slca.policy import transformer

    base = model_of(name, args)

    def run(rank: int, rows: int) -> dict[str, Any]:
        model = adapted(base, rank)
        config = learner_config(model, sizes.row, 1e-6, rows)
        tx = make_optimizer(config, model)
        update = make_update(*policy_forward(model), tx, config)
        state = jax.jit(lambda key: init_state(transformer.init(model, key), tx, key))(jax.random.key(0))
        count = 2 * rows
        credit = np.random.default_rng(0).normal(size=(count, 1))
        (batch,) = pack(episodes([sizes.row] * count, model.vocab, group=2), credit, config=config)

        def once() -> Any:
            nonlocal state
            state, metrics = update(state, batch)
            return jax.device_get(metrics), state.params

        taken = clocked(once, args.rounds)
        tokens = batch.tokens.size
        work = tokens * (6 * parameters(base)[1] + 6 * model.layers * model.heads * model.head_dim * sizes.row)
        rates = {"tokens/s": summary([tokens / s for s in taken]), "flops": summary([work / s for s in taken])}
        return {"seconds": summary(taken), "memory": peak_memory()} | rates

    return first_that_fits(variants(base, sizes.micro_rows, limit(), sizes.row), run)


def step(name: str, args: argparse.Namespace, sizes: Sizes) -> list[dict[str, Any]]:
    """A whole single-turn GRPO step: rollout, credit, packing, update."""
    from bench.single_turn import SingleTurn
    from slca.policy import cache

    base, (prompts, group), (length, new) = model_of(name, args), sizes.groups, sizes.step
    sampling = 2 * parameters(base)[0] + 2 * cache.nbytes(base, prompts * group, length + new, "bfloat16")

    def run(rank: int, rows: int) -> dict[str, Any]:
        own = SingleTurn(
            adapted(base, rank), prompts=prompts, group=group, length=length, new=new, rate=1e-6, micro_rows=rows,
            cache="bfloat16", decode_steps=min(new, 64),
        )  # fmt: skip
        state, phases = own.init(), {"rollout": [], "update": []}
        for number in range(args.rounds + 1):
            began = time.perf_counter()
            found = own.sample(state.params, number)
            middle = time.perf_counter()
            state = own.learn(state, own.pack(*found)[0])
            if number:
                phases["rollout"].append(middle - began)
                phases["update"].append(time.perf_counter() - middle)
        whole = [a + b for a, b in zip(phases["rollout"], phases["update"], strict=True)]
        rate = summary([prompts * group * new / s for s in whole])
        split = {name: summary(values) for name, values in phases.items()}
        return {"seconds": summary(whole), "tokens/s": rate, "memory": peak_memory()} | split

    found = first_that_fits(variants(base, sizes.micro_rows, limit(), length + new, sampling), run)
    return [row | {"what": f"{prompts} x {group}, {length} + {new} tokens, {row['what']}"} for row in found]


def part_of(part: str, name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run one part here; what it raises becomes its row."""
    try:
        rows = globals()[part](name, args, DRY if args.dry else Sizes())
    except Exception as error:
        rows = [{"what": part, "error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}]
    return [{"model": name, "part": part} | row for row in rows]


def in_child(part: str, name: str, argv: list[str]) -> list[dict[str, Any]]:
    """Run one part in a process of its own; its last line is the answer."""
    command = [sys.executable, "-m", "bench.gpu", *argv, f"--child={part}:{name}"]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if found.returncode:
        return [{"model": name, "part": part, "what": part, "error": f"its process ended with {found.returncode}"}]
    return json.loads(found.stdout.splitlines()[-1])


def device() -> dict[str, Any]:
    import jax

    from slca.report.system import PEAKS

    kind = jax.devices()[0].device_kind
    known = [next((peak for name, peak in peaks.items() if name in kind), 0.0) for peaks in (PEAKS, BANDWIDTH)]
    return {"device": kind, "platform": jax.default_backend(), "jax": jax.__version__, "flops": known[0], "bandwidth": known[1]}


def shared(rows: list[dict[str, Any]], here: dict[str, Any], args: argparse.Namespace) -> None:
    """Add to each row its share of the data sheet's peak and of the measured one, where there is one."""
    measured = {row["what"]: row["rate"]["median"] for row in rows if row["part"] == "speeds" and "rate" in row}
    peaks = {
        "moved": (args.peak_bandwidth or here["bandwidth"], measured.get("bytes/s", 0.0)),
        "flops": (args.peak_flops or here["flops"], measured.get("FLOP/s", 0.0)),
    }
    for row in rows:
        for column, (sheet, reached) in peaks.items():
            if column in row:
                row["share"] = {
                    kind: row[column]["median"] / peak for kind, peak in (("sheet", sheet), ("measured", reached)) if peak
                }


def show(rows: list[dict[str, Any]]) -> None:
    print("| model | part | what | seconds | tokens/s | share of data sheet | of measured | peak memory, GiB |\n|" + "---|" * 8)
    for row in rows:
        if row["part"] == "speeds" and "rate" in row:
            print(f"| device | measured | {row['what']} | | {row['rate']['median']:.3g} | | | |")
            continue
        if "error" in row:
            print(f"| {row['model']} | {row['part']} | {row['what']} | did not run: {row['error']} | | | | |")
            continue
        seconds, rate, share = row["seconds"], row["tokens/s"], row.get("share", {})
        shares = [f"{share[kind]:.1%}" if kind in share else "unknown" for kind in ("sheet", "measured")] if share else ["", ""]
        memory = f"{row['memory'] / GIB:.1f}" if row.get("memory") else "unknown"
        print(
            f"| {row['model']} | {row['part']} | {row['what']} | {seconds['median']:.4f} ({seconds['least']:.4f} to "
            f"{seconds['most']:.4f}) | {rate['median']:,.0f} | {shares[0]} | {shares[1]} | {memory} |"
        )


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--models", type=names((*NAMES, "toy")), default=",".join(NAMES), help=f"of {', '.join(NAMES)}")
    out.add_argument("--parts", type=names(PARTS), default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    out.add_argument("--rounds", type=positive, default=5)
    out.add_argument(
        "--attention", default="auto", choices=("auto", "xla", "blockwise", "splash", "cudnn"), help="of the update"
    )
    out.add_argument("--remat", default="block", choices=("none", "block", "dots"))
    out.add_argument(
        "--peak-flops", type=at_least(0, float), default=0.0, help="bf16 FLOP/s of the data sheet, where it is not known here"
    )
    out.add_argument(
        "--peak-bandwidth", type=at_least(0, float), default=0.0, help="bytes/s of memory, where it is not known here"
    )
    out.add_argument("--out", type=output, default=None, help="JSON file of the results")
    out.add_argument("--dry", action="store_true", help="toy size, in this process, on whatever is there")
    out.add_argument("--child", default="", help=argparse.SUPPRESS)
    return out


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    args = parser().parse_args(argv)
    models = ["toy"] if args.dry else args.models
    if args.child:
        part, _, name = args.child.partition(":")
        print(json.dumps(part_of(part, name, args)))
        return 0
    rows: list[dict[str, Any]] = []
    for part in args.parts:
        for name in ["device"] if part == "speeds" else models:
            rows += part_of(part, name, args) if args.dry else in_child(part, name, argv)
            print(f"{part} {name}: done", file=sys.stderr, flush=True)
    here = device()
    shared(rows, here, args)
    print(f"{here['device']}, jax {here['jax']}, {args.rounds} rounds; {os.cpu_count()} CPU cores, load {machine()['load']}\n")
    show(rows)
    if args.out:
        write(args.out, "gpu", [{"title": "one device", "rows": rows}], **here)
    return int(any("error" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
