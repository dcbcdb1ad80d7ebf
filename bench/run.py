"""Every comparison by one command: contenders interleaved in one run, medians of at least 5 with least and most, versions printed.

    sh bench/venvs.sh FOLDER                                   # once: interpreters of the peers
    python -m bench.run rollout  --venvs FOLDER                # sampling: ours, transformers.generate, tunix, a plain loop, the floor
    python -m bench.run update   --venvs FOLDER                # loss, backward pass, optimizer: ours, TRL, tunix, matrix products alone
    python -m bench.run step     --venvs FOLDER                # a whole single-turn GRPO step, equal and varied lengths: ours, TRL, tunix
    python -m bench.run agentic  --venvs FOLDER                # a whole multi-turn step with tools: ours, tunix's agentic learner
    python -m bench.run startup                                # import, config, first RL step; cold and warm compile cache
    python -m bench.run scaling                                # step time against group, turns, prompt, model: exponents

Results also go to --out (JSON, by default bench/figures/NAME.json) after every table, from which bench/figures.py draws; with --add the
tables of other titles that are there stay, so that a comparison can be made in parts. Each comparison is a module of bench/ with a
command line of its own and more options. Exit codes: 0 done; 1 a contender ended; 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench import contender
from bench.arguments import names, numbers, output, positive, read_results
from bench.rollout import left_out

FIGURES = Path(__file__).with_name("figures")
SIZES = ("small", "mid")  # 1.6 M and 28 M parameters
LENGTHS = ("step", "varied")
AXES = ("group", "turns", "prompt", "model")
PEERS = {
    "rollout": ("torch", "tunix", "jax12"),
    "update": ("torch", "tunix"),
    "step": ("torch", "tunix"),
    "agentic": ("tunix",),
}
OPTIONAL = ("jax12",)


def rollout(args: argparse.Namespace, peers: dict[str, str]) -> Iterable[dict[str, Any]]:
    from bench.rollout import compare

    options = {"new": args.new, "without": args.without, "rounds": args.rounds}
    return (compare(size, batch, **options, **peers) for size in args.sizes for batch in args.batches)


def update(args: argparse.Namespace, peers: dict[str, str]) -> Iterable[dict[str, Any]]:
    from bench.step import compare

    return (compare(size, rounds=args.rounds, what="update", **peers) for size in args.sizes)


def step(args: argparse.Namespace, peers: dict[str, str]) -> Iterable[dict[str, Any]]:
    from bench.step import compare

    return (compare(size, rounds=args.rounds, what=what, **peers) for size in args.sizes for what in args.lengths)


def agentic(args: argparse.Namespace, peers: dict[str, str]) -> Iterable[dict[str, Any]]:
    from bench.agentic import compare

    return (compare(size, rounds=args.rounds, **peers) for size in args.sizes)


def startup(args: argparse.Namespace, peers: dict[str, str]) -> Iterable[dict[str, Any]]:
    from bench.startup import compare

    return compare(rounds=args.rounds)


def scaling(args: argparse.Namespace, peers: dict[str, str]) -> Iterable[dict[str, Any]]:
    from bench.scaling import compare

    return (table for axis in args.axes for table in compare([axis], rounds=args.rounds))


COMPARISONS: dict[str, Callable[[argparse.Namespace, dict[str, str]], Iterable[dict[str, Any]]]] = {
    function.__name__: function for function in (rollout, update, step, agentic, startup, scaling)
}


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="bench.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = out.add_subparsers(dest="comparison", required=True, metavar="COMPARISON")
    for name in COMPARISONS:
        one = commands.add_parser(name)
        one.add_argument("--rounds", type=positive, default=5)
        one.add_argument("--out", type=output, default=str(FIGURES / f"{name}.json"), help="JSON file of the results")
        one.add_argument("--add", action="store_true", help="keep the tables of --out whose titles are not measured now")
        if name in PEERS:
            one.add_argument("--venvs", type=Path, help="folder that bench/venvs.sh filled; without it the peers are left out")
            one.add_argument(
                "--sizes",
                type=names(SIZES),
                default="small" if name == "agentic" else ",".join(SIZES),
                help=f"of {', '.join(SIZES)}",
            )
        if name == "step":
            one.add_argument(
                "--lengths",
                type=names(LENGTHS),
                default=",".join(LENGTHS),
                help="of step (all 64 tokens), varied (mean 61, most 192)",
            )
        if name == "rollout":
            one.add_argument("--batches", type=numbers, default="16,64")
            one.add_argument("--new", type=positive, default=192, help="sampled tokens a row")
            one.add_argument(
                "--without", type=left_out, default="", help="names of contenders to leave out, split by semicolons"
            )
        if name == "scaling":
            one.add_argument("--axes", type=names(AXES), default=",".join(AXES), help=f"of {', '.join(AXES)}")
    return out


def checked(options: argparse.ArgumentParser, args: argparse.Namespace) -> dict[str, str]:
    """Interpreter by peer; leaves with a message where an argument is wrong."""
    if not getattr(args, "venvs", None):
        return {}
    found = {name: contender.peer(args.venvs, name) for name in PEERS[args.comparison]}
    if missing := [name for name, python in found.items() if not python and name not in OPTIONAL]:
        options.error(f"--venvs={args.venvs} has no {', '.join(missing)}; build it with: sh bench/venvs.sh {args.venvs}")
    return {name: python for name, python in found.items() if python}


def earlier(out: Path, name: str, facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Title -> table of the results that are there. Raises ValueError where they are no such results or of another
    version or number of rounds."""
    if not out.exists():
        return {}
    found = read_results(out, name)
    for key, wanted in facts.items():
        if found.get(key) != wanted:
            raise ValueError(f"--add: {out} has {key} {found.get(key)!r}, this run {wanted!r}: write to another --out")
    return {table["title"]: table for table in found["tables"]}


def main(argv: list[str] | None = None) -> int:
    options = parser()
    args = options.parse_args(argv)
    peers = checked(options, args)
    versions = {"ours": contender.versions()} | {name: contender.versions(python) for name, python in peers.items()}
    for name, found in versions.items():
        print(f"{name}: {', '.join(f'{package} {version}' for package, version in found.items())}")
    here = contender.machine()
    print(f"{here['cores']} cores of {here['processor']}, load {here['load']} at the start, {args.rounds} rounds", flush=True)
    if args.rounds < 5:
        print(f"--rounds={args.rounds}: fewer than 5, a trial and not a result")
    if args.comparison in PEERS and not peers:
        print("no --venvs: the peers are left out")
    facts = {"rounds": args.rounds, "versions": versions}
    try:
        tables = earlier(args.out, args.comparison, facts) if args.add else {}
    except ValueError as wrong:
        options.error(str(wrong))
    for found in COMPARISONS[args.comparison](args, peers):
        tables[found["title"]] = found
        contender.write(args.out, args.comparison, list(tables.values()), **facts, before=here)
    print(f"\n{args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
