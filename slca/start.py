"""Before the first step: what can be wrong is looked for, all processes agree that nothing is, and the run says what it is."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import jax
import numpy as np

from slca import processes
from slca.algorithm_fit import apply_record
from slca.assemble import Parts
from slca.credit.record import Algorithm
from slca.policy import transformer
from slca.pulse import Pulse
from slca.tasks.datasets import evaluation_tasks, stream
from slca.validate import ConfigError, validate

log = logging.getLogger("slca")

LOOKED_AT = 64  # tasks of the training stream that are searched for a demonstration


def prepare(config: Any) -> Algorithm | None:
    """Apply the algorithm's record and look for everything that can be wrong before a device is touched. Raises ConfigError."""
    record = None
    with contextlib.suppress(KeyError, ValueError):  # validate says what is wrong with the algorithm
        record = apply_record(config)
    validate(config, processes.count())
    try:
        check_tasks(config)
    except (ValueError, ImportError, OSError) as error:
        raise ConfigError(str(error)) from error
    return record


def check_tasks(config: Any) -> None:
    """Open every task source the run will read, so that a wrong one is an error now and not after the cold start."""
    train = stream(config.tasks, "train", config.run.seed)
    if train.unused:
        n = config.tasks.train
        log.warning("tasks.train=%d: the first %d of %d tasks are trained on", n, n, n + train.unused)
    for split in config.eval.splits:
        evaluation_tasks(config.tasks, split, 1, config.eval.seed)
    if config.sft.steps and not any(task.demo for task in islice(iter(lambda: train.next(1)[0], None), LOOKED_AT)):
        raise ConfigError(
            f"tasks.source={config.tasks.source}: sft.steps={config.sft.steps} needs demonstrations, and the first {LOOKED_AT} "
            "tasks have none (field `demo`); add them, or set sft.steps=0"
        )


@contextlib.contextmanager
def agreed() -> Iterator[None]:
    """What one process refuses (a ConfigError), all refuse: none may go on and wait for another that has left."""
    fault: ConfigError | None = None
    try:
        yield
    except ConfigError as error:
        fault = error
    faults = processes.gather_json(str(fault) if fault else "")
    if fault:
        raise fault
    if any(faults):
        raise ConfigError("\n".join(f"process {i}: {text}" for i, text in enumerate(faults) if text))


def told(pulse: Pulse, work: Callable[[], int]) -> int:
    """work(); where there are several processes, what fails in one ends it at once, and says which others it has lost.

    A collective that breaks does not name the process that is gone. And one that leaves in good order would wait for the others
    (their connections, a save in flight), which wait for it.
    """
    try:
        return work()
    except ConfigError:
        raise
    except BaseException:
        if processes.count() == 1:
            raise
        traceback.print_exc()
        for other in pulse.lost(patience=4 * pulse.tick):
            print(f"slca: lost {other}", file=sys.stderr, flush=True)
        os._exit(1)


def count_parameters(parts: Parts) -> int:
    """How many numbers the policy has."""
    shapes = jax.eval_shape(lambda: transformer.init(parts.model, jax.random.key(0)))
    return int(sum(np.prod(x.shape) for x in jax.tree.leaves(shapes)))


def announce(config: Any, parts: Parts, parameters: int) -> None:
    """One line about what runs where, and one each about what the record sets and needs and what has no effect."""
    sampler = parts.sampler
    log.info(
        "%s · %s %.2f M parameters · %d device(s) %s%s · cache of %d slots %.0f MiB · sampler programs: %s",
        parts.algorithm.name, parts.model.family, parameters / 1e6, jax.device_count(), jax.devices()[0].platform,
        f" in {processes.count()} processes" if processes.count() > 1 else "", sampler.slots, sampler.nbytes() / 2**20,
        ", ".join(f"{name}{list(shape)}" for name, shape in sampler.programs),
    )  # fmt: skip
    if sets := parts.algorithm.loss:
        log.info("%s sets %s", config.credit.algorithm, _assigned("loss", sets))
    if (least := parts.algorithm.updates) > 1:
        sweeps = f"train.mu={config.train.mu} x train.mini_batches={config.train.mini_batches}"
        log.info("%s needs %d updates or more a rollout batch: %s", config.credit.algorithm, least, sweeps)
    if unread := parts.algorithm.unread:
        log.warning("%s: no effect on credit.algorithm=%s", _assigned("credit", unread), config.credit.algorithm)
    weights = {name: config.reward[name] for name in ("process_weight", "summary_weight") if config.reward[name] != 1.0}
    if weights and "total" not in parts.algorithm.needs:
        given, name = _assigned("reward", weights), config.credit.algorithm
        log.warning("%s: weighs scores alone; credit.algorithm=%s reads no total reward", given, name)
    asked = {name: config.mesh[name] for name in ("data", "fsdp", "tensor") if config.mesh[name] not in (1, -1)}
    if parts.mesh is None and asked:
        log.warning("%s: no effect on a single device", _assigned("mesh", asked))


def _assigned(section: str, values: Mapping[str, Any]) -> str:
    return ", ".join(f"{section}.{name}={value}" for name, value in values.items())
