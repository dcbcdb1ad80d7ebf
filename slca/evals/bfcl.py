"""Score a policy on BFCL with its official grader, unchanged, in a virtual environment of its own.

    python -m slca.evals.bfcl --setup                                             # once: 570 MB, about a minute
    python -m slca.evals.bfcl --checkpoint=runs/tiny-slca --categories=simple_python,multiple
    python -m slca.evals.bfcl --checkpoint=models/Qwen2.5-7B-Instruct --paper-subset --context=32768
    python -m slca.evals.bfcl --url=http://127.0.0.1:8000/v1 --model=policy --categories=multi_turn_base
    python -m slca.evals.bfcl --oracle --damage=dropped --categories=parallel     # what the ground truth itself scores

Greedy by default. Test data: never train on it, filter by it or choose a checkpoint with it.
Beside each score stand its Wilson 95 % interval, what doing nothing scores (floor) and what the ground truth scores (ceiling),
both by the same grader on the same entries. There is no "overall": it needs categories that cannot run offline.
A run that was interrupted goes on with the same command and --out: categories that are answered are not answered again.
Exit codes: 0 scored (or set up); 2 the command, the checkpoint or the grader's environment is wrong; 1 generation or grading
failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slca.evals.bfcl_categories import DEFAULT, KNOWN, categories
from slca.evals.command import command, command_arguments
from slca.evals.graders import BFCL, GraderError, run

if TYPE_CHECKING:
    from slca.evals.bfcl_generate import Answer, Worker
    from slca.evals.chat import Chat

OWN, CEILING, FLOOR = "slca", "slca-ceiling", "slca-floor"  # names in the official files; an underscore is not allowed there
ROUTE = "chat template of the policy, tools as JSON Schema, names with their dots, history rendered afresh at each step"
SERVED = "chat completions of the endpoint, tools as JSON Schema, names with their dots"
GRADE_SECONDS = 3600.0


@dataclass(frozen=True)
class Score:
    """Of one category. n: graded entries; correct: by the official grader; called: share of them with any decodable call;
    floor and ceiling: what doing nothing and the ground truth score on these entries; skipped: prompts beyond the context, not
    in n; cut: conversations that ran out of context or rounds (wrong, unless the rounds of the last turn ran out)."""

    category: str
    n: int
    correct: int
    called: float
    floor: float
    ceiling: float
    skipped: int
    cut: int


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slca.evals.bfcl", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    who = parser.add_argument_group("who answers (one of)")
    who.add_argument("--checkpoint", metavar="PATH", help="workdir, step folder, Hugging Face folder or gguf:NAME")
    who.add_argument("--url", help="OpenAI-compatible endpoint, e.g. http://127.0.0.1:8000/v1 (with --model)")
    who.add_argument("--oracle", action="store_true", help="the ground truth")
    who.add_argument("--silent", action="store_true", help="text, never a call")
    parser.add_argument("--model", default="", help="model name at the endpoint")
    parser.add_argument("--key-env", default="SLCA_EVAL_KEY", metavar="NAME", help="environment variable that holds its key")
    parser.add_argument("--damage", default="", metavar="KIND", help="with --oracle: how every second answer is damaged")
    parser.add_argument("--through-server", action="store_true", help="with --oracle: by way of the project's own server")
    what = parser.add_argument_group("what")
    what.add_argument(
        "--categories", default="", metavar="A,B", help=f"default {','.join(DEFAULT)}; or single_turn, multi_turn"
    )
    what.add_argument(
        "--paper-subset", action="store_true", help="the 13 categories of the paper (it used v3 data, this is v4)"
    )
    what.add_argument("--limit", type=int, default=0, metavar="N", help="the first N entries of each category")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--parse", choices=("official", "strict"), help="who decodes calls: the package, or training's strict parser"
    )
    how.add_argument("--temperature", type=float, default=0.0, help="0 = greedy")
    how.add_argument("--seed", type=int, default=0, help="of the draws at a temperature above 0")
    how.add_argument("--max-tokens", type=int, default=512, metavar="N", help="tokens of a reply")
    how.add_argument("--context", type=int, default=4096, metavar="N", help="prompt and reply, tokens (at most the model's)")
    how.add_argument("--slots", type=int, default=16, metavar="N", help="rows decoded together, or requests in flight")
    command_arguments(parser, BFCL)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    return command(BFCL, arguments(), argv, check, work)


def work(options: argparse.Namespace, python: Path, out: Path) -> None:
    """Answer, grade, report."""
    from slca.evals.bfcl_generate import Worker

    with Worker(python, out, lambda text: print(text, file=sys.stderr)) as worker:
        found = evaluate(options, python, out, worker)
    report(found, options, out)


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Usage faults that need no grader. Raises ValueError for categories that there are not."""
    from slca.evals.bfcl_answers import DAMAGES

    if sum(map(bool, (options.checkpoint, options.url, options.oracle, options.silent))) != 1:
        parser.error("say who answers: one of --checkpoint, --url, --oracle, --silent (or --setup)")
    if options.url and not options.model:
        parser.error("--url needs --model, the name at the endpoint")
    if options.damage and (not options.oracle or options.damage not in DAMAGES):
        parser.error(f"--damage={options.damage}: with --oracle, one of {', '.join(DAMAGES)}")
    if options.through_server and not options.oracle:
        parser.error("--through-server goes with --oracle (a checkpoint is served by `python -m slca.serve`; then --url)")
    if options.categories and options.paper_subset:
        parser.error("--categories and --paper-subset exclude each other")
    categories(options, KNOWN)


def evaluate(options: argparse.Namespace, python: Path, root: Path, worker: Worker) -> list[Score]:
    """Generate, write the official files, grade. Raises ValueError, GraderError, EndpointError."""
    names = categories(options, worker.categories())
    entries = {name: worker.entries(name)[: options.limit or None] for name in names}
    every = [entry for rows in entries.values() for entry in rows]
    chat, how, wire = answerer(options, every)
    if options.through_server:
        options.parse = "endpoint"
    answers = answer_all(entries, chat, how, wire, worker, root, served=options.slots if options.through_server else 0)
    if every and all(answer.skipped for rows in answers.values() for answer in rows):
        raise RuntimeError(
            f"none of {len(every)} entries was answered: every prompt was beyond the context, or refused by the endpoint"
        )
    correct = grade(python, root, [name for name in names if any(not answer.skipped for answer in answers[name])])
    return [_score(name, answers[name], correct) for name in names]


def answer_all(
    entries: dict[str, list[Any]], chat: Chat, how: str, wire: str, worker: Worker, root: Path, *, served: int = 0
) -> dict[str, list[Answer]]:
    """Answer every category and write its official files, those of the floor and of the ceiling too. served: requests at once by
    way of a server (one a category, since categories share conversations); 0 = straight."""
    from slca.evals.bfcl_answers import oracle, silent
    from slca.evals.bfcl_served import through_server

    answers = {}
    for name, rows in entries.items():
        began = time.monotonic()
        kept_answers = root / "answers" / f"{name}.json"
        if kept_answers.exists():  # of this run, before it was interrupted
            answers[name] = read_answers(kept_answers)
        else:
            with through_server(rows, chat, served) if served else nullcontext(chat) as asked:
                answers[name] = _answers(rows, asked, worker, how, wire)
            keep_answers(kept_answers, answers[name])
        print(f"{name}: {len(rows)} entries answered in {time.monotonic() - began:.1f} s", file=sys.stderr)
        kept = {answer.id for answer in answers[name] if not answer.skipped}
        graded = [entry for entry in rows if entry["id"] in kept]
        _write(root, OWN, name, [answer for answer in answers[name] if answer.id in kept])
        for who, policy in ((CEILING, oracle(graded)), (FLOOR, silent)):
            _write(root, who, name, _answers(graded, policy, worker, "official", "hermes") if graded else [])
    return answers


def keep_answers(file: Path, answers: Sequence[Answer]) -> None:
    """The answers of a category, for a run that goes on after an interruption."""
    file.parent.mkdir(exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps([asdict(answer) for answer in answers]), encoding="utf-8")
    os.replace(partial, file)


def read_answers(file: Path) -> list[Answer]:
    from slca.evals.bfcl_generate import Answer

    return [Answer(**row) for row in json.loads(file.read_text(encoding="utf-8"))]


def answerer(options: argparse.Namespace, entries: Sequence[Any]) -> tuple[Chat, str, str]:
    """(who answers, parse mode, wire)."""
    from slca.evals.bfcl_answers import oracle, silent
    from slca.evals.chat import Endpoint, Sampled

    if options.oracle or options.silent:
        return (oracle(entries, options.damage) if options.oracle else silent), options.parse or "official", "hermes"
    if options.url:
        client = Endpoint(
            options.url, options.model, key_env=options.key_env, max_tokens=options.max_tokens,
            temperature=options.temperature, concurrency=options.slots,
        )  # fmt: skip
        options.parse = "endpoint"
        return client, "official", "hermes"
    from slca.restore import policy_of

    policy = policy_of(options.checkpoint)
    options.context = min(options.context, policy.model.max_length)  # as the report says it
    wire = policy.config.chat.wire
    options.parse = options.parse or ("official" if _decodable(policy.template) else "strict")
    if options.parse == "official" and wire != "hermes":
        raise ValueError(
            f"--parse=official: the package's decoder reads Hermes text, the policy writes {wire}; use --parse=strict"
        )
    chat = Sampled(
        policy, slots=options.slots, context=options.context, max_tokens=options.max_tokens,
        temperature=options.temperature, seed=options.seed,
    )  # fmt: skip
    return chat, options.parse, wire


def _decodable(template: Any) -> bool:
    """Whether the package's decoder finds a call as this chat template writes it: it wants the tags on lines of their own."""
    from slca.evals.bfcl_answers import decoded
    from slca.types import ToolCall

    call = ToolCall("probe_of_calls", {"a": 1}, "call_1")
    ids = template.assistant([], {"role": "assistant", "content": "", "tool_calls": [call.message()]})
    return bool(decoded(template.tokenizer.decode(ids)))


def _answers(entries: Sequence[Any], chat: Chat, worker: Worker, how: str, wire: str) -> list[Answer]:
    from slca.evals.bfcl_generate import multi_turn, single_turn

    if entries and entries[0]["id"].startswith("multi_turn"):
        return multi_turn(entries, chat, worker, how, wire)
    answers = single_turn(entries, chat, how, wire)
    if entries and entries[0]["id"].startswith(("memory", "web_search")):  # graded as one turn of steps
        for answer in answers:
            answer.result = [[answer.result]]
    return answers


def _write(root: Path, model: str, category: str, answers: Sequence[Answer]) -> None:
    """An official result file. The grader finds it at any depth below the model's folder."""
    file = root / "result" / model / f"BFCL_v4_{category}_result.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    if answers:
        file.write_text("".join(json.dumps(answer.row(), ensure_ascii=False) + "\n" for answer in answers), encoding="utf-8")


def grade(python: Path, root: Path, names: Sequence[str]) -> dict[tuple[str, str], tuple[int, int]]:
    """(model, category) -> (correct, graded), as the official command line says in its score files."""
    from slca.evals.bfcl_generate import WORKER

    if not names:
        return {}
    command = [
        str(python), "-P", str(WORKER), "evaluate", "--model", ",".join((OWN, CEILING, FLOOR)), "--test-category", ",".join(names),
        "--partial-eval",
    ]  # fmt: skip
    run(command, {"BFCL_PROJECT_ROOT": str(root)}, root / "evaluate.log", GRADE_SECONDS)
    (root / "score" / "data_overall.csv").unlink(missing_ok=True)  # counts categories that were not run as 0
    scores = {}
    for model in (OWN, CEILING, FLOOR):
        for name in names:
            (file,) = (root / "score" / model).rglob(f"BFCL_v4_{name}_score.json")
            with file.open(encoding="utf-8") as lines:
                header = json.loads(next(lines))
            scores[model, name] = header["correct_count"], header["total_count"]
    return scores


def _score(name: str, answers: Sequence[Answer], graded: dict[tuple[str, str], tuple[int, int]]) -> Score:
    kept = [answer for answer in answers if not answer.skipped]
    correct, n = graded.get((OWN, name), (0, 0))
    if n != len(kept):
        raise GraderError(f"{name}: {len(kept)} answers were written, {n} were graded")
    floor, ceiling = (graded[who, name][0] / n if n else float("nan") for who in (FLOOR, CEILING))
    return Score(
        name, n, correct, sum(answer.calls > 0 for answer in kept) / max(1, n), floor, ceiling,
        len(answers) - n, sum(answer.cut for answer in kept),
    )  # fmt: skip


def report(scores: Sequence[Score], options: argparse.Namespace, out: Path) -> None:
    """Print the table and write scores.json."""
    from slca.evals.stats import wilson

    who = options.checkpoint or (
        f"{options.model} at {options.url}" if options.url else "oracle" if options.oracle else "silent"
    )
    route = SERVED if options.url or options.through_server else ROUTE
    lines = [
        f"BFCL v4, {BFCL.package} {BFCL.version}, official `bfcl evaluate`; {who}{f', damage {options.damage}' if options.damage else ''}",
        f"prompt route: {route}; parse: {options.parse or 'official'}; temperature {options.temperature:g}, seed {options.seed}, "
        f"{options.max_tokens} tokens a reply, context {options.context}",
        "",
        f"{'category':24} {'n':>5} {'score':>7}  {'95 % interval':>15} {'floor':>7} {'ceiling':>8} {'with a call':>12} "
        f"{'skipped':>8} {'cut':>5}",
    ]
    for score in scores:
        interval = wilson(score.correct, score.n)
        lines.append(
            f"{score.category:24} {score.n:5d} {interval.mean:7.1%}  {f'{interval.low:.1%} to {interval.high:.1%}':>15} "
            f"{score.floor:7.1%} {score.ceiling:8.1%} {score.called:12.1%} {score.skipped:8d} {score.cut:5d}"
        )
    lines += [
        "",
        "floor: never a call; ceiling: the ground truth; skipped for context: not in n; cut: ended early (wrong, but for too many",
        "rounds in the last turn).",
    ]
    if any("irrelevance" in score.category for score in scores):
        lines.append("Irrelevance rewards silence: read it beside the share of entries with a call.")
    if options.paper_subset:
        lines.append(
            "The paper's categories, on v4 data; the paper scored v3 data with another harness: not comparable point by point."
        )
    if options.limit:
        lines.append(f"The first {options.limit} entries of each category, not the category.")
    print("\n".join(lines))
    settings = {key: value for key, value in vars(options).items() if isinstance(value, str | int | float | bool)}
    record = {"package": f"{BFCL.package} {BFCL.version}", "data": "v4", "route": route, "who": who, "settings": settings}
    text = json.dumps({**record, "scores": [asdict(score) for score in scores]}, indent=1)
    (out / "scores.json").write_text(text, encoding="utf-8")
    print(f"files: {out}")


if __name__ == "__main__":
    sys.exit(main())
