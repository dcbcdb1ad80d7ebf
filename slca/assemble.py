"""Config -> the parts of a run: tokenizer, template, architecture, mesh, sampler, simulator, algorithm, parameters.

Training, evaluation, serving and notebooks assemble a run here, so that all of them see the same parts.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from slca import processes
from slca.algorithm_fit import apply_record, no_room
from slca.chat import tokenizer as tokenizers
from slca.chat.template import Template
from slca.credit.record import Algorithm
from slca.learn.forward import policy_forward
from slca.learn.sharding import make_fetch, make_mesh, own_mesh, row_shards, settled, shardings
from slca.policy import lora, transformer, weights
from slca.policy.attention import refusal
from slca.policy.config import ModelConfig
from slca.rollout.sampler import Sampler
from slca.sgls.simulator import Simulator
from slca.simulate import make_simulator
from slca.validate import ConfigError


class Parts(NamedTuple):
    """What a run is made of, apart from its parameters. hidden and unembed are the forward pass as pure functions of them.

    mesh: all devices, None for a single one; here: this process's own devices, the same as `mesh` when it is the only process.
    The sampler works on `here`.
    """

    tokenizer: Any
    template: Template
    model: ModelConfig
    mesh: jax.sharding.Mesh | None
    here: jax.sharding.Mesh | None
    sampler: Sampler
    simulator: Simulator
    algorithm: Algorithm
    hidden: Callable[..., Any]
    unembed: Callable[..., Any]


def assemble(config: Any, record: Algorithm | None = None) -> Parts:
    """Build every part; raises ConfigError where the config and the files it names do not fit each other.

    record: what `apply_record(config)` returned, None = it is applied here.
    """
    if processes.count() == 1 and (others := jax.process_count()) > 1:  # each would take itself for the whole run
        raise ConfigError(
            f"the devices here belong to {others} processes, which this one has not joined: set SLCA_DISTRIBUTED=1 on every host, or "
            "name the others with --coordinator, --process_id and --num_processes"
        )
    record = record or apply_record(config)
    if config.run.compile_cache and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(Path.home() / ".cache" / "slca" / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # the many small ones are half a second of a start
    tokenizer = tokenizers.load(config.chat.tokenizer, config.chat.template)
    try:
        template = Template(
            tokenizer,
            wire=config.chat.wire,
            history=config.chat.history,
            thinking=config.chat.thinking,
            result_tokens=config.chat.tool_result_tokens,
        )
        template.check()
    except ValueError as error:
        named = "template" if config.chat.template else "tokenizer"
        raise ConfigError(f"chat.{named}={config.chat[named]}: {error}") from error
    model = architecture(config, tokenizer)
    check_attention(config, model, jax.default_backend())
    mesh = make_mesh(config.mesh) if jax.device_count() > 1 else None
    if fault := no_room(config, record, row_shards(mesh) // processes.count()):
        raise ConfigError(fault)
    here = own_mesh(mesh) if mesh is not None and processes.count() > 1 else mesh
    hidden, unembed = policy_forward(model, mesh)
    try:
        simulator = make_simulator(config, model, template)
    except (ValueError, ImportError) as error:
        raise ConfigError(str(error) if "sgls." in str(error) else f"sgls.backend={config.sgls.backend}: {error}") from error
    return Parts(
        tokenizer=tokenizer,
        template=template,
        model=model,
        mesh=mesh,
        here=here,
        sampler=make_sampler(config, model, here),
        simulator=simulator,
        algorithm=record,
        hidden=hidden,
        unembed=unembed,
    )


def architecture(config: Any, tokenizer: Any) -> ModelConfig:
    """The model's shape, from `model.source`, or made up for `model.source="random"`."""
    if config.model.source == "random":
        model = ModelConfig.random(config.model, _rounded(tokenizer.size))
        if tokenizer.size > model.vocab:
            raise ConfigError(f"model.vocab={model.vocab}: chat.tokenizer has {tokenizer.size} ids; 0 = as many as it has")
    else:
        model = weights.architecture(config.model.source).run_as(config.model)
        if tokenizer.size > model.vocab:
            raise ConfigError(
                f"chat.tokenizer has {tokenizer.size} ids, model.source={config.model.source} knows {model.vocab}"
            )
    return lora.with_lora(model, config.model.lora)


def check_attention(config: Any, model: ModelConfig, platform: str) -> None:
    """Raises ConfigError where `model.attention` cannot run on `platform` with one of the run's rows and prompts."""
    lengths = {
        *config.train.row_lengths,
        *(min(bucket, cache_length(config, model)) for bucket in config.rollout.prompt_buckets),
        *([config.sft.row_length] if config.sft.steps else []),
    }
    for length in sorted(lengths):
        if reason := refusal(config.model.attention, platform, model.dtype, length, model.head_dim):
            raise ConfigError(f"model.{reason}")


def own_parts(parts: Parts) -> tuple[Parts, Callable[[Any], Any]]:
    """(the parts as this process uses them alone, between updates; fetch(params) -> the parameters for them).

    Of several processes each gets a whole copy, in the compute dtype: nothing is trained with it, and masters would take twice the room.
    """
    if processes.count() == 1:
        return parts, lambda params: params
    hidden, unembed = policy_forward(parts.model, parts.here)
    fetch = make_fetch(parts.mesh, parts.here, transformer.logical_axes(parts.model))  # type: ignore[arg-type]
    shrink = jax.jit(lambda params: transformer.computed(params, parts.model))
    return parts._replace(mesh=parts.here, hidden=hidden, unembed=unembed), lambda params: fetch(shrink(params))


def make_sampler(
    config: Any, model: ModelConfig, mesh: jax.sharding.Mesh | None, slots: int = 0, shared: int | None = None
) -> Sampler:
    """The slot sampler of the config's rollout section; `slots` overrides its number of rows. Processes and shards of rows share the
    slots evenly: their number is rounded up for that.

    shared: slots that share a prompt; None = rollout.shared_slots, or none where `slots` is given (evaluation: groups of one).
    """
    r = config.rollout
    shared = (0 if slots else r.shared_slots) if shared is None else shared
    unit, share = row_shards(mesh) * max(1, shared), min(r.slots, r.prompts * r.group)
    share = -(-share // (processes.count() * unit)) * unit
    return Sampler(
        model,
        slots=slots or share,
        cache_length=cache_length(config, model),
        prompt_buckets=tuple(r.prompt_buckets),
        suffix_buckets=tuple(r.suffix_buckets),
        decode_steps=r.decode_steps,
        cache_dtype=r.cache_dtype,
        shared_slots=shared,
        own_length=r.max_response_tokens if shared else 0,
        mesh=mesh,
    )


def cache_length(config: Any, model: ModelConfig) -> int:
    """Tokens that a slot has room for: a whole episode."""
    return min(config.rollout.max_prompt_tokens + config.rollout.max_response_tokens, model.max_length)


def initial_params(config: Any, parts: Parts) -> Any:
    """What a run starts from, placed on the mesh: `base_params`, with fresh adapters beside them where the config asks for LoRA."""
    model = parts.model
    params = base_params(config, dataclasses.replace(model, lora=None), parts.mesh)
    if model.lora is not None:
        shapes = jax.eval_shape(lambda: transformer.init(model, jax.random.key(0)))
        places = None if parts.mesh is None else lora.trainable(shardings(shapes, transformer.logical_axes(model), parts.mesh))
        adapters = jax.jit(lambda key: lora.trainable(transformer.init(model, key)), out_shardings=places)
        params = lora.joined(params, adapters(jax.random.key(config.run.seed)))
    return settled(params) if parts.mesh is None else params


def base_params(config: Any, model: ModelConfig, mesh: jax.sharding.Mesh | None) -> Any:
    """Random parameters, or those of `checkpoint.init`, else of `model.source`; `model` is the architecture without adapters."""
    shapes = jax.eval_shape(lambda: transformer.init(model, jax.random.key(0)))
    source = config.checkpoint.init or config.model.source
    if source == "random":
        places = None if mesh is None else shardings(shapes, transformer.logical_axes(model), mesh)
        return jax.jit(lambda key: transformer.init(model, key), out_shardings=places)(jax.random.key(config.run.seed))
    from slca.restore import is_hugging_face, run_config, run_params  # which assembles the run that it restores

    if not source.startswith("gguf:") and not is_hugging_face(Path(source)):
        try:
            folder, stored = run_config(source)
            return run_params(folder, stored, lora.with_lora(model, stored.model.lora), mesh)
        except (ValueError, OSError) as error:
            raise ConfigError(f"{source}: {error}") from error
    try:
        found, params = weights.load(source, mesh=mesh)
    except (ValueError, OSError) as error:
        raise ConfigError(f"{source}: {error}" if source not in str(error) else str(error)) from error
    if jax.tree.map(lambda x: x.shape, params) != jax.tree.map(lambda x: x.shape, shapes):
        raise ConfigError(f"{source} holds a {found.family} model of another shape than the config's")
    return params


def _rounded(size: int) -> int:
    """Vocabulary padded to a multiple of 64: matmuls and tensor-parallel splits like round sizes."""
    return -(-size // 64) * 64
