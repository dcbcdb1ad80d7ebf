"""Which settings make a program fit that does not."""

from __future__ import annotations

from slca.aot.chips import GIB
from slca.aot.measure import Result
from slca.aot.programs import Shapes


def advice(result: Result, shapes: Shapes) -> list[str]:
    """Settings to change, the most effective first; each says what it saves."""
    found = _learner(result, shapes) if result.program.name == "update" else _sampler(result, shapes)
    if shapes.reference:
        size = result.memory.beside / GIB
        found.append(
            f"loss.kl_coef=0 and train.keep_reference=False: no frozen copy of the policy (part of {size:.1f} GiB beside)"
        )
    return [*found, "a topology with more chips, or more memory a chip"]


def _learner(result: Result, s: Shapes) -> list[str]:
    c, mesh, found = s.config, s.mesh.shape, []
    if c.model.attention in ("xla", "cudnn"):
        found.append("model.attention=splash (or blockwise): no T x T scores")
    if c.model.remat != "block":
        found.append("model.remat=block: only the input of each block is kept for the backward pass")
    if c.train.micro_rows > 1:
        found.append(f"train.micro_rows={max(1, c.train.micro_rows // 2)}: activations of fewer rows at once")
    if c.model.dtype != "bfloat16":
        found.append("model.dtype=bfloat16: activations of half the size")
    if c.train.logprob_bytes / mesh["tensor"] > result.memory.temporaries / 8:
        found.append(f"train.logprob_bytes={c.train.logprob_bytes // 4}: smaller chunks of logits")
    if c.optim.name == "adamw" and result.memory.arguments > result.memory.temporaries:
        found.append("optim.name=adafactor: no full second moments")
    if mesh["data"] > 1:
        found.append(f"mesh.data=1, mesh.fsdp={mesh['data'] * mesh['fsdp']}: parameters and moments split further")
    for tensor in (2 * mesh["tensor"], 4 * mesh["tensor"]):
        if s.here.size % tensor == 0 and s.model.heads % tensor == 0:  # the chips of a host: no row lies on two
            found.append(f"mesh.tensor={tensor}: activations of each row split over more chips")
            break
    return found


def _sampler(result: Result, s: Shapes) -> list[str]:
    r, found = s.config.rollout, []
    if r.slots > s.hosts * s.here.shape["data"] * s.here.shape["fsdp"]:
        found.append(f"rollout.slots below {r.slots}: a smaller cache (--slots=search finds the most that fit)")
    if not r.shared_slots and r.group > 1:
        found.append(f"rollout.shared_slots={r.group}: the rows of a group keep one copy of their prompt")
    if r.cache_dtype == "float32":
        found.append("rollout.cache_dtype=bfloat16: half the cache")
    if s.config.model.dtype != "bfloat16":
        found.append("model.dtype=bfloat16: weights of half the size for decoding")
    if s.config.model.attention in ("xla", "cudnn") and result.program.name == "prefill":
        found.append("model.attention=splash (or blockwise): no T x T scores")
    if result.program.name == "append":
        found.append(f"rollout.suffix_buckets: a longest piece shorter than {max(r.suffix_buckets)} tokens")
    if s.here.shape["tensor"] < s.here.size:
        found.append(f"mesh.tensor={s.here.size}: weights and KV heads split over all chips of a host")
    longest = r.max_prompt_tokens + r.max_response_tokens
    return [*found, f"rollout.max_prompt_tokens, rollout.max_response_tokens: shorter rows than {longest:,} tokens"]
