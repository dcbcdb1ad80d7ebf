"""Toucan data as tasks: the paper's RL and SFT rows, and the way there from raw Toucan-1.5M rows.

    pip install '.[data]'                                               # reads parquet (pyarrow)
    python -m slca.tasks.toucan --raw Toucan-1.5M/SFT/*.parquet --out data   # data/toucan_sft.jsonl, data/toucan_rl.jsonl
    python -m slca.tasks.toucan --rl rl.parquet --eval eval.parquet --out data   # the paper's own rows

The files are those that configs/7b_sft.py and configs/7b.py name; toucan_rl.jsonl also holds the held-out tasks (split
heldout_tasks). From raw rows, in this order, as the paper does (arXiv 2609.29050, data): badly formed and irrelevant dialogues
are dropped; multi-turn dialogues become one sample a user turn (its history, then the reply), without the first turn; 4,000
samples are held out, 3,000 of single-turn and 1,000 of multi-turn dialogues; of the rest 4/7 are for SFT and 3/7 for RL. A
dialogue is never on two sides. How the authors filtered 1.5 M rows down to 119,279 is not published, so the rows are not the
same ones.
Exit codes: 0 written; 2 the command or a file is wrong; 1 no row was usable.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slca.tasks.rowfiles import Nothing, Row, Writer, rows

if TYPE_CHECKING:
    from slca.types import Message, Task, ToolCall

HELD_OUT = (3_000, 1_000)  # samples of single-turn and of multi-turn dialogues
SFT_SHARE = (4, 7)
TRAIN, EVAL = "train", "heldout_tasks"


# One row


def rl_task(row: Row, name: str, split: str = TRAIN) -> Task:
    """A row of the paper's RL files: prompt, reward_model.ground_truth, extra_info, tools.

    `meta.flags` names what is wrong with its gold: `flat_gold` (no steps: each call becomes a step, the parallel term means
    nothing), `names_only_gold` (no arguments: the key and value terms are full for nothing), `empty_gold` (no call is right).
    Raises Unusable with the reason; gold of a tool that is not offered is one.
    """
    from slca.tasks.dialogues import Unusable, conversation, loaded

    truth = loaded((loaded(row.get("reward_model")) or {}).get("ground_truth"))
    if not isinstance(truth, Mapping):
        raise Unusable("no ground truth")
    messages = conversation(loaded(row.get("prompt")) or [])
    steps, flags = gold_steps(truth.get("gold_tool_calls"))
    tools = tool_specs(truth.get("tool_schemas") or row.get("tools"))
    extra = loaded(row.get("extra_info")) or {}
    meta = {"source": "toucan", "subset": truth.get("subset_name"), "question": truth.get("question_content"), "flags": flags}
    meta["extra"] = {key: value for key, value in extra.items() if isinstance(value, str | int | float | bool)}
    return _task(name, messages, tools, steps, [], split, meta)


def sft_task(row: Row, name: str, split: str = TRAIN) -> Task:
    """A row of the SFT files, as messages or in ShareGPT form: everything up to the last user turn is the prompt, the rest is
    the demonstration. Raises Unusable."""
    from slca.tasks.dialogues import Unusable, conversation, loaded, steps_of

    raw = loaded(row.get("messages") or row.get("conversations")) or []
    system = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    messages = conversation([*system, *raw])
    last = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)
    if last < 0 or last == len(messages) - 1:
        raise Unusable("no user turn with a reply")
    demo = messages[last + 1 :]
    return _task(name, messages[: last + 1], tool_specs(row.get("tools")), steps_of(demo), demo, split, {"source": "toucan"})


def raw_tasks(row: Row) -> list[Task]:
    """Samples of a raw Toucan-1.5M row (uuid, subset_name, messages, available_tools): one of a single-turn dialogue, one for
    each user turn after the first of a longer one. Raises Unusable for a dialogue that teaches nothing or contradicts
    itself."""
    from slca.tasks.dialogues import Unusable, conversation, loaded, steps_of

    name, subset = str(row.get("uuid") or ""), str(row.get("subset_name") or "")
    messages = conversation(loaded(row.get("messages")) or [])
    tools = tool_specs(row.get("available_tools") or row.get("tools"))
    known = {tool["function"]["name"] for tool in tools}
    turns = [i for i, message in enumerate(messages) if message["role"] == "user"]
    if not name or not turns:
        raise Unusable("no uuid or no user turn")
    _sound(messages, known)
    out = []
    for number, start in enumerate(turns):
        if len(turns) > 1 and number == 0:
            continue
        demo = messages[start + 1 : turns[number + 1] if number + 1 < len(turns) else None]
        if not demo or demo[-1].get("tool_calls") or demo[-1]["role"] != "assistant":
            raise Unusable("a user turn has no final answer")
        meta = {"source": "toucan", "subset": subset, "turn": number, "dialogue": name, "question": messages[start]["content"]}
        steps = steps_of(demo)
        if steps:
            out.append(_task(f"{name}-{number}", messages[: start + 1], tools, steps, demo, TRAIN, meta))
    if not out:
        raise Unusable("no user turn that needs a tool")
    return out


def _sound(messages: Sequence[Message], known: set[str]) -> None:
    from slca.tasks.dialogues import Unusable

    waiting = 0
    for message in messages:
        calls = message.get("tool_calls") or []
        if waiting and message["role"] != "tool":
            raise Unusable("a call has no result")
        if any(call["function"]["name"] not in known for call in calls):
            raise Unusable("a call of a tool that is not offered")
        waiting += len(calls) - (message["role"] == "tool")
    if waiting:
        raise Unusable("a call has no result")


def tool_specs(value: Any) -> list[dict[str, Any]]:
    """Usable tools of a list of specs, of JSON text or of a mapping of names to schemas. Raises Unusable when there is none."""
    from slca.tasks.dialogues import Unusable, loaded
    from slca.tasks.schema import ToolSet

    value = loaded(value)
    if isinstance(value, Mapping):
        value = [{"name": name, **spec} if isinstance(spec, Mapping) else spec for name, spec in value.items()]
    specs = ToolSet.load([loaded(spec) for spec in value or []]).specs
    if not specs:
        raise Unusable("no usable tool")
    return specs


def gold_steps(value: Any) -> tuple[list[list[ToolCall]], list[str]]:
    """(steps of calls, flags) of `gold_tool_calls`: nested, flat, or names alone. Raises Unusable."""
    from slca.tasks.dialogues import Unusable, calls_of, loaded

    value = loaded(value)
    if not isinstance(value, list):
        raise Unusable("gold calls are no list")
    value = [loaded(step) for step in value]
    flags = [] if value else ["empty_gold"]
    if any(not isinstance(step, list) for step in value):
        flags.append("flat_gold")
        value = [step if isinstance(step, list) else [step] for step in value]
    calls = [loaded(call) for step in value for call in step]
    if any(isinstance(call, str) or (isinstance(call, Mapping) and not {"arguments", "parameters", "function"} & call.keys()) for call in calls):  # fmt: skip
        flags.append("names_only_gold")
    steps = [[{"name": call} if isinstance(call, str) else call for call in map(loaded, step)] for step in value]
    return [calls_of(step) for step in steps if step], flags


def _task(
    name: str, messages: list[Message], tools: list[dict[str, Any]], steps: list[list[ToolCall]], demo: list[Message], split: str,
    meta: dict[str, Any],
) -> Task:  # fmt: skip
    from slca.tasks.dialogues import Unusable
    from slca.types import Task

    if {call.name for step in steps for call in step} - {tool["function"]["name"] for tool in tools}:
        raise Unusable("a call of a tool that is not offered")
    if not messages:
        raise Unusable("no message")
    kind = "abstain" if not steps else "sequential" if len(steps) > 1 else "parallel" if len(steps[0]) > 1 else "single"
    return Task(name, messages, tools, steps, demo=demo, kind=kind, split=split, meta=meta)


# Files


def _converted(read: Callable[[], Any]) -> Any:
    """What a conversion gives. Raises Unusable also for a row whose parts have other types than a Toucan row's."""
    from slca.tasks.dialogues import Unusable

    try:
        return read()
    except Unusable:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        raise Unusable("not a Toucan row") from None


def from_raw(paths: Sequence[str], out: Path, *, seed: int, held_out: tuple[int, int], keep_irrelevant: bool) -> Counter[str]:
    """Write toucan_sft.jsonl and toucan_rl.jsonl below `out`; returns counts. Two passes, one row in memory at a time. Raises
    Nothing where no row is usable."""
    from slca.tasks.dialogues import Unusable

    def read(row: Row) -> list[Task]:
        if not keep_irrelevant and "irrelevant" in str(row.get("subset_name")):
            raise Unusable("irrelevant")
        return _converted(lambda: raw_tasks(row))

    counts: Counter[str] = Counter()
    dialogues: dict[str, tuple[bool, int]] = {}  # uuid -> (several turns, samples)
    for row in rows(paths):
        counts["raw rows"] += 1
        try:
            made = read(row)
            dialogues.setdefault(made[0].meta["dialogue"], (made[0].meta["turn"] > 0, len(made)))
        except Unusable as reason:
            counts[f"dropped: {reason}"] += 1
    side = sides(dialogues, seed, held_out)
    files = out / "toucan_sft.jsonl", out / "toucan_rl.jsonl"
    if not side:
        raise Nothing(paths, files, counts)
    with Writer(files[0]) as sft, Writer(files[1]) as rl:
        for row in rows(paths):
            if str(row.get("uuid")) not in side:
                continue
            try:
                made = read(row)
            except Unusable:  # counted above; another row of this uuid may be usable
                continue
            where, samples = side.pop(made[0].meta["dialogue"])  # a uuid that comes twice is taken once
            for task in made[:samples]:
                counts[f"samples: {where}"] += 1
                (sft if where == "sft" else rl).write(task, EVAL if where == "held out" else TRAIN)
    return counts


def sides(dialogues: Mapping[str, tuple[bool, int]], seed: int, held_out: tuple[int, int]) -> dict[str, tuple[str, int]]:
    """uuid -> (held out | sft | rl, samples of it to take). The order is a hash of seed and uuid: files and their order do not
    matter."""

    def order(name: str) -> bytes:
        return hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()

    ordered = sorted(dialogues, key=order)
    left = list(held_out)
    out = {}
    for name in ordered:
        several, samples = dialogues[name]
        if left[several] > 0:
            out[name] = ("held out", min(samples, left[several]))
            left[several] -= samples
    rest = [name for name in ordered if name not in out]
    total, taken = sum(dialogues[name][1] for name in rest), 0
    for name in rest:
        out[name] = ("sft" if taken * SFT_SHARE[1] < total * SFT_SHARE[0] else "rl", dialogues[name][1])
        taken += dialogues[name][1]
    return out


def from_rows(paths: Sequence[str], read: Any, writer: Writer, split: str, drop_flagged: bool) -> Counter[str]:
    """Append the tasks of the paper's rows to a file; returns counts. Raises Nothing where no row is usable."""
    from slca.tasks.dialogues import Unusable

    counts: Counter[str] = Counter()
    for number, row in enumerate(rows(paths)):
        try:
            task = _converted(partial(read, row, f"toucan-{split}-{number}", split))
        except Unusable as reason:
            counts[f"dropped: {reason}"] += 1
            continue
        flags = task.meta.get("flags", ())
        counts.update(f"flag: {flag}" for flag in flags)
        if drop_flagged and {"flat_gold", "names_only_gold"} & set(flags):
            counts["dropped: flagged"] += 1
            continue
        counts[f"samples: {split}"] += 1
        writer.write(task, split)
    if paths and not counts[f"samples: {split}"]:
        raise Nothing(paths, [writer.path], counts)
    return counts


# The command


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slca.tasks.toucan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, what in (("raw", "Toucan-1.5M rows"), ("rl", "the paper's RL rows"), ("sft", "the paper's SFT rows"), ("eval", "the paper's evaluation rows, kept beside --rl")):  # fmt: skip
        parser.add_argument(f"--{name}", nargs="+", default=[], metavar="FILE", help=f"{what}: .parquet, .json or .jsonl")
    parser.add_argument("--out", type=Path, default=Path("data"), metavar="DIR", help="where the files go")
    parser.add_argument("--seed", type=int, default=0, help="of the split of raw rows")
    parser.add_argument(
        "--held-out", type=int, nargs=2, default=HELD_OUT, metavar="N", help="single-turn and multi-turn samples"
    )
    parser.add_argument("--keep-irrelevant", action="store_true", help="raw dialogues of the subset `irrelevant` too")
    parser.add_argument("--drop-flagged", action="store_true", help="leave out RL rows with flat or names-only gold")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments()
    options = parser.parse_args(argv)
    files = {name: [path for given in getattr(options, name) for path in sorted(glob.glob(given)) or [given]] for name in ("raw", "rl", "sft", "eval")}  # fmt: skip
    if bool(files["raw"]) == any(files[name] for name in ("rl", "sft", "eval")) or (files["eval"] and not files["rl"]):
        parser.error("give --raw, or the paper's rows: --rl (with --eval) and --sft")
    counts: Counter[str] = Counter()
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        if files["raw"]:
            counts = from_raw(
                files["raw"], options.out, seed=options.seed, held_out=tuple(options.held_out), keep_irrelevant=options.keep_irrelevant
            )  # fmt: skip
        if files["rl"]:
            with Writer(options.out / "toucan_rl.jsonl") as writer:
                counts += from_rows(files["rl"], rl_task, writer, TRAIN, options.drop_flagged)
                counts += from_rows(files["eval"], rl_task, writer, EVAL, options.drop_flagged)
        if files["sft"]:
            with Writer(options.out / "toucan_sft.jsonl") as writer:
                counts += from_rows(files["sft"], sft_task, writer, TRAIN, options.drop_flagged)
    except Nothing as reason:
        _show(counts + reason.counts)
        print(f"slca.tasks.toucan: {reason}", file=sys.stderr)
        return 1
    except (OSError, ValueError, ImportError) as error:
        print(f"slca.tasks.toucan: {error}", file=sys.stderr)
        return 2
    _show(counts)
    return 0


def _show(counts: Counter[str]) -> None:
    for name, n in sorted(counts.items()):
        print(f"{n:9,d}  {name}")


if __name__ == "__main__":
    sys.exit(main())
