"""The frozen policy of the KL terms: the parameters that RL started from, in `<workdir>/reference` beside the checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slca.assemble import Parts
from slca.checkpoint import Checkpoints
from slca.phases import phase_like, reference_needed
from slca.policy import lora
from slca.types import TrainState
from slca.validate import ConfigError

FOLDER = "reference"


def keep_reference(workdir: Path, config: Any, state: TrainState, stored: Mapping[str, Any]) -> None:
    """Save what RL starts from, where the config needs it. stored: the config as the run folder holds it."""
    if reference_needed(config):
        with Checkpoints(workdir / FOLDER, keep=1) as reference:
            reference.save(0, state, {}, stored)


def load_reference(workdir: Path, config: Any, parts: Parts, params: Any) -> Any:
    """The parameters that were kept, None where the config needs none. params: those of the run, whose frozen part adapters stand on.

    Raises ConfigError when they are missing or damaged.
    """
    if not reference_needed(config):
        return None
    try:
        with Checkpoints(workdir / FOLDER, keep=1) as reference:
            found = reference.restore(phase_like(config, parts, "rl"))
    except (ValueError, RuntimeError) as error:  # their messages name what is at fault
        raise ConfigError(str(error)) from error
    if found is None:
        raise ConfigError(f"{workdir}/{FOLDER} is missing: the KL term needs the policy that RL started from")
    return lora.joined(params, found.state.params) if parts.model.lora else found.state.params
