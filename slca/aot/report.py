"""What the command prints: a heading, a paragraph a program, Markdown rows."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from slca.aot.advice import advice
from slca.aot.chips import GIB, Chip
from slca.aot.measure import Result
from slca.aot.programs import Shapes


def heading(s: Shapes, chip: Chip, topology: str) -> str:
    """The model, the chips, the meshes."""
    count = sum(int(np.prod(x.shape)) for x in jax.tree.leaves(s.state.params)) / 1e9
    hbm = f" of {chip.hbm / GIB:.2f} GiB" if chip.hbm else ""
    lines = [
        f"{s.model.family}, {count:.2f} B parameters, attention {s.model.attention}, remat {s.model.remat}, {s.model.dtype}",
        f"{topology}: {s.mesh.size} {chip.name} chips{hbm}, mesh {_mesh(s.mesh)}",
    ]
    if s.hosts > 1:
        lines.append(f"{s.hosts} hosts, each samples on its own {s.here.size} chips, mesh {_mesh(s.here)}")
    return "\n".join(lines)


def _mesh(mesh: jax.sharding.Mesh) -> str:
    return " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())


def paragraph(result: Result, chip: Chip, s: Shapes) -> str:
    """One program: what it takes, what bounds it, and what to change where it does not fit."""
    m, fits = result.memory, result.fits(chip.hbm)
    room = f" of {chip.hbm / GIB:.2f}: {'fits' if fits else 'DOES NOT FIT'}" if chip.hbm else ""
    parts = f"arguments {_gib(m.arguments)} + temporaries {_gib(m.temporaries)} + beside {_gib(m.beside)}"
    lines = [
        f"\n{result.program.name}: {result.program.size}",
        f"  compiled in {result.seconds:.1f} s" + (f", refused: {result.error}" if result.error else ""),
        f"  HBM a chip, GiB: {parts} = {_gib(m.total)}{room}",
        f"  matrix FLOPs: {result.flops:.3g}, {result.flops / result.program.chips:.3g} a chip",
    ]
    if not result.error:
        sent = [f"{kind} {_gib(t.bytes)} GiB in {t.calls:,.0f}" for kind, t in result.traffic.items()]
        lines.append(f"  a chip sends: {', '.join(sent) or 'nothing'}")
    if bounds := {} if result.error else result.bounds(chip):
        by = max(bounds, key=lambda name: bounds[name])
        each = ", ".join(f"{name} {_seconds(value)}" for name, value in bounds.items())
        rate = result.program.tokens / bounds[by]
        lines.append(f"  at least {_seconds(bounds[by])} a call, bound by {by} ({each}); at most {rate:,.0f} tokens/s")
    if not fits:
        lines += ["  to make it fit:", *(f"    {line}" for line in advice(result, s))]
    return "\n".join(lines)


def table(results: Sequence[Result], chip: Chip, topology: str) -> list[str]:
    """Markdown rows, one a program."""
    head = "| topology | program | compile s | arguments | temporaries | beside | total GiB | FLOPs | sent GiB | compute / HBM / ICI |"
    rows = [head, "|" + "---|" * head.count(" | ") + "---|"]
    for r in results:
        bounds = {} if r.error else r.bounds(chip)
        sent = ", ".join(f"{kind} {_gib(t.bytes)}" for kind, t in r.traffic.items())
        memory = [_gib(x) for x in (r.memory.arguments, r.memory.temporaries, r.memory.beside, r.memory.total)]
        cells = [topology, f"{r.program.name}: {r.program.size}", f"{r.seconds:.0f}", *memory, f"{r.flops:.3g}", sent]
        rows.append(f"| {' | '.join(cells)} | {' / '.join(_seconds(x) for x in bounds.values())} |")
    return rows


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}"


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"
