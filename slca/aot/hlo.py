"""Collectives of a compiled program, read from its HLO text: kind, calls, bytes, with loop bodies times their trip count.

The text is what `compiled.as_text()` prints: one computation after the other, each a list of instructions that may call others
(`while`, `conditional`, `fusion`, `call`, async pairs). Bytes are those that one chip sends in a ring (or pairwise) exchange
among n chips, for a result of b bytes: all-gather b (n-1)/n, all-reduce 2 b (n-1)/n, reduce-scatter b (n-1),
all-to-all b (n-1)/n, collective-permute b.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import NamedTuple

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

_BITS = {"pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "bf16": 16, "f16": 16, "s32": 32, "u32": 32,
         "f32": 32, "s64": 64, "u64": 64, "f64": 64, "c64": 64, "c128": 128}  # fmt: skip
_HEAD = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[^\s(]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?(?P<name>[^\s=]+) = (?P<type>\(.*?\)|\S+) (?P<op>[a-z][a-z0-9-]*)\(")
_ARRAY = re.compile(r"\b(pred|bf16|[a-z]\d+(?:e\d+m\d+\w*)?)\[([\d,<=]*)\]")
_GROUPS = re.compile(
    r"replica_groups=(?:\{\{([\d,]*)\}|\[\d+,(\d+)\]|mesh\[([^\]]*)\](?:, device_ids=\([^)]*(?:\([^)]*\))?\))? \{([^}]*)\})"
)
_CALLED = re.compile(r"\b(?:calls|to_apply|called_computations)=\{?((?:%?[\w.-]+(?:, )?)+)\}?")
_BRANCHES = re.compile(r"\b(?:branch_computations=\{([^}]*)\}|true_computation=%?([\w.-]+), false_computation=%?([\w.-]+))")
_LOOP = re.compile(r"condition=%?([\w.-]+), body=%?([\w.-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_LIMIT = re.compile(r"= [su]32\[\]\S* constant\((\d+)\)")


class Traffic(NamedTuple):
    """What one chip does of one kind: number of calls, and bytes it sends."""

    calls: float
    bytes: float


class _Computation(NamedTuple):
    own: list[tuple[str, float]]  # (kind, bytes) of its collectives
    calls: list[tuple[list[str], float]]  # (alternatives, times): the costliest of the alternatives counts


def collectives(text: str, chips: int, unknown_trips: int = 1) -> dict[str, Traffic]:
    """Kind -> traffic of one chip in one run of the module `text`, a program for `chips` chips.

    unknown_trips: trips of a loop whose number the compiler does not know (decoding ends when rows stop).
    """
    blocks, entry = _blocks(text)
    parsed = {name: _computation(name, blocks, chips, unknown_trips) for name in blocks}
    known: dict[str, dict[str, Traffic]] = {}

    def total(name: str) -> dict[str, Traffic]:
        if name in known:
            return known[name]
        found: dict[str, Traffic] = defaultdict(lambda: Traffic(0, 0))
        computation = parsed.get(name, _Computation([], []))
        for kind, size in computation.own:
            found[kind] = Traffic(found[kind].calls + 1, found[kind].bytes + size)
        for names, times in computation.calls:
            inner = max((total(other) for other in names), key=lambda t: sum(x.bytes for x in t.values()))
            for kind, traffic in inner.items():
                found[kind] = Traffic(found[kind].calls + times * traffic.calls, found[kind].bytes + times * traffic.bytes)
        known[name] = dict(found)
        return known[name]

    return {kind: traffic for kind in KINDS if (traffic := total(entry).get(kind))}


def _blocks(text: str) -> tuple[dict[str, list[str]], str]:
    """Computation -> its lines, and the name of the entry. Raises ValueError for a text that is no HLO module."""
    blocks: dict[str, list[str]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if current is None and (head := _HEAD.match(line)):
            current = blocks.setdefault(head["name"], [])
            entry = head["name"] if head["entry"] else entry
        elif line.rstrip() == "}":
            current = None
        elif current is not None:
            current.append(line)
    if not entry:
        raise ValueError("no ENTRY computation: not the text of a compiled HLO module")
    return blocks, entry


def _computation(name: str, blocks: dict[str, list[str]], chips: int, unknown_trips: int) -> _Computation:
    fused_scatter = name.startswith(
        "all-reduce-scatter"
    )  # how a TPU compiler writes a reduce-scatter: its all-reduce keeps a part
    own: list[tuple[str, float]] = []
    calls: list[tuple[list[str], float]] = []
    for line in blocks[name]:
        found = _INSTRUCTION.match(line)
        if found is None:
            continue
        op = found["op"]
        kind = op.removesuffix("-start")
        if kind in KINDS:
            sent = _sent(kind, found["type"], op != kind, _group(line, chips))
            own.append(("reduce-scatter", sent / 2) if fused_scatter and kind == "all-reduce" else (kind, sent))
        elif op == "while" and (loop := _LOOP.search(line)):
            calls.append(([loop[2]], _trips(line, blocks.get(loop[1], []), unknown_trips)))
        elif branches := _BRANCHES.search(line):
            names = branches[1] or f"{branches[2]}, {branches[3]}"
            calls.append(([name.strip().lstrip("%") for name in names.split(",")], 1.0))
        elif op in ("fusion", "call", "async-start", "custom-call") and (called := _CALLED.search(line)):
            calls += [([name.strip().lstrip("%")], 1.0) for name in called[1].split(",") if name.strip()]
    return _Computation(own, calls)


def _trips(line: str, condition: list[str], unknown: int) -> float:
    """Trips of a loop: what the compiler noted, else the only constant its condition compares with."""
    if known := _TRIPS.search(line):
        return float(known[1])
    limits = {int(n) for text in condition for n in _LIMIT.findall(text)}
    plain = any("compare(" in text for text in condition) and not any(" and(" in text for text in condition)
    return float(limits.pop()) if plain and len(limits) == 1 else float(unknown)


def _group(line: str, chips: int) -> int:
    """Chips that exchange with each other; the groups are listed, given as [groups,size], or as axes of a named mesh."""
    found = _GROUPS.search(line)
    if found is None or not any(found.groups()):
        return chips
    listed, size, mesh, axes = found.groups()
    if mesh:
        sizes = dict(axis.split("=") for axis in mesh.split(","))
        return math.prod(int(sizes[axis.strip()]) for axis in axes.split(",") if axis.strip())
    return int(size) if size else len(listed.split(","))


def _sent(kind: str, type_: str, started: bool, n: int) -> float:
    """Bytes one chip sends. The result of a `-start` holds its operands first, then its results, then maybe flags."""
    arrays = [_size(*array) for array in _ARRAY.findall(type_)]
    if started and kind != "all-reduce":
        arrays = [size for size, (_, dims) in zip(arrays, _ARRAY.findall(type_)) if dims] or arrays
        arrays = arrays[len(arrays) // 2 :]
    size = sum(arrays)
    share = (n - 1) / n
    factor = {"all-reduce": 2 * share, "reduce-scatter": n - 1.0, "collective-permute": 1.0}.get(kind, share)
    return size * factor


def _size(dtype: str, dims: str) -> float:
    bits = _BITS.get(dtype, 8)  # the others are 8-bit floats
    return math.prod(int(d.removeprefix("<=")) for d in dims.split(",") if d) * bits / 8
