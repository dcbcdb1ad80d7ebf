"""Checkpoints in and out: Hugging Face safetensors folders and GGUF files <-> (ModelConfig, params).

Strict both ways: a tensor nobody reads and a parameter nobody fills are errors that name the key and the remedy. Tensors are
read one at a time, and of each only the block that a local device holds: beside its shards a host never has more than one tensor,
as stored and as wanted, in memory.
No pickle is opened and no code from a checkpoint is run.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from slca.chat.folder_json import read_object, turn_ends
from slca.chat.gguf_file import locate
from slca.learn.sharding import first_device, shardings
from slca.policy import gguf
from slca.policy.config import ModelConfig
from slca.policy.fill import fill
from slca.policy.layout import Place, places
from slca.policy.transformer import Params, logical_axes, param_shapes

SHARD_BYTES = 4 * 10**9  # size of one file of an export
_ALONE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_FLOATS = ("F32", "F16", "BF16")
_HARMLESS = ("rotary_emb.inv_freq",)  # buffers that old exports carry; computed from the config


class Source(Protocol):
    """Tensors by name, in the orientation of the file format."""

    names: Iterable[str]

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str, index: tuple[slice, ...] | None = None) -> np.ndarray: ...


def load(path: str | os.PathLike[str], *, mesh: Any = None, dtype: str | None = None) -> tuple[ModelConfig, Params]:
    """Read a model.

    Args:
        path: a Hugging Face folder, `gguf:FILE`, or `gguf:PACKAGE` for a file inside an installed package.
        mesh: place the parameters over it by their logical axes; None = the first device of this process.
        dtype: of the parameters; None = float32 (what training needs).

    Raises:
        ValueError: anything missing, left over, truncated, mis-shaped or of another family; one line, with the remedy.
    """
    name = os.fspath(path)
    config, source = _open(name)
    wanted = places(config, "gguf") if name.startswith("gguf:") else places(config)
    _check(config, source, wanted, name)
    target = jnp.dtype(dtype or "float32")
    shapes = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s, target), param_shapes(config), is_leaf=lambda s: isinstance(s, tuple)
    )
    here = first_device()
    placement = jax.tree.map(lambda _: here, shapes) if mesh is None else shardings(shapes, logical_axes(config), mesh)
    by_param: dict[tuple[str, ...], list[Place]] = {}
    for place in wanted:
        by_param.setdefault(place.param, []).append(place)
    params: Params = {"blocks": {}}
    for param, group in by_param.items():
        shape, sharding = (_at(tree, param) for tree in (shapes, placement))
        _at(params, param[:-1])[param[-1]], broken = fill(shape, sharding, group, source.read)
        if broken:
            raise ValueError(f"{name}: {broken} holds NaN or infinity; the checkpoint is damaged: fetch it, or train it, again")
    return config, params


def architecture(path: str | os.PathLike[str]) -> ModelConfig:
    """The architecture that `load(path)` would return, without reading a weight. Raises ValueError as `load` does."""
    return _open(os.fspath(path))[0]


def _open(name: str) -> tuple[ModelConfig, Source]:
    return gguf.open_file(locate(name)) if name.startswith("gguf:") else _open_folder(Path(name))


def save(path: str | os.PathLike[str], config: ModelConfig, params: Params) -> None:
    """Write a folder that `transformers` and `load` read: config.json and safetensors files of at most 4 GB, one in memory at a time.

    Raises:
        ValueError: a parameter is missing or has another shape than `config` says.
    """
    if config.lora:
        raise ValueError("save: the model has adapters; merge them first (slca.policy.lora.merged)")
    wanted, size = places(config), params["embed"].dtype.itemsize
    for place in wanted:
        found: Any = params
        for key in place.param:
            found = found.get(key, {})
        shape = place.shape if place.layer < 0 else (config.layers, *place.shape)
        if not hasattr(found, "shape"):
            raise ValueError(f"save: params lack {'/'.join(place.param)}, which a {config.family} model has")
        if found.shape != shape:
            raise ValueError(f"save: {'/'.join(place.param)} has shape {found.shape}, the config says {shape}")
    folder, files = Path(path), _shard(wanted, SHARD_BYTES // size)
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))]
    names = [_ALONE] if len(files) == 1 else names
    for name, group in zip(names, files):
        tensors = {place.name: place.stored(np.asarray(_tensor(params, place))) for place in group}
        _write(folder / name, lambda temporary, t=tensors: safetensors.numpy.save_file(t, temporary, metadata={"format": "pt"}))
    if len(files) > 1:
        index = {"metadata": {}, "weight_map": {place.name: name for name, group in zip(names, files) for place in group}}
        _write(folder / _INDEX, lambda temporary: temporary.write_text(json.dumps(index)))
    (folder / (_INDEX if len(files) == 1 else _ALONE)).unlink(missing_ok=True)  # of another model that was here
    hf = config.to_hf() | {"torch_dtype": str(params["embed"].dtype)}
    _write(folder / "config.json", lambda temporary: temporary.write_text(json.dumps(hf, indent=2)))


def _tensor(params: Params, place: Place) -> Any:
    value = _at(params, place.param)
    return value if place.layer < 0 else value[place.layer]


def _shard(wanted: list[Place], limit: int) -> list[list[Place]]:
    """Consecutive tensors, at most `limit` elements a file (one tensor at least)."""
    files: list[list[Place]] = [[]]
    used = 0
    for place in wanted:
        count = math.prod(place.shape)
        if files[-1] and used + count > limit:
            files.append([])
            used = 0
        files[-1].append(place)
        used += count
    return files


def _write(path: Path, write: Callable[[Path], Any]) -> None:
    temporary = path.with_name(path.name + ".tmp")
    write(temporary)
    temporary.replace(path)


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _check(config: ModelConfig, source: Source, wanted: list[Place], path: str) -> None:
    """Names and shapes agree exactly, tied heads included."""
    names, head = set(source.names), {"lm_head.weight", "output.weight"}
    left = {name for name in names - {place.name for place in wanted} if not name.endswith(_HARMLESS)}
    missing = [place.name for place in wanted if place.name not in names]
    if len(missing) == 1 and missing[0] in head:
        raise ValueError(
            f"{path}: {missing[0]} is missing but tie_word_embeddings is false; add the tensor, or set tie_word_embeddings to true to use the embedding as the output matrix"
        )
    if config.tied and head & left:
        name = (head & left).pop()
        left.remove(name)
        if not _equal(source, name, wanted[0].name):
            raise ValueError(
                f"{path}: {name} differs from {wanted[0].name} but tie_word_embeddings is true; "
                f"set tie_word_embeddings to false to use it, or delete {name}"
            )
    if missing:
        instead = f" (there is {min(left)} that none takes)" if left else ""
        raise ValueError(
            f"{path}: {missing[0]} and {len(missing) - 1} more tensors of a {config.family} model are missing{instead}; "
            "the download is incomplete or model_type in config.json is wrong"
        )
    if left:
        raise ValueError(
            f"{path}: no {config.family} parameter takes {min(left)} ({len(left)} such tensors); "
            "model_type or num_hidden_layers in config.json is wrong, or the model has parts this decoder lacks"
        )
    for place in wanted:
        if source.shape(place.name) != place.stored_shape:
            raise ValueError(
                f"{path}: {place.name} has shape {source.shape(place.name)}, config.json implies {place.stored_shape}"
            )


def _equal(source: Source, a: str, b: str) -> bool:
    if source.shape(a) != source.shape(b):
        return False
    rows = source.shape(a)[0]
    blocks = [(slice(i, min(i + 4096, rows)), slice(None)) for i in range(0, rows, 4096)]
    return all(np.array_equal(source.read(a, block), source.read(b, block)) for block in blocks)


class _Folder:
    """A safetensors checkpoint: one file, or several with an index."""

    def __init__(self, folder: Path) -> None:
        index, files = folder / _INDEX, [_ALONE]
        if index.exists():
            files = _files_of(index)
            if (folder / _ALONE).exists() and _ALONE not in files:
                raise ValueError(
                    f"{folder} holds two models, {_ALONE} and the files of {_INDEX}: delete the one that is not meant"
                )
        self._where: dict[str, Any] = {}
        homes: dict[str, str] = {}
        for file in files:
            if not (folder / file).exists():
                raise ValueError(f"{folder / file} is missing{_bin_hint(folder)}")
            try:
                handle = safetensors.safe_open(folder / file, framework="numpy")
            except (safetensors.SafetensorError, OSError) as error:
                raise ValueError(f"{folder / file} is {_damage(folder / file, error)}") from None
            for name in handle.keys():
                kind = handle.get_slice(name).get_dtype()
                if kind not in _FLOATS:
                    raise ValueError(
                        f"{folder / file}: {name} is {kind}; quantised weights and other types are not read, export {_FLOATS}"
                    )
                if name in homes:
                    raise ValueError(f"{folder}: {name} is in {homes[name]} and in {file}; fetch the model again")
                self._where[name], homes[name] = handle, file
        self.names: Iterable[str] = self._where.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._where[name].get_slice(name).get_shape())

    def read(self, name: str, index: tuple[slice, ...] | None = None) -> np.ndarray:
        return self._where[name].get_tensor(name) if index is None else self._where[name].get_slice(name)[index]


def _open_folder(folder: Path) -> tuple[ModelConfig, _Folder]:
    if not folder.is_dir():
        raise ValueError(
            f"no model at {str(folder)!r}: expected a folder with config.json and model.safetensors "
            "(fetch one with `hf download ORG/NAME --local-dir FOLDER`)"
        )
    file = folder / "config.json"
    if not file.exists():
        adapter = "; adapter_config.json is there: merge the adapter into its base and save the whole model"
        hint = adapter if (folder / "adapter_config.json").exists() else "; copy it from where the weights come from"
        raise ValueError(f"{file} is missing{hint}")
    found = read_object(file)
    try:
        config = ModelConfig.from_hf(found)
    except ValueError as error:
        raise ValueError(f"{file}: {str(error).removeprefix('config.json: ')}") from None
    except (TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise ValueError(f"{file}: a field is not of the kind it should be ({error}); fetch it again") from None
    # chat models often list their turn end only in generation_config.json
    return dataclasses.replace(config, stop_ids=tuple(dict.fromkeys((*config.stop_ids, *turn_ends(folder))))), _Folder(folder)


def _files_of(index: Path) -> list[str]:
    """The names of the files that an index lists."""
    found = read_object(index).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(file, str) for file in found.values()):
        raise ValueError(f"{index}: weight_map must be an object, tensor to file; fetch it again")
    if outside := [file for file in found.values() if Path(file).name != file]:
        raise ValueError(f"{index}: weight_map names {outside[0]!r}; files of a model lie beside its index")
    return sorted(set(found.values()))


def _damage(file: Path, error: Exception) -> str:
    """What is wrong with a file that is no safetensors file, and what to do."""
    try:
        with file.open("rb") as opened:
            pointer = opened.read(40).startswith(b"version https://git-lfs")
    except OSError:
        pointer = False
    return (
        "a git-lfs pointer, not the weights: run `git lfs pull`"
        if pointer
        else f"damaged or truncated ({error}); fetch it again"
    )


def _bin_hint(folder: Path) -> str:
    if any(folder.glob("*.bin")):
        return "; torch .bin files are pickles and are not read: save the model again with safe_serialization=True"
    return f"; expected {_ALONE} or {_INDEX}"
