"""One mesh, one table from logical axis names to mesh axes, and the placements that follow from it.

The mesh has the axes (data, fsdp, tensor). Rows are split over data and fsdp; parameters over fsdp (their model width) and
tensor (heads, MLP, vocabulary). Parameters, gradients and optimizer moments always share one spec: left to itself the
compiler dropped the fsdp axis of gradients, and unsharded optimizer scalars cost a second compile (tunix:fe728f21).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from slca.types import Batch, TrainState

AXES = ("data", "fsdp", "tensor")
ROWS = ("data", "fsdp")  # mesh axes that split the rows of a batch

# Logical axis of a parameter (the model's `logical_axes`) -> mesh axis; None = replicated.
RULES: Mapping[str, str | None] = {
    "embed": "fsdp",
    "mlp": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "vocab": "tensor",
    "layers": None,
    "norm": None,
}


def make_mesh(mesh: Any, devices: list[jax.Device] | None = None) -> Mesh:
    """Mesh of config.mesh over `devices` (default: all of every process); one axis may be -1, what is left.

    Of one process: laid out by JAX, each axis on links of its own where the torus has them. Of several: `tensor` lies inside a
    process, on a TPU host of 2x2 chips as a ring of single links (two of them: one link); data and fsdp follow the processes in their
    order, so that a step of fsdp is one to the same place of the next host. Each process owns whole row shards, next to each other:
    it packs and hands over its own rows alone (`put_batch`), and what JAX lays out puts one row on several hosts.

    Raises ValueError when the sizes do not multiply to the number of devices, when processes differ in theirs, or when tensor does
    not divide those of a process.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [int(mesh[axis]) for axis in AXES]
    asked = ", ".join(f"mesh.{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))
    if sizes.count(-1) > 1 or any(size < 1 and size != -1 for size in sizes):
        raise ValueError(f"{asked}: sizes are >= 1, and at most one is -1 (what is left)")
    fixed = math.prod(size for size in sizes if size != -1)
    if len(devices) % fixed or (-1 not in sizes and fixed != len(devices)):
        raise ValueError(f"{asked}: {fixed} does not {'divide' if -1 in sizes else 'equal'} the {len(devices)} devices at hand")
    sizes = [len(devices) // fixed if size == -1 else size for size in sizes]
    if len(of_process := Counter(device.process_index for device in devices)) > 1:
        _check_processes(of_process, sizes[-1])
        return _mesh(by_process(devices), sizes)
    try:
        grid = mesh_utils.create_device_mesh(sizes, devices)
    except NotImplementedError:  # a size that is no product of a TPU's torus axes
        grid = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    return _mesh(grid, sizes)


def _mesh(devices: Any, shape: Iterable[int], axes: tuple[str, ...] = AXES) -> Mesh:
    return Mesh(np.asarray(devices).reshape(tuple(shape)), axes, axis_types=(AxisType.Auto,) * len(axes))


def _check_processes(of_process: Mapping[int, int], tensor: int) -> None:
    """of_process: the number of devices of each."""
    most, least = max(of_process, key=of_process.__getitem__), min(of_process, key=of_process.__getitem__)
    if (own := of_process[most]) != of_process[least]:
        raise ValueError(
            f"process {most} has {own} devices and process {least} has {of_process[least]}: all need the same number"
        )
    if own % tensor:
        raise ValueError(
            f"mesh.tensor={tensor}: does not divide the {own} device(s) of a process, of which there are {len(of_process)}, and one row "
            "must not lie in two; set mesh.tensor to a divisor, or start one process a host with all of its devices"
        )


def by_process(devices: Iterable[Any]) -> list[Any]:
    """Process after process; the devices of one row by row, every second row backwards, so that each next is a neighbour; by id where
    none says where it lies."""

    def place(device: Any) -> tuple[Any, ...]:
        layers: list[int]
        x, y, *layers = (*(getattr(device, "coords", None) or ()), 0, 0)  # x, y, z of a TPU; one number or none elsewhere
        return device.process_index, layers[::-1], y, -x if y % 2 else x, device.id

    return sorted(devices, key=place)


def partition_spec(
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    mesh: Mesh,
    rules: Mapping[str, str | None] = RULES,
    name: str = "array",
) -> PartitionSpec:
    """Spec of one array from the logical names of its dimensions.

    A dimension whose size its mesh axis does not divide is replicated (2 KV heads on 4 tensor devices). Raises ValueError
    when names and shape disagree or two dimensions claim one mesh axis, KeyError on a name the rules do not know.
    """
    if len(shape) != len(axes):
        raise ValueError(f"{name} has shape {shape} but logical axes {axes}")
    unknown = [axis for axis in axes if axis is not None and axis not in rules]
    if unknown:
        raise KeyError(f"{name}: no rule for logical axis {unknown[0]!r}; known are {sorted(rules)}")
    wanted = [None if axis is None else rules[axis] for axis in axes]
    spec = [axis if axis and size % mesh.shape[axis] == 0 else None for size, axis in zip(shape, wanted, strict=True)]
    used = [axis for axis in spec if axis]
    if len(used) != len(set(used)):
        raise ValueError(f"{name}: logical axes {axes} put two dimensions on one mesh axis, {spec}")
    return PartitionSpec(*spec)


def shardings(params: Any, axes: Any, mesh: Mesh, rules: Mapping[str, str | None] = RULES) -> Any:
    """NamedSharding of every parameter. params: arrays or ShapeDtypeStructs; axes: tuples of logical names, same tree."""

    def place(path: Any, leaf: Any, names: tuple[str | None, ...]) -> NamedSharding:
        return NamedSharding(mesh, partition_spec(leaf.shape, names, mesh, rules, jax.tree_util.keystr(path)))

    return jax.tree_util.tree_map_with_path(place, params, axes)


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def by_rows(mesh: Mesh) -> NamedSharding:
    """Placement of [B, ...] arrays: rows over the data and fsdp axes."""
    return NamedSharding(mesh, PartitionSpec(ROWS))


def first_device() -> SingleDeviceSharding:
    """Where everything lies that no mesh spreads."""
    return SingleDeviceSharding(jax.local_devices()[0])


def settled(tree: Any) -> Any:
    """Arrays bound to the first device, uncopied if they are there: what a checkpoint gives back on one device.

    JAX compiles a program anew for arguments that are bound where they were not before, also across runs: a fresh state that was
    not bound would give its programs another key in the compile cache than the same state restored.
    """
    return jax.device_put(tree, first_device())


def row_shards(mesh: Mesh | None) -> int:
    """Devices that hold different rows: the `data_size` of `pack` for a run with one process."""
    return 1 if mesh is None else math.prod(mesh.shape[axis] for axis in ROWS)


def own_mesh(mesh: Mesh, devices: list[jax.Device] | None = None) -> Mesh | None:
    """A mesh of this process's own devices (or those given) that splits as `mesh` does, as far as they go; None for a single device.

    Between updates a process works on it alone, so that a slow or dead tool of another process never enters a collective.
    """
    devices = by_process(jax.local_devices() if devices is None else devices)
    if len(devices) == 1:
        return None
    tensor = math.gcd(mesh.shape["tensor"], len(devices))
    fsdp = math.gcd(mesh.shape["fsdp"], len(devices) // tensor)
    return _mesh(devices, (len(devices) // (tensor * fsdp), fsdp, tensor))


def make_fetch(mesh: Mesh, here: Mesh | None, axes: Any) -> Callable[[Any], Any]:
    """fetch(params of `mesh`) -> a whole copy on `here`, this process's own mesh (None: its one device). A collective.

    axes: logical axes of the parameters. Device to device: every process's devices get a copy split as `here` splits it.
    """
    shape = (1, 1, 1) if here is None else here.devices.shape
    copies = _mesh(by_process(mesh.devices.flat), (-1, *shape), ("process", *AXES))  # each process's devices as in `own_mesh`

    def one(path: Any, x: Array, names: tuple[str | None, ...]) -> Array:
        spec = partition_spec(x.shape, names, copies, name=jax.tree_util.keystr(path))
        spread = jax.device_put(x, NamedSharding(copies, spec))
        shards = [shard.data for shard in spread.addressable_shards]
        if here is None:
            return shards[0]
        return jax.make_array_from_single_device_arrays(x.shape, NamedSharding(here, spec), shards)

    return lambda params: jax.tree_util.tree_map_with_path(one, params, axes)


def opt_shardings(opt_state: Any, params: Any, param_shardings: Any, mesh: Mesh) -> Any:
    """Placement of an optimizer state: a leaf that stands for a parameter (its path ends in the parameter's and the shape is
    equal) follows it; counters, factored moments and the like are replicated."""
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    places = jax.tree.leaves(param_shardings)
    known = {path: (leaf.shape, place) for (path, leaf), place in zip(flat, places, strict=True)}

    def place(path: Any, leaf: Any) -> NamedSharding:
        for start in range(len(path)):
            shape, sharding = known.get(path[start:], (None, None))
            if sharding is not None and shape == leaf.shape:
                return sharding
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(place, opt_state)


def state_shardings(state: TrainState, axes: Any, mesh: Mesh) -> TrainState:
    """Placement of a whole TrainState (arrays or shapes); step and key are replicated."""
    params = shardings(state.params, axes, mesh)
    opt_state = opt_shardings(state.opt_state, state.params, params, mesh)
    alone: Any = replicated(mesh)
    return TrainState(params, opt_state, step=alone, key=alone)


@lru_cache(maxsize=16)  # asked for every batch
def check_rows(mesh: Mesh) -> None:
    """Raises ValueError unless each process owns whole row shards of the mesh, as many as the others, and all in the order of processes.

    Otherwise JAX makes one batch of them without a word: less high than the rows of all, its tensor halves from different rows.
    """
    shards = [sorted({device.process_index for device in row}) for row in mesh.devices.reshape(-1, mesh.shape["tensor"])]
    for i, found in enumerate(shards):
        if len(found) > 1:
            raise ValueError(f"row shard {i} lies on the processes {', '.join(map(str, found))}; make_mesh keeps it on one")
    owners = [found[0] for found in shards]
    if owners != sorted(owners) or len(set(Counter(owners).values())) > 1:
        raise ValueError(
            f"row shards lie on the processes {', '.join(map(str, owners))}; make_mesh gives as many to each, one process after another"
        )


def put_batch(batch: Batch, mesh: Mesh) -> Batch:
    """This process's rows of a host batch -> global device arrays split by rows (every process calls it). Raises as `check_rows`."""
    check_rows(mesh)
    place = by_rows(mesh)
    return jax.tree.map(
        lambda x: x if isinstance(x, jax.Array) else jax.make_array_from_process_local_data(place, np.asarray(x)), batch
    )


def put_whole(batch: Batch, mesh: Mesh | None) -> Batch:
    """A host batch that every process holds whole -> global device arrays split by rows; without a mesh the batch itself."""
    if mesh is None:
        return batch
    place = by_rows(mesh)
    return jax.tree.map(lambda x: jax.make_array_from_callback(x.shape, place, lambda index: x[index]), batch)
