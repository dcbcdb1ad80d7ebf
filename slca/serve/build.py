"""From a checkpoint to the engine that serves it: which devices, which programs, how much cache."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from slca.chat.template import Template
    from slca.serve.slots import SlotEngine

SMALLEST_BUCKET = 128  # padded prompt length, tokens; doubled up to the context
SUFFIX_BUCKETS = (32, 128)  # padded lengths of what a conversation adds to a kept row; more goes in several pieces


def build(options: argparse.Namespace, ready: Callable[[], None] = lambda: None) -> SlotEngine:
    """The engine of the command's options. Raises ValueError with the remedy where there is none to be had."""
    from slca.learn.sharding import row_shards
    from slca.restore import policy_of
    from slca.rollout.sampler import Sampler
    from slca.serve.slots import APPEND_COST, SlotEngine
    from slca.sgls.grammar import available

    mesh = mesh_of(options.checkpoint, options.mesh)
    policy = policy_of(options.checkpoint, mesh=mesh, chat={"wire": options.wire} if options.wire else None)
    policy.template.check()
    model = policy.model
    if options.dtype:
        policy.config.model.dtype = options.dtype
        model = model.run_as(policy.config.model)
    context = context_of(options.context, model.max_length, policy.template)
    shards = row_shards(mesh)
    sampler = Sampler(
        model, slots=-(-options.slots // shards) * shards, cache_length=context, prompt_buckets=buckets(context),
        suffix_buckets=tuple(size for size in SUFFIX_BUCKETS if size < context) or SUFFIX_BUCKETS[:1],
        decode_steps=policy.config.rollout.decode_steps, cache_dtype=options.dtype or policy.config.rollout.cache_dtype,
        constrained=available(), mesh=mesh,
    )  # fmt: skip
    spread = "" if mesh is None else f", over {' x '.join(f'{n} {axis}' for axis, n in mesh.shape.items())}"
    print(f"cache of {sampler.slots} slots x {context} tokens: {sampler.nbytes() / 2**20:.0f} MiB{spread}", flush=True)
    return SlotEngine(
        sampler, policy.params, policy.template, waiting=options.queue, warm=not options.cold, ready=ready,
        reuse=APPEND_COST if options.reuse else None,
    )  # fmt: skip


def mesh_of(checkpoint: str, asked: str) -> Mesh | None:
    """The mesh to serve on, None = one device: `--mesh`, else the run's own config, over every device there is.

    Raises ValueError when it does not fit the devices, or `asked` is no mesh.
    """
    import jax

    from configs.default import get_config
    from slca.learn.sharding import make_mesh
    from slca.restore import run_config

    section, source = get_config().mesh, "the default"
    if asked:
        section.update(axes_of(asked))
        source = f"--mesh={asked}"
    else:
        with contextlib.suppress(ValueError):  # no run: what else it is, is said when its parameters are read
            section, source = run_config(checkpoint)[1].mesh, "the run's config"
    if jax.device_count() == 1 and not asked:
        return None
    try:
        mesh = make_mesh(section)
    except ValueError as error:
        raise ValueError(f"{error} (of {source}); choose another by --mesh, for instance --mesh=data=-1,tensor=1") from None
    return mesh if mesh.size > 1 else None


def axes_of(text: str) -> dict[str, int]:
    """`data=2,tensor=4` -> sizes of all three axes; one that is not named has 1 device, but data what is left. Raises ValueError."""
    sizes = {"data": -1, "fsdp": 1, "tensor": 1}
    named = set()
    for part in text.split(","):
        axis, sign, number = (piece.strip() for piece in part.partition("="))
        digits = number.removeprefix("-")
        if not sign or axis not in sizes or axis in named or not (digits.isascii() and digits.isdigit() and len(digits) < 10):
            raise ValueError(f"--mesh={text}: AXIS=N,AXIS=N with the axes {', '.join(sizes)}, each once; -1 = what is left")
        named.add(axis)
        sizes[axis] = int(number)
    return sizes


def context_of(asked: int, longest: int, template: Template) -> int:
    """Tokens of a conversation, prompt and answer; asked = 0: 4096 or what the model may see. Raises ValueError."""
    if asked > longest:
        raise ValueError(f"--context={asked}: the model sees {longest} tokens at most")
    context = asked or min(4096, longest)
    least = len(template.prompt([{"role": "user", "content": "?"}]))
    if context <= least:
        raise ValueError(
            f"--context={context}: the prompt of a one-letter question alone has {least} tokens; {longest} are possible"
        )
    return context


def buckets(context: int) -> tuple[int, ...]:
    """Padded prompt lengths: powers of two up to the context."""
    sizes = [SMALLEST_BUCKET]
    while sizes[-1] < context:
        sizes.append(2 * sizes[-1])
    return tuple(min(size, context) for size in sizes)


def options_of(parser: argparse.ArgumentParser) -> None:
    """The flags that `build` reads, but --checkpoint."""
    parser.add_argument("--slots", type=int, default=16, help="rows decoded together; rounded up to what the mesh divides")
    parser.add_argument(
        "--context", type=int, default=0, help="tokens of prompt and answer; 0 = 4096 or what the model may see"
    )
    parser.add_argument("--queue", type=int, default=256, help="requests that may wait for a slot; further ones get 429")
    parser.add_argument(
        "--mesh",
        default="",
        metavar="AXIS=N,...",
        help="devices along data, fsdp, tensor; default: the run's own mesh, over all devices",
    )
    parser.add_argument(
        "--dtype", default="", choices=("", "float32", "bfloat16"), help="of compute and cache; default: the run's"
    )
    parser.add_argument(
        "--wire", default="", help="how calls are written: hermes | llama_json | llama_python; default: the run's"
    )
    parser.add_argument("--cold", action="store_true", help="take requests before every program is compiled")
    parser.add_argument(
        "--no-reuse", dest="reuse", action="store_false",
        help="compute every prompt whole, also where its beginning is still in a slot (the same answers but for near-ties)",
    )  # fmt: skip
