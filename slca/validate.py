"""One function that rejects a nonsensical config before a device is touched, naming the field and the remedy."""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from typing import Any

from slca import algorithm_fit
from slca.bounds import CHOICES, LENGTHS, NOT_NEGATIVE, POSITIVE, RANGES, SHARES
from slca.policy.config import LORA_TARGETS


class ConfigError(ValueError):
    """A config that cannot run. Each line names a field, what is wrong with it and what to do."""


def validate(config: Any, processes: int = 1) -> None:
    """Raise ConfigError with every fault found (one line each); touches no device and no network. processes: those of the run."""
    faults = [*_numbers(config), *_values(config)]
    for check in (
        _steps,
        _rollout,
        _lengths,
        _model,
        _simulator,
        _services,
        partial(algorithm_fit.faults, processes=processes),
        _waits,
        partial(_processes, n=processes),
    ):
        try:
            faults += check(config)
        except (ArithmeticError, TypeError, ValueError):
            if not faults:  # otherwise it stumbled over a field that is named already
                raise
    if faults:
        first = {fault.partition(":")[0]: fault for fault in reversed(faults)}  # one line a field: mended, it may say the next
        raise ConfigError("\n".join(fault for fault in faults if first[fault.partition(":")[0]] is fault))


def field(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = config[name]
    return config


def _numbers(c: Any, prefix: str = "") -> list[str]:
    """Fields that are not finite, tuples of lengths that are empty or hold something else, numbers outside their range."""
    out = []
    for name, value in c.items():
        if hasattr(value, "items"):
            out += _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, float) and not math.isfinite(value):
            out.append(f"{prefix}{name}={value}: must be a finite number")
    if prefix:
        return out
    for path in LENGTHS:
        lengths = tuple(field(c, path))
        if not lengths or not all(_number(n, int) and n > 0 for n in lengths):
            out.append(f"{path}={lengths}: needs one or more lengths in tokens, whole numbers above 0")
    temperatures, (low, high) = tuple(c.eval.temperatures), RANGES["rollout.temperature"]
    fine = all(_number(t, int | float) and (t == 0 or low <= t < high) for t in temperatures)
    if not fine or len(set(temperatures)) < len(temperatures):
        out.append(f"eval.temperatures={temperatures}: 0 (greedy), or numbers from 0.001 up to below 1000, each once")
    for path in ("tasks.domains", "tasks.kinds", "eval.splits", "model.lora.targets"):
        if not all(isinstance(name, str) for name in field(c, path)) or len(set(field(c, path))) < len(field(c, path)):
            out.append(f"{path}={tuple(field(c, path))}: names, each of them once")
    if 0 < c.loss.dual_clip <= 1 or c.loss.dual_clip < 0:
        out.append(f"loss.dual_clip={c.loss.dual_clip}: a bound above 1, or 0 (off)")
    if c.loss.correction == "mis" and not c.loss.correction_cap > 1:
        out.append(f"loss.correction_cap={c.loss.correction_cap}: mis keeps weights from 1 / cap to cap; a cap above 1")
    for path, (low, high) in RANGES.items():
        if not low <= field(c, path) < high:
            out.append(f"{path}={field(c, path)}: must lie in [{low}, {high})")
    return out


def _number(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _values(c: Any) -> list[str]:
    out = []
    recorded = algorithm_fit.recorded(c)
    for path, allowed in CHOICES.items():
        if (got := field(c, path)) not in allowed and got != recorded.get(path):
            out.append(f"{path}={got!r}: choose one of {', '.join(allowed)}")
    out += [f"{path}={field(c, path)}: must be above 0" for path in POSITIVE if not field(c, path) > 0]
    out += [f"{path}={field(c, path)}: must not be negative" for path in NOT_NEGATIVE if not field(c, path) >= 0]
    out += [f"{path}={field(c, path)}: is a share, 0 to 1" for path in SHARES if not 0 <= field(c, path) <= 1]
    for path in ("optim.lr", "sft.lr"):
        if not 0 < field(c, path) < 10:
            out.append(f"{path}={field(c, path)}: a learning rate lies between 0 and 10")
    return out


def _steps(c: Any) -> list[str]:
    """A step to profile that the run has not; a warmup that leaves no step of the run (as a share it never does)."""
    runs = {"optim": c.train.steps * c.train.mu * c.train.mini_batches, "sft": c.sft.steps}
    out = []
    if not -1 <= c.run.profile_step < max(1, c.train.steps):
        out.append(f"run.profile_step={c.run.profile_step}: an RL step of the {c.train.steps} (train.steps), from 0; -1 = none")
    return out + [
        f"{name}.warmup={c[name].warmup}: the run has {steps} optimiser steps; use fewer, or a share of them below 1"
        for name, steps in runs.items()
        if steps and c[name].warmup >= 1 and c[name].warmup >= steps
    ]


def _rollout(c: Any) -> list[str]:
    r, out = c.rollout, []
    if r.group < 2:
        out.append(f"rollout.group={r.group}: a group needs 2 members or more to have a spread to learn from (the paper: 16)")
    if r.top_p != 1.0 or r.top_k != 0:
        out.append(
            f"rollout.top_p={r.top_p}, rollout.top_k={r.top_k}: truncated sampling makes every importance ratio wrong; "
            "train with top_p=1.0 and top_k=0"
        )
    if not r.temperature > 0:
        out.append(
            f"rollout.temperature={r.temperature}: training samples; use a temperature above 0 (greedy is for evaluation)"
        )
    if r.prompts % c.train.mini_batches:
        out.append(
            f"rollout.prompts={r.prompts} is not divisible by train.mini_batches={c.train.mini_batches}: groups never split"
        )
    slots = min(r.slots, r.prompts * r.group)
    if r.shared_slots > 0 and (r.shared_slots > r.group or slots % r.shared_slots):
        out.append(
            f"rollout.shared_slots={r.shared_slots}: a number of slots that share the prompt of a group of {r.group} (rollout.group) "
            f"and divide the {slots} slots in use (rollout.slots, at most prompts x group); 0 = each slot holds its own prompt"
        )
    axes = {f"mesh.{name}": c.mesh[name] for name in ("data", "fsdp", "tensor")}
    if sum(v == -1 for v in axes.values()) > 1 or any(v < 1 and v != -1 for v in axes.values()):
        shown = ", ".join(f"{name}={size}" for name, size in axes.items())
        out.append(f"{shown}: sizes are 1 or more, and at most one may be -1 (what is left)")
    return out


def _lengths(c: Any) -> list[str]:
    r, out = c.rollout, []
    longest = r.max_prompt_tokens + r.max_response_tokens
    if longest > c.model.max_length:
        out.append(
            f"rollout.max_prompt_tokens + rollout.max_response_tokens = {longest} is beyond model.max_length={c.model.max_length}"
        )
    if longest > max(c.train.row_lengths):
        out.append(f"train.row_lengths={tuple(c.train.row_lengths)}: the longest must hold an episode of {longest} tokens")
    if c.train.share_prompts and not c.train.pack:
        out.append("train.share_prompts=True: rollouts of a group share their prompt inside a packed row; set train.pack=True")
    if c.train.share_prompts and c.model.attention == "splash":
        out.append(
            "train.share_prompts=True: model.attention='splash' knows no shared prefix; use 'auto', 'xla' or 'blockwise'"
        )
    if r.max_prompt_tokens > max(r.prompt_buckets):
        out.append(
            f"rollout.prompt_buckets={tuple(r.prompt_buckets)}: the largest must hold {r.max_prompt_tokens} prompt tokens"
        )
    if r.max_turn_tokens > r.max_response_tokens:
        out.append(
            f"rollout.max_turn_tokens={r.max_turn_tokens} is more than rollout.max_response_tokens={r.max_response_tokens}"
        )
    if c.sft.steps and c.sft.row_length > c.model.max_length:
        out.append(f"sft.row_length={c.sft.row_length} is beyond model.max_length={c.model.max_length}")
    return out


def _model(c: Any) -> list[str]:
    m, out = c.model, []
    if m.lora.rank and not set() < set(m.lora.targets) <= set(LORA_TARGETS):
        out.append(f"model.lora.targets={tuple(m.lora.targets)}: one or more of {', '.join(LORA_TARGETS)}")
    if m.heads % m.kv_heads:
        out.append(f"model.heads={m.heads} is not a multiple of model.kv_heads={m.kv_heads}")
    if m.attention == "cudnn" and m.dtype != "bfloat16":
        out.append(
            f"model.attention='cudnn': computes in bfloat16, not model.dtype={m.dtype!r}; use 'auto', 'xla' or 'blockwise'"
        )
    for path, word, weights in (
        ("model.source", "random", True),
        ("chat.tokenizer", "tiny", False),
        ("checkpoint.init", "", True),
    ):
        name = field(c, path)
        if name == word:
            continue
        if name.startswith("gguf:"):
            out += _gguf(path, name)
            continue
        folder = Path(name)
        what = "weights" if weights else "tokenizer"
        if os.path.isfile(name):
            out.append(f"{path}={name}: is a file; name a folder, or gguf:{name} for a GGUF file")
        elif not os.path.isdir(folder):
            out.append(
                f"{path}={name}: no such folder; put the model's {what} there first (a Hugging Face folder, for instance "
                f"`hf download Qwen/{folder.name} --local-dir {name}`), or point --config.{path} at one"
            )
        elif path == "model.source" and not _holds_weights(folder):
            out.append(f"{path}={name}: the folder holds no config.json with *.safetensors")
        elif path == "checkpoint.init" and not (_holds_weights(folder) or _holds_checkpoint(folder)):
            out.append(f"{path}={name}: the folder holds neither a run's checkpoints nor config.json with *.safetensors")
    return out


def _gguf(path: str, name: str) -> list[str]:
    from slca.chat.gguf_file import locate

    try:
        locate(name)
        return []
    except (ValueError, OSError) as error:
        return [f"{path}={name}: {error}"]


def _holds_weights(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def _holds_checkpoint(folder: Path) -> bool:
    """A step folder, or the checkpoints folder or workdir of a run with at least one step."""
    steps = folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder
    return (folder / "params").is_dir() or any(p.name.isdigit() and (p / "params").is_dir() for p in steps.iterdir())


def _services(c: Any) -> list[str]:
    out = []
    if c.sgls.backend == "openai" and not c.sgls.url.startswith(("http://", "https://")):
        out.append(
            f"sgls.url={c.sgls.url!r}: sgls.backend=openai needs an OpenAI-compatible endpoint such as http://host:8001/v1 "
            "(or use --config.sgls.backend=scripted, which needs none)"
        )
    for name in ("summary", "checker", "roles"):
        if c.reward[name] == "judge" and not c.reward.judge_url.startswith(("http://", "https://")):
            out.append(
                f"reward.judge_url={c.reward.judge_url!r}: reward.{name}=judge needs an OpenAI-compatible endpoint "
                f"(or use --config.reward.{name}=rule, which needs none)"
            )
    return out


def _waits(c: Any) -> list[str]:
    """Nothing that a rollout waits for may outlast the watchdog, which would take it for a hang."""
    limit, waits = c.run.watchdog_seconds, {f"rollout.tool_timeout={c.rollout.tool_timeout:g}": c.rollout.tool_timeout}
    if "judge" in (c.reward.summary, c.reward.checker, c.reward.roles):
        name = f"reward.judge_timeout={c.reward.judge_timeout:g} x (1 + reward.judge_retries={c.reward.judge_retries})"
        waits[name] = c.reward.judge_timeout * (1 + c.reward.judge_retries)
    return [
        f"run.watchdog_seconds={limit:g}: must be longer than {name} = {seconds:g} s, or 0 (no watchdog)"
        for name, seconds in waits.items()
        if 0 < limit <= seconds
    ]


def _processes(c: Any, n: int) -> list[str]:
    """What does not work in several processes."""
    if n == 1:
        return []
    out, share = [], n * c.train.mini_batches
    if c.rollout.prompts % share:
        out.append(
            f"rollout.prompts={c.rollout.prompts}: {n} processes with train.mini_batches={c.train.mini_batches} need a multiple of "
            f"{share}, so that each gets its part of every mini-batch"
        )
    if c.reward.summary_noise > 0:
        out.append(
            f"reward.summary_noise={c.reward.summary_noise:g}: is scaled by the tool reward's spread over the whole batch, of which {n} "
            "processes hold a part each; use one process"
        )
    return out


def _simulator(c: Any) -> list[str]:
    """What the simulator itself would refuse; its messages name the field."""
    from slca.sgls.options import Options

    try:
        Options(**{name: value for name, value in c.sgls.to_dict().items() if name != "backend"})
    except (TypeError, ValueError) as error:
        return [str(error) if "sgls" in str(error) else f"sgls: {error}"]
    return _simulators_model(c) if c.sgls.backend == "jax" else []


def _simulators_model(c: Any) -> list[str]:
    """The model behind sgls.backend=jax: it must be there, be long enough, and be held to schemas."""
    from slca.sgls import grammar

    g, out = c.sgls, []
    if g.mode != "paper" and not grammar.available():
        out.append("sgls.backend=jax: replies are held to their schemas by llguidance: pip install 'slca[grammar]'")
    if g.model and not g.model.startswith("gguf:"):
        folder = Path(g.model)
        if not os.path.isdir(folder) or not (_holds_weights(folder) or _holds_checkpoint(folder)):
            out.append(f"sgls.model={g.model}: neither a run, a step folder nor a Hugging Face folder with *.safetensors")
    longest = g.max_prompt_tokens + g.max_tokens
    if not g.model and c.model.source == "random" and longest > c.model.max_length:
        out.append(
            f"sgls.max_prompt_tokens + sgls.max_tokens = {longest} is beyond model.max_length={c.model.max_length}; lower them, raise "
            "it, or name another model in sgls.model"
        )
    return out
