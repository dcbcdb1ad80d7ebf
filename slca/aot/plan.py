"""From a config and a topology to measured programs; the search for the most slots that fit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from slca.algorithm_fit import apply_record
from slca.aot import programs
from slca.aot.architectures import ARCHITECTURES
from slca.aot.chips import Chip, Target
from slca.aot.measure import Result, measure
from slca.aot.programs import Shapes, bytes_a_chip
from slca.assemble import architecture, check_attention
from slca.chat import tokenizer as tokenizers
from slca.learn.sharding import make_mesh, own_mesh
from slca.policy import lora, weights
from slca.policy.config import ModelConfig
from slca.validate import ConfigError, validate

SAMPLING = ("prefill", "insert", "spread", "append", "decode", "decode_few")


def shapes(config: Any, target: Target) -> Shapes:
    """Mesh, state and optimizer of the config's RL phase, as shapes. Raises ConfigError for a config that cannot run."""
    with contextlib.suppress(KeyError, ValueError):  # validate says what is wrong with the algorithm
        apply_record(config)
    elsewhere = config.copy_and_resolve_references()
    with elsewhere.unlocked():  # the pod's files are not here
        elsewhere.model.source, elsewhere.chat.tokenizer, elsewhere.checkpoint.init = "random", "tiny", ""
    validate(elsewhere, target.hosts)
    try:
        mesh = make_mesh(config.mesh, target.devices)
    except ValueError as error:
        raise ConfigError(f"{error}; set --mesh=DATAxFSDPxTENSOR") from error
    here: Any = own_mesh(mesh, target.host) if target.hosts > 1 else mesh
    try:
        model = model_of(config)
        check_attention(config, model, mesh.devices.flat[0].platform)
    except (ValueError, OSError) as error:  # the files that the config names
        raise ConfigError(str(error)) from error
    return programs.shapes(config, model, mesh, here, target.hosts)


def model_of(config: Any) -> ModelConfig:
    """The architecture: from the checkpoint if it is here, else from the facts in slca/aot/architectures.py."""
    source = config.model.source
    if source == "random":
        return architecture(config, tokenizers.load(config.chat.tokenizer, config.chat.template))
    if source.startswith("gguf:") or Path(source).is_dir():
        found = weights.architecture(source)
    elif (name := Path(source).name) in ARCHITECTURES:
        found = ModelConfig.from_hf(ARCHITECTURES[name])
    else:
        raise ConfigError(
            f"model.source={source}: no such folder, and slca/aot/architectures.py knows {', '.join(ARCHITECTURES)}; put the "
            "checkpoint's config.json there, or use model.source=random"
        )
    return lora.with_lora(found.run_as(config.model), config.model.lora)


def results(s: Shapes, chip: Chip, only: Sequence[str], slots: str | None = None) -> Iterator[Result]:
    """Measure the programs named in `only`, one at a time. slots: of all hosts, `search`, or None for the config's."""
    if "update" in only:
        yield measure(programs.update(s))
    wanted = [name for name in SAMPLING if name in only]
    if not wanted:
        return
    known: dict[tuple[str, str], Result] = {}
    unit = programs.slot_unit(s)
    if slots == "search":
        largest = [name for name in ("prefill", "decode", "decode_few") if name in wanted] or wanted

        def attempt(count: int) -> Result:
            found = [result for name in largest if (result := _sampling(s, count, name, known))]
            return max(found, key=lambda result: result.memory.total)

        most, _ = search(attempt, chip.hbm, unit, slot_bytes(s))
    else:
        most = programs.asked_slots(s) if slots is None else max(1, int(slots or 0) // (unit * s.hosts)) * unit
    yield from (result for name in wanted if (result := _sampling(s, most, name, known)))


def _sampling(s: Shapes, slots: int, name: str, known: dict[tuple[str, str], Result]) -> Result | None:
    """A sampler program at this number of slots, None if there is no such; one that does not depend on it is compiled once."""
    program = next((program for program in programs.sampling(s, slots) if program.name == name), None)
    if program is None:
        return None
    key = name, program.size
    if key not in known:
        known[key] = measure(program)
    found = known[key]
    memory = found.memory._replace(beside=found.memory.beside - found.program.beside + program.beside)
    return found._replace(program=program, memory=memory)


def slot_bytes(s: Shapes) -> float:
    """Bytes of cache, shared prompts with it, that a unit of slots costs a chip."""
    state = programs.state_of(s, programs.pool_of(s, programs.slot_unit(s)))
    return bytes_a_chip((state.cache, state.prompts and state.prompts.cache))


def search(attempt: Callable[[int], Result], hbm: float, unit: int, cost: float) -> tuple[int, Result]:
    """(slots, result) of the most slots, a multiple of `unit`, with which `attempt` fits in `hbm` bytes.

    cost: bytes that `unit` slots take at least. Each guess is a straight line through the last two attempts; when it says that
    there is no room for another `unit`, the search ends. What does not fit with `unit` slots is returned as it is.
    """
    low, best = unit, attempt(unit)
    if hbm <= 0 or not best.fits(hbm):
        return low, best
    slope, high = cost, low + (int((hbm - best.memory.total) / cost) + 1) * unit  # high: more than can fit
    while (room := int((hbm - best.memory.total) / slope)) and high - low > unit:
        guess = min(low + room * unit, high - unit)
        result = attempt(guess)
        slope = max(cost, (result.memory.total - best.memory.total) / ((guess - low) / unit))
        if result.fits(hbm):
            low, best = guess, result
        else:
            high = guess
    return low, best
