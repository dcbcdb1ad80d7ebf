"""Compile a config's device programs for a topology that is not there, and say whether they fit and what bounds them.

    python -m slca.aot --config=configs/7b.py --topology=v5p:4x4x4
    python -m slca.aot --config=configs/7b.py --topology=v5e:8x8 --mesh=2x8x4 --slots=search --markdown
    python -m slca.aot --config=configs/tiny.py --topology=cpu:8 --config.mesh.data=1 --config.mesh.fsdp=8

Programs: update (one optimiser step in which every rollout is as long as the config allows), prefill, insert, spread (with
rollout.shared_slots alone: a prompt to another place), append, decode, decode_few (rounds in which few rows still run).
Only shapes are made: no weights, no TPU; a TPU topology needs libtpu (pip install -e '.[tpu]').
Flags: --config FILE[:VARIANT] and --topology NAME (as libtpu knows it: v5e:8x8, v5p:4x4x4, v6e:8x8; or cpu:N) are required;
--mesh DATAxFSDPxTENSOR (default: config.mesh), --programs LIST (default: all), --slots N|search (of all hosts together;
default: the config's; search: the most that fit), --hbm GIB (a chip's, in the place of the table's), --markdown (table rows
as well). Exit codes: 0 every program compiles and fits; 1 one does not fit (the settings that would help are named); 2 the
command, the config or the topology is wrong.
"""

from __future__ import annotations

import math
import os
import sys
from typing import Any

from absl import app, flags
from ml_collections import config_flags

from slca import command_line

PROGRAMS = ("update", "prefill", "insert", "spread", "append", "decode", "decode_few")

CONFIG = config_flags.DEFINE_config_file("config", None, "config file, with an optional :variant", lock_config=True)
TOPOLOGY = flags.DEFINE_string("topology", None, "v5e:8x8, v5p:4x4x4, v6e:8x8, cpu:8")
MESH = flags.DEFINE_string("mesh", None, "DATAxFSDPxTENSOR in the place of config.mesh")
ONLY = flags.DEFINE_list("programs", list(PROGRAMS), "programs to compile")
SLOTS = flags.DEFINE_string("slots", None, "slots of all hosts together, or `search`")
HBM = flags.DEFINE_float("hbm", 0.0, "GiB of a chip, in the place of the table's")
MARKDOWN = flags.DEFINE_bool("markdown", False, "print table rows as well")


class UsageError(ValueError):
    """A wrong command line."""


def main(argv: list[str]) -> int:
    try:
        _check(argv)
    except UsageError as error:
        print(f"slca.aot: {error}", file=sys.stderr)
        return 2
    from slca.aot.chips import TopologyError
    from slca.validate import ConfigError

    try:
        return _run()
    except (TopologyError, ConfigError) as error:
        print(f"slca.aot: {error}", file=sys.stderr)
        return 2


def _check(argv: list[str]) -> None:
    if len(argv) > 1:
        raise UsageError(f"unknown arguments {argv[1:]}; see --help")
    for flag, example in ((CONFIG, "--config=configs/7b.py"), (TOPOLOGY, "--topology=v5p:4x4x4")):
        if flag.value is None:
            raise UsageError(f"--{flag.name} is missing, for instance {example}")
    try:
        CONFIG.value.to_dict()
    except OSError as error:  # absl keeps the failure to load and raises it at the first look
        raise UsageError(f"--config: {' '.join(str(error).split())}") from error
    if not ONLY.value:
        raise UsageError(f"--programs is empty; choose of {','.join(PROGRAMS)}")
    if not 0 <= HBM.value < math.inf:
        raise UsageError(f"--hbm={HBM.value}: GiB of a chip, above 0 (0: the table's)")
    if unknown := set(ONLY.value) - set(PROGRAMS):
        raise UsageError(f"--programs: no {', '.join(sorted(unknown))}; choose of {','.join(PROGRAMS)}")
    if SLOTS.value not in (None, "search") and not (SLOTS.value.isdecimal() and 0 < int(SLOTS.value) < 2**31):
        raise UsageError(f"--slots={SLOTS.value}: a number of slots above 0 and below 2^31, or search")
    if set(ONLY.value) == {"spread"} and not CONFIG.value.rollout.shared_slots:
        raise UsageError("--programs=spread: only runs whose slots share prompts have it; set --config.rollout.shared_slots")
    if MESH.value is not None:
        sizes = MESH.value.split("x")
        if len(sizes) != 3 or not all(size.isdecimal() and int(size) for size in sizes):
            raise UsageError(f"--mesh={MESH.value}: expected DATAxFSDPxTENSOR, for instance 1x16x4")


def _run() -> int:
    from slca.aot import chips

    topology: Any = TOPOLOGY.value
    chips.prepare(topology)  # before JAX starts
    from slca.aot import plan, report

    config: Any = CONFIG.value
    target = chips.target(topology)
    chip = target.chip
    if HBM.value:
        chip = chip._replace(hbm=HBM.value * chips.GIB)
    if MESH.value is not None:
        config.mesh.data, config.mesh.fsdp, config.mesh.tensor = map(int, MESH.value.split("x"))
    shapes = plan.shapes(config, target)
    print(report.heading(shapes, chip, topology), flush=True)
    results = []
    for result in plan.results(shapes, chip, ONLY.value, SLOTS.value):
        print(report.paragraph(result, chip, shapes), flush=True)
        results.append(result)
    if MARKDOWN.value:
        print("\n".join(report.table(results, chip, topology)))
    return 0 if all(result.fits(chip.hbm) for result in results) else 1


def parse(argv: list[str]) -> list[str]:
    """See `slca.command_line.parse`."""
    return command_line.parse(argv, "slca.aot")


if __name__ == "__main__":
    if {"--help", "-h", "-help"} & set(sys.argv):
        print(__doc__)
        sys.exit(0)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it would say that PyTorch is missing, which is as it should be
    app.run(main, flags_parser=parse)
