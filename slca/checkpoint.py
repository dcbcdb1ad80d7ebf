"""Checkpoints of a run, through Orbax v1 and through this file only.

A step folder `<workdir>/checkpoints/<step>` holds `params` (nested dict), `rest` (optimizer leaves by path, step, typed key)
and `run` (one JSON text: schema, data position, config, metrics offset, extra, and the shape of every array). Orbax writes a step under a temporary
name and renames it when it is whole; old ones go only after that (verl#4873, tunix:d8959684).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils
from orbax.checkpoint import v1 as ocp

from slca.learn.sharding import first_device
from slca.policy import lora
from slca.types import TrainState

log = logging.getLogger("slca")

SCHEMA = 1
FOLDER = "checkpoints"

_policies = ocp.training.preservation_policies
_in_flight: dict[Checkpoints, None] = {}  # those of this process with a save in flight, oldest first


class Restored(NamedTuple):
    """A checkpoint as saved: RL step, state, position of the data stream, config, size of metrics.jsonl in bytes, extra."""

    step: int
    state: TrainState
    data: dict[str, Any]
    config: dict[str, Any]
    metrics_offset: int
    extra: dict[str, Any]


class Checkpoints:
    """The checkpoints of one workdir. All processes make the same calls, from their main thread.

    keep: newest checkpoints kept; beside them the one with the highest `score` ever saved. Use as a context manager or call
    `close`, which waits for a save in flight. Raises OSError when the folder cannot be made.

    Whatever talks to other processes first waits for every save in flight, those of other folders too: the barriers of all of Orbax's
    managers have the same names, and two at once end a run of several processes.
    """

    def __init__(self, workdir: str | os.PathLike[str], keep: int = 2) -> None:
        folder = Path(workdir).absolute() / FOLDER
        folder.mkdir(parents=True, exist_ok=True)  # Orbax would only find out while saving
        _settle()
        best = _policies.BestN(get_metric_fn=lambda m: m["score"], n=1, keep_checkpoints_without_metrics=False)
        self._orbax = ocp.training.Checkpointer(
            folder,
            preservation_policy=_policies.AnyPreservationPolicy([_policies.LatestN(keep), best]),
            cleanup_tmp_directories=True,
        )
        self._saving: Any = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is KeyboardInterrupt:  # whoever is in such a hurry does not wait for a save
            return
        with contextlib.suppress(*([] if kind is None else [Exception])):  # the first failure is the one to be told
            self.close()

    @property
    def steps(self) -> list[int]:
        """Steps on disk, ascending."""
        return [c.step for c in self._orbax.checkpoints]

    @property
    def latest(self) -> int | None:
        return max(self.steps, default=None)

    def save(
        self,
        step: int,
        state: TrainState,
        data: Mapping[str, Any],
        config: Mapping[str, Any],
        *,
        metrics_offset: int = 0,
        extra: Mapping[str, Any] | None = None,
        score: float | None = None,
    ) -> None:
        """Start saving; returns once the arrays are copied from the devices, so the state may be donated right after.

        Waits for the save before. data, config, extra: JSON-able. score: higher is better, None = no candidate for the best.
        What this save or the one before meets (a full disk) is raised as SaveError here or in `wait`.
        """
        arrays = _arrays(state)
        run = {
            "schema": SCHEMA,
            "data": dict(data),
            "config": dict(config),
            "metrics_offset": metrics_offset,
            "extra": dict(extra or {}),
            "arrays": jax.tree.map(_describe, arrays),
        }
        _settle()
        with self._told(f"step {step}"):
            _in_flight[self] = None
            self._saving = self._orbax.save_checkpointables_async(
                step,
                {**arrays, "run": {"json": json.dumps(run)}},
                force=True,
                overwrite=True,
                metrics=None if score is None else {"score": float(score)},
            )

    def restore(self, like: TrainState | Callable[[dict[str, Any]], TrainState], step: int | None = None) -> Restored | None:
        """The newest checkpoint (or `step`), None when there is none.

        like: arrays or ShapeDtypeStructs with the shardings to restore onto: any mesh and number of devices; or a function
        from the checkpoint's JSON side to them, for runs whose optimizer changes between phases.
        A damaged newest checkpoint is set aside as `damaged-<step>`, said so, and the one before is taken; when there is no
        sound one, nothing is moved. Raises ValueError when a sound checkpoint holds other parameters or an unknown schema,
        RuntimeError when all are damaged.
        """
        _settle()
        if step is not None:
            return self._load(step, like)
        faults: dict[int, Exception] = {}
        for candidate in sorted(self.steps, reverse=True):
            try:
                found = self._load(candidate, like)
            except Mismatch:
                raise
            except Exception as error:  # Orbax and TensorStore raise whatever met them on a damaged folder
                faults[candidate] = error
                continue
            for damaged, error in faults.items():
                self._set_aside(damaged, error)
            return found
        aside = sorted(path.name for path in Path(self._orbax.directory).glob("damaged-*"))
        if faults or aside:  # a run that starts over here would bury what could still be put back
            first = next((f" ({type(error).__name__}: {_line(error)})" for error in faults.values()), "")
            raise RuntimeError(
                f"{self._orbax.directory}: all checkpoints are damaged: {[*faults, *aside]}{first}; put a sound copy back, or start "
                "over in another --workdir"
            )
        return None

    def _load(self, step: int, like: TrainState | Callable[[dict[str, Any]], TrainState]) -> Restored:
        folder = Path(self._orbax.directory) / str(step)
        run = read_run(folder)
        like = like if isinstance(like, TrainState) else like(run)
        wanted = _arrays(like)
        _check(folder, run["arrays"], jax.tree.map(_describe, wanted))
        found = self._orbax.load_checkpointables(step, jax.tree.map(_abstract, wanted))
        opt_state = jax.tree.unflatten(jax.tree.structure(like.opt_state), _by_path(like.opt_state, found["rest"]["opt_state"]))
        key = jax.device_put(found["rest"]["key"], like.key.sharding)  # comes back under an equal but differently spelt spec
        state = TrainState(found["params"], opt_state, found["rest"]["step"], key)
        return Restored(step, state, run["data"], run["config"], run["metrics_offset"], run["extra"])

    def _set_aside(self, step: int, error: Exception) -> None:
        folder = Path(self._orbax.directory)
        log.error(
            "checkpoint %s is damaged (%s); set aside as damaged-%d, going on from the one before",
            folder / str(step),
            _line(error),
            step,
        )
        if jax.process_index() == 0 and (folder / str(step)).exists():
            os.replace(folder / str(step), _free(folder / f"damaged-{step}"))
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(f"damaged-{step}")
        self._orbax.reload()

    def wait(self) -> None:
        """Block until the save in flight is on disk; raises SaveError with what it met."""
        saving, self._saving = self._saving, None
        _in_flight.pop(self, None)
        with self._told("the save in flight"):
            try:
                self._orbax.wait()
            finally:
                if saving is not None:
                    saving.result()  # lets go of its thread and event loop, which Orbax 0.12 keeps otherwise: 3 open files a save

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever the storage raised
            raise SaveError(
                f"{self._orbax.directory}: {what} could not be saved ({_line(error)}); what was saved before is whole: mend the "
                "cause (a full disk, permissions), and the same command continues from there"
            ) from error

    def close(self) -> None:
        """Wait for the save in flight, raising SaveError with what it met, and let go."""
        try:
            self.wait()
        finally:
            self._orbax.close()


def _settle() -> None:
    """Wait for every save in flight in this process; raises SaveError with what one met."""
    for checkpoints in list(_in_flight):
        checkpoints.wait()


class SaveError(OSError):
    """A checkpoint that could not be written; those before it are whole."""


class Mismatch(ValueError):
    """A sound checkpoint that is not of this run's model, optimizer or schema."""


def load_params(path: str | os.PathLike[str], placement: Any = None) -> dict[str, Any]:
    """Parameters alone, read-only, of a workdir, its checkpoints folder (newest step) or a step folder.

    placement: tree of shardings parallel to the parameters, or one sharding for all; None = the first device.
    """
    folder = step_folder(path)
    described = read_run(folder)["arrays"]["params"]
    one = first_device() if placement is None else placement
    places = jax.tree.map(lambda _: one, described) if isinstance(one, jax.sharding.Sharding) else placement

    def abstract(text: str, place: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
        dtype, *shape = text.split()
        return jax.ShapeDtypeStruct(tuple(map(int, shape)), jnp.dtype(dtype), sharding=place)

    wanted = jax.tree.map(abstract, described, places)
    return ocp.load_checkpointables(folder, {"params": wanted})["params"]


def read_run(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON side of a checkpoint: data, config, metrics_offset, extra. Raises Mismatch on another schema."""
    folder = step_folder(path)
    run = json.loads(ocp.load_checkpointables(folder, {"run": None})["run"]["json"])
    if run.get("schema") != SCHEMA:
        raise Mismatch(
            f"{folder} has checkpoint schema {run.get('schema')}, this version reads {SCHEMA}: use the one that wrote it"
        )
    return run


def step_folder(path: str | os.PathLike[str]) -> Path:
    """The step folder meant by a workdir, its checkpoints folder or a step folder; FileNotFoundError when there is none."""
    path = Path(path).absolute()
    if path.name.isdigit() and (path / "params").is_dir():
        return path
    parent = path / FOLDER if (path / FOLDER).is_dir() else path
    steps = [int(p.name) for p in parent.iterdir() if p.name.isdecimal() and p.is_dir()] if parent.is_dir() else []
    if not steps:
        raise FileNotFoundError(f"no checkpoint in {path}: expected a workdir, its {FOLDER}/ folder or a step folder")
    return parent / str(max(steps))


def config_diff(old: Mapping[str, Any], new: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> list[str]:
    """Lines `section.field: old -> new` for every field that differs; [] = equal. Tuples and lists are alike, as in JSON.

    defaults: what fields of `new` stand for that `old` does not have, because they came since.
    """
    before, after, usual = (_fields(json.loads(json.dumps(config))) for config in (old, new, defaults or {}))
    before = {name: value for name, value in usual.items() if name in after} | before

    def show(fields: dict[str, Any], name: str) -> str:
        return json.dumps(fields[name]) if name in fields else "(absent)"

    names = [*before, *(name for name in after if name not in before)]
    missing = object()
    return [
        f"{name}: {show(before, name)} -> {show(after, name)}"
        for name in names
        if before.get(name, missing) != after.get(name, missing)
    ]


def _fields(config: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(config, dict):
        return {prefix: config}
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= _fields(value, f"{prefix}.{name}" if prefix else name)
    return found


def _arrays(state: TrainState) -> dict[str, Any]:
    """The arrays of a state as stored: of a policy with adapters, those alone. Optimizer leaves by path: Orbax then never meets a
    NamedTuple of another library."""
    return {
        "params": lora.trainable(state.params),
        "rest": {"opt_state": _leaves(state.opt_state), "step": state.step, "key": state.key},
    }


def _leaves(tree: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def _by_path(like: Any, leaves: dict[str, Any]) -> list[Any]:
    return [leaves[path] for path in _leaves(like)]


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def _describe(leaf: Any) -> str:
    """`float32 8 16`: dtype and shape."""
    return " ".join(map(str, (leaf.dtype, *leaf.shape)))


def _check(folder: Path, saved: Any, wanted: Any) -> None:
    """Same paths, shapes and dtypes, else Mismatch with the first few differences."""
    there, here = _leaves(saved), _leaves(wanted)
    different = [
        f"{path}: saved {there.get(path, 'absent')}, this run {here.get(path, 'absent')}"
        for path in sorted(there.keys() | here.keys())
        if there.get(path) != here.get(path)
    ]
    if different:
        more = f" and {len(different) - 5} more" if len(different) > 5 else ""
        raise Mismatch(f"{folder} is of another model or optimizer: {'; '.join(different[:5])}{more}")


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:120]} ... {text[-170:]}"


def _free(path: Path) -> Path:
    n = 0
    while path.with_name(f"{path.name}{f'.{n}' if n else ''}").exists():
        n += 1
    return path.with_name(f"{path.name}{f'.{n}' if n else ''}")
