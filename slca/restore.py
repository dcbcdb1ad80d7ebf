"""One answer to "which policy?": a run's workdir, its checkpoints folder, a step folder, a Hugging Face folder or `gguf:NAME`.

Serving, evaluating and exporting all start here, so that each reads whatever `--checkpoint=` names in the same way.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from configs.default import get_config
from slca.assemble import architecture, base_params
from slca.chat import tokenizer as tokenizers
from slca.chat.folder_json import read_object
from slca.chat.parse import WIRES
from slca.chat.template import Template
from slca.checkpoint import FOLDER, load_params, read_run, step_folder
from slca.learn.sharding import shardings
from slca.policy import lora, transformer, weights
from slca.policy.config import ModelConfig

CHAT_FILE = "chat.json"  # beside an exported model: the `chat` section of its run


class Policy(NamedTuple):
    """A policy ready to sample, adapters merged: config of its run (for other folders the default one, pointed at it), architecture, parameters,
    chat template (and with it the tokenizer). step: of the run's checkpoint, -1 where there is none."""

    config: ConfigDict
    model: ModelConfig
    params: transformer.Params
    template: Template
    step: int = -1

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        return self.template.tokenizer


def policy_of(
    path: str | os.PathLike[str], *, mesh: Any = None, dtype: str | None = None, chat: Mapping[str, Any] | None = None
) -> Policy:
    """Load a policy.

    Args:
        path: workdir (newest step), its `checkpoints` folder, a step folder, a Hugging Face folder, `gguf:FILE` or `gguf:PACKAGE`.
        mesh: place the parameters over it by their logical axes; None = the default device.
        dtype: of the parameters, `float32` or `bfloat16`; None = as they are in a run, else float32.
        chat: fields of the config's `chat` section to set (wire, thinking, ...), over what the run or the folder says.

    Raises:
        ValueError: nothing there, no checkpoint yet, weights or tokenizer missing or damaged; one line with the remedy.
    """
    name = os.fspath(path)
    if name.startswith("gguf:") or is_hugging_face(Path(name)):
        config = _hf_config(name, dict(chat or {}))
        template = make_template(config)
        known, size = weights.architecture(name).vocab, template.tokenizer.size
        if size > known:  # JAX would read the last row of the embedding for the ids beyond
            raise ValueError(f"{name}: the tokenizer has {size} ids, the model knows {known}; take the tokenizer of this model")
        model, params = weights.load(name, mesh=mesh, dtype=dtype)
        return Policy(config, model, params, template)
    folder, config = run_config(name)
    config.chat.update(dict(chat or {}))
    template = make_template(config)
    model = architecture(config, template.tokenizer)
    params = run_params(folder, config, model, mesh)
    if dtype is not None:
        params = jax.tree.map(lambda x: x.astype(dtype), params)
    return Policy(config, dataclasses.replace(model, lora=None), params, template, int(folder.name))


def run_config(path: str | os.PathLike[str]) -> tuple[Path, ConfigDict]:
    """(step folder, config of the run) of a workdir, its checkpoints folder or a step folder. Raises ValueError."""
    path = Path(path)
    if not path.is_dir():
        raise ValueError(f"{path}: no such folder; give a workdir, a step folder, a Hugging Face folder or gguf:NAME")
    try:
        folder = step_folder(path)
    except FileNotFoundError:
        begun = (path / "config.json").is_file() or (path / FOLDER).is_dir()
        reason = "the run has saved no checkpoint yet" if begun else _neither(path)
        raise ValueError(f"{path}: {reason}") from None
    try:
        stored = read_run(folder)["config"]
    except ValueError:
        raise
    except Exception as error:  # Orbax and TensorStore raise whatever met them on a damaged folder
        raise ValueError(_damaged(folder, error)) from error
    config = get_config()
    with config.unlocked():
        _fill(config, stored)
    return folder, config


def make_template(config: Any, tokenizer: tokenizers.Tokenizer | None = None) -> Template:
    """The chat template of the config's `chat` section, unchecked. tokenizer: its own, None = it is loaded. Raises ValueError."""
    c = config.chat
    try:
        tokenizer = tokenizer or tokenizers.load(c.tokenizer, c.template)
    except FileNotFoundError as error:
        raise ValueError(f"{error}; the run's tokenizer must be where its config says") from error
    return Template(tokenizer, wire=c.wire, history=c.history, thinking=c.thinking, result_tokens=c.tool_result_tokens)


def is_hugging_face(path: Path) -> bool:
    """Whether the folder holds a model rather than a run: `config.json` of both has the same name, not the same fields."""
    if (path / FOLDER).is_dir() or (path / "params").is_dir() or not path.is_dir():
        return False
    if any(path.glob("*.safetensors")):
        return True
    try:
        return "model_type" in read_object(path / "config.json")
    except ValueError:
        return False


def _neither(path: Path) -> str:
    pickles = " (torch .bin files are pickles and are not read: save the model again with safe_serialization=True)"
    return "neither a run's checkpoints nor config.json with *.safetensors" + (pickles if any(path.glob("*.bin")) else "")


def _hf_config(name: str, chat: dict[str, Any]) -> ConfigDict:
    """The default config pointed at the folder. How it writes calls: what an export recorded, else the wire that its chat template
    passes the self-checks with. Histories are appended to, whatever the template does with old turns."""
    config = get_config()
    config.model.source = config.chat.tokenizer = name
    config.chat.history = "append"
    recorded = _recorded(Path(name) / CHAT_FILE, config.chat)
    config.chat.update({**recorded, **chat})
    if "wire" not in recorded and "wire" not in chat:
        config.chat.wire = _wire(config)
    return config


def _recorded(file: Path, like: Mapping[str, Any]) -> dict[str, Any]:
    """What an export recorded of its `chat` section; fields that this version does not know are left out. Raises ValueError."""
    found = {name: value for name, value in (read_object(file) if file.is_file() else {}).items() if name in like}
    for name, value in found.items():
        if type(value) is not type(like[name]):
            raise ValueError(f"{file}: {name}={value!r:.80}: must be a {type(like[name]).__name__}")
    return found


def _wire(config: ConfigDict) -> str:
    try:
        tokenizer = tokenizers.load(config.chat.tokenizer, config.chat.template)  # what is missing there is no fault of a wire
    except FileNotFoundError as error:
        raise ValueError(str(error)) from error
    faults = []
    for wire in WIRES:
        config.chat.wire = wire
        try:
            make_template(config, tokenizer).check()
            return wire
        except ValueError as error:
            faults.append(f"{wire}: {error}")
    raise ValueError(f"{config.chat.tokenizer}: its chat template passes the self-checks with no wire ({faults[0]})")


def _fill(config: Any, stored: Mapping[str, Any]) -> None:
    """Stored values over the defaults; fields that this version does not know are left out, lists become tuples as they were."""
    for name, value in stored.items():
        if name not in config:
            continue
        if isinstance(value, Mapping):
            _fill(config[name], value)
        else:
            config[name] = tuple(value) if isinstance(value, list) else value


def run_params(folder: Path, config: Any, model: ModelConfig, mesh: Any = None) -> transformer.Params:
    """Plain parameters of a run's step folder; adapters are merged into the base that the run's config names.

    Raises ValueError when the folder holds another model, or the base is no longer the one that the adapters were trained beside.
    """
    shapes = jax.eval_shape(lambda: transformer.init(model, jax.random.key(0)))
    places = None if mesh is None else lora.trainable(shardings(shapes, transformer.logical_axes(model), mesh))
    try:
        params = load_params(folder, places)
    except Exception as error:  # Orbax and TensorStore raise whatever met them on a damaged folder
        raise ValueError(_damaged(folder, error)) from error
    if jax.tree.map(lambda x: x.shape, params) != jax.tree.map(lambda x: x.shape, lora.trainable(shapes)):
        raise ValueError(
            f"{folder} holds a model of another shape than the config says: put model.* (and the folder that model.source names) back "
            "to what they were when the run began"
        )
    if model.lora is None:
        return params
    base = base_params(config, dataclasses.replace(model, lora=None), mesh)
    check_base(folder, read_run(folder)["extra"], base)
    places = None if mesh is None else jax.tree.map(lambda x: x.sharding, base)
    return jax.jit(lambda b, a: lora.merged(lora.joined(b, a), model)[0], out_shardings=places)(base, params)


def _damaged(folder: Path, error: Exception) -> str:
    """What to say of a step folder that cannot be read, with the step before it as the way out."""
    older = [int(p.name) for p in folder.parent.iterdir() if p.name.isdecimal() and int(p.name) < int(folder.name)]
    remedy = f"the step before it is {folder.parent / str(max(older))}" if older else "there is no older step beside it"
    return f"{folder} is damaged ({type(error).__name__}: {' '.join(str(error).split())[:120]}); {remedy}"


def check_base(what: Any, extra: Mapping[str, Any], base: Any) -> None:
    """Raises ValueError when `base` is not what the adapters of `extra` were trained beside."""
    if extra.get("base") != int(lora.checksum(base)):
        raise ValueError(
            f"{what}: its adapters belong to another base; put back what model.source and checkpoint.init named then"
        )
