"""Compile one program and say what it needs: seconds, HBM, collectives, FLOPs, and the least time a call can take."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from slca.aot.chips import GIB, Chip
from slca.aot.flops import count
from slca.aot.hlo import Traffic, collectives
from slca.aot.programs import Program, bytes_a_chip

# The compiler's two ways to say that a program is too large: all that it uses, or its temporaries alone.
_USED = re.compile(r"Used ([\d.]+)([KMGT]?) of [\d.]+[KMGT]? hbm")
_TEMPORARIES = re.compile(r"required for HLO temporaries \(([\d.]+)([KMGT]?)\) exceeds available HBM")


class Memory(NamedTuple):
    """Bytes of one chip. arguments: with donated results inside; temporaries: results that need room of their own, scratch and
    code; beside: held meanwhile without being an argument."""

    arguments: float
    temporaries: float
    beside: float

    @property
    def total(self) -> float:
        return self.arguments + self.temporaries + self.beside


class Result(NamedTuple):
    """What a compiled program needs. flops: of all its chips; traffic: of one; error: the compiler's own refusal, for want of memory."""

    program: Program
    seconds: float
    memory: Memory
    flops: float
    traffic: Mapping[str, Traffic]
    error: str = ""

    def fits(self, hbm: float) -> bool:
        """Whether a chip with so many bytes can run it; 0 = not known, so nothing is said against it."""
        return not self.error and (hbm <= 0 or self.memory.total <= hbm)

    def bounds(self, chip: Chip) -> dict[str, float]:
        """Least seconds of a call by what limits it: compute, HBM, ICI. Empty for a chip without published speeds.

        compute: matrix FLOPs, split evenly, at the peak rate of bfloat16. HBM: arguments once and temporaries twice (written and
        read) a pass, with a pass for each step of a loop over tokens or micro-batches. ICI: bytes sent over all links at once.
        """
        if not chip.flops:
            return {}
        stream = self.program.passes * (self.memory.arguments + 2 * self.memory.temporaries)
        sent = sum(traffic.bytes for traffic in self.traffic.values())
        return {
            "compute": self.flops / self.program.chips / chip.flops,
            "HBM": stream / chip.memory,
            "ICI": sent / chip.ici,
        }


def measure(program: Program) -> Result:
    """Lower and compile `program`. Raises what the compiler raises, except its refusal of a program that is too large."""
    began = time.monotonic()
    traced = program.function.trace(*program.arguments)
    flops = count(traced.jaxpr, program.trips)
    try:
        compiled = traced.lower().compile()
    except Exception as error:
        arguments, text = bytes_a_chip(program.arguments), str(error)
        if used := _USED.search(text):
            temporaries = _bytes(*used.groups()) - arguments
        elif used := _TEMPORARIES.search(text):
            temporaries = _bytes(*used.groups())
        else:
            raise
        memory = Memory(arguments, temporaries, program.beside)
        return Result(program, time.monotonic() - began, memory, flops, {}, used[0])
    seconds = time.monotonic() - began
    found: Any = compiled.memory_analysis()
    extra = (
        found.output_size_in_bytes - found.alias_size_in_bytes + found.temp_size_in_bytes + found.generated_code_size_in_bytes
    )
    unread = max(
        0.0, bytes_a_chip(program.arguments) - found.argument_size_in_bytes
    )  # passed, so held, but not part of the program
    memory = Memory(found.argument_size_in_bytes, extra, program.beside + unread)
    traffic = collectives(compiled.as_text(), program.chips, program.trips)
    return Result(program, seconds, memory, flops, traffic)


def _bytes(number: str, unit: str) -> float:
    return float(number) * {"": 1, "K": 2**10, "M": 2**20, "G": GIB, "T": 2**40}[unit]
