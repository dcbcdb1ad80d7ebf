"""Score a policy on tau2-bench with its official runner, unchanged, against the project's own server.

    python -m slca.evals.tau2 --setup                                                       # once: 600 MB, about a minute
    python -m slca.evals.tau2 --domain=telecom --solo --checkpoint=runs/7b-slca --context=32768
    python -m slca.evals.tau2 --domain=airline --trials=4 --checkpoint=runs/7b-slca --context=32768 \\
        --user-llm=gpt-4.1 --user-url=https://host/v1 --user-key-env=USER_KEY
    python -m slca.evals.tau2 --domain=telecom --solo --oracle                              # gold actions: must score 1.0

Needs the extra serve, and grammar for --solo (its agent must call a tool). Solo telecom needs no user. In the chat domains the
benchmark's user is a language model, at any OpenAI-compatible endpoint;
--scripted-user reads out its scenario and stops: plumbing, not the benchmark. Prompts are 5,000 to 10,000 tokens and more.
Printed: pass^1..k with 95 % intervals over tasks, runs lost to infrastructure apart, reward basis, and what doing nothing
scores.
A run that was interrupted goes on with the same command and --out.
Exit codes: 0 scored (or set up); 2 the command, the checkpoint or the runner's environment is wrong; 1 the run failed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slca.evals.command import command, command_arguments
from slca.evals.graders import TAU2, run

WORKER = Path(__file__).with_name("tau2_worker.py")
DOMAINS = ("telecom", "airline", "retail", "mock")
SOLO = ("telecom", "mock")
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # else litellm fetches a price list at import
NAME, USER = "policy", "user"
SIMULATIONS = "simulations.json"
_ERROR = re.compile(r"Error running task (.*?), trial (\d+): (.*)")
# What the policy itself did wrong, in the runner's words: no infrastructure.
_OWN_FAULTS = ("LLMSoloAgent only supports tool calls", "AgentError", "Expecting", "Extra data", "Unterminated string")
_TOO_LONG = (
    "fit this server",
    "the context of",
    "maximum context length",
    "context_length",
    "ContextWindowExceeded",
)  # ours, others


@dataclass(frozen=True)
class Outcome:
    """One simulation. reward: by the official evaluator; fault: "" | policy | context | infrastructure."""

    task: str
    trial: int
    reward: float
    ended: str
    fault: str = ""


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slca.evals.tau2", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    who = parser.add_argument_group("the agent (one of)")
    who.add_argument("--checkpoint", metavar="PATH", help="workdir, step folder, Hugging Face folder or gguf:NAME, served here")
    who.add_argument("--url", help="OpenAI-compatible endpoint, e.g. http://127.0.0.1:8000/v1 (with --model)")
    who.add_argument("--oracle", action="store_true", help="the gold actions, through the same server")
    parser.add_argument("--model", default="", help="model name at the endpoint")
    parser.add_argument("--key-env", default="", metavar="NAME", help="environment variable that holds the endpoint's key")
    parser.add_argument(
        "--drop-last-write",
        action="store_true",
        help="with --oracle: leave out the last write of each task, or the last action of one without a write",
    )
    what = parser.add_argument_group("what")
    what.add_argument("--domain", default="telecom", choices=DOMAINS)
    what.add_argument("--solo", action="store_true", help="the agent works a ticket alone; telecom and mock only")
    what.add_argument("--split", default="base", choices=("base", "train", "test"), help="tasks of the domain")
    what.add_argument("--limit", type=int, default=0, metavar="N", help="the first N tasks")
    what.add_argument("--trials", type=int, default=1, metavar="K", help="runs of each task: pass^1 to pass^K")
    user = parser.add_argument_group("the user of chat domains (one of)")
    user.add_argument("--user-llm", default="", metavar="MODEL", help="model name at --user-url")
    user.add_argument("--user-url", default="", help="OpenAI-compatible endpoint of the user's model")
    user.add_argument("--user-key-env", default="", metavar="NAME", help="environment variable that holds its key")
    user.add_argument("--scripted-user", action="store_true", help="reads out its scenario: NOT the benchmark")
    how = parser.add_argument_group("how")
    how.add_argument("--temperature", type=float, default=0.0, help="of the agent; 0 = greedy")
    how.add_argument("--max-tokens", type=int, default=1024, metavar="N", help="tokens of a reply")
    how.add_argument("--context", type=int, default=16_384, metavar="N", help="of a served checkpoint, tokens")
    how.add_argument("--slots", type=int, default=4, metavar="N", help="conversations at once (an oracle takes one)")
    how.add_argument("--seed", type=int, default=300)
    how.add_argument("--timeout", type=float, default=24 * 3600.0, metavar="S", help="seconds of the whole run")
    command_arguments(parser, TAU2)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    return command(TAU2, arguments(), argv, check, work)


def work(options: argparse.Namespace, python: Path, out: Path) -> None:
    """Serve, run, report. A run that was interrupted goes on with the simulations that it has not got."""
    begun = simulations_of(out)
    if begun and options.oracle:
        raise ValueError(
            f"--out={out} holds a part of a run; an oracle counts its conversations and cannot go on, name another folder"
        )
    tasks = load_tasks(python, options, out)
    log = out / f"run{len(list(out.glob('run*.log'))) or ''}.log"
    with agent_and_user(options, tasks) as servers:
        keys = {f"SLCA_{who.upper()}_KEY": server["key"] for who, server in servers.items()}
        words = command_line(python, options, servers, out)
        run(words, {**OFFLINE, **keys}, log, options.timeout, answers="y\ny\n")  # to "resume?", if it asks
    report(outcomes(out / SIMULATIONS, sorted(out.glob("run*.log"))), tasks, options, out)


def simulations_of(out: Path) -> bool:
    """Whether the runner has begun there. Raises ValueError where its file is damaged."""
    file = out / SIMULATIONS
    if not file.exists():
        return False
    try:
        json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(f"{file} is damaged; name another folder") from None
    return True


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Usage faults that need no runner."""
    if sum(map(bool, (options.checkpoint, options.url, options.oracle))) != 1:
        parser.error("say who the agent is: one of --checkpoint, --url, --oracle (or --setup)")
    if options.url and not options.model:
        parser.error("--url needs --model, the name at the endpoint")
    if options.drop_last_write and not options.oracle:
        parser.error("--drop-last-write goes with --oracle")
    if options.solo and options.domain not in SOLO:
        parser.error(f"--solo: the benchmark has it for {' and '.join(SOLO)} only")
    if bool(options.user_llm) != bool(options.user_url):
        parser.error("--user-llm and --user-url go together")
    users = bool(options.user_llm) + options.scripted_user
    if users != (0 if options.solo else 1):
        parser.error(
            "--solo takes no user" if options.solo else "say who the user is: --user-llm with --user-url, or --scripted-user"
        )


def load_tasks(python: Path, options: argparse.Namespace, out: Path) -> list[dict[str, Any]]:
    """The tasks in the runner's order, with their do-nothing rewards. Raises GraderError."""
    file = out / "tasks.json"
    words = ["tasks", options.domain, str(int(options.solo)), options.split, str(options.limit), "1", str(file)]
    run([str(python), "-P", str(WORKER), *words], OFFLINE, out / "tasks.log", 1800.0)
    return json.loads(file.read_text(encoding="utf-8"))


@contextmanager
def agent_and_user(options: argparse.Namespace, tasks: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, dict[str, str]]]:
    """For `agent` and `user`: base URL, model name and the variable of the key; what is not an endpoint already is served."""
    import os

    from slca.evals.tau2_oracle import Oracle, gold_agent, scripted_user, served

    def at(url: str, model: str, key_env: str) -> dict[str, str]:
        if key_env and not os.environ.get(key_env):
            raise ValueError(f"the environment variable {key_env} is empty; it should hold the endpoint's key")
        return {"url": url, "model": model, "key": os.environ.get(key_env, "none") if key_env else "none"}

    with ExitStack() as stack:
        found = {}
        if options.url:
            found["agent"] = at(options.url, options.model, options.key_env)
        elif options.oracle:
            gold = Oracle(gold_agent(tasks, solo=options.solo, drop_last_write=options.drop_last_write))
            found["agent"] = at(stack.enter_context(served(gold, NAME)), NAME, "")
        else:
            found["agent"] = at(stack.enter_context(served(_engine(options), NAME)), NAME, "")
        if options.scripted_user:
            found["user"] = at(stack.enter_context(served(Oracle(scripted_user), USER)), USER, "")
        elif options.user_llm:
            found["user"] = at(options.user_url, options.user_llm, options.user_key_env)
        yield found


def _engine(options: argparse.Namespace) -> Any:
    """The checkpoint over the slot scheduler, as `python -m slca.serve` would serve it."""
    from slca.serve.build import build, options_of

    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint")
    options_of(parser)
    flags = [f"--checkpoint={options.checkpoint}", f"--slots={options.slots}", f"--context={options.context}", "--cold"]
    return build(parser.parse_args(flags))


def command_line(python: Path, options: argparse.Namespace, servers: Mapping[str, Mapping[str, str]], out: Path) -> list[str]:
    """The official command line. A task that fails on an exception is recorded and the run goes on.

    It and the runner's files are read by others: a key is named by whose it is, and the worker knows it (`tau2_worker.run`).
    """

    def llm(who: str, **extra: Any) -> list[str]:
        server = servers[who]
        fields = {"base_url": server["url"], "api_key": who, **extra}
        return [f"--{who}-llm", f"openai/{server['model']}", f"--{who}-llm-args", json.dumps(fields)]

    words = [
        "--domain", options.domain, "--task-split-name", options.split, "--num-trials", str(options.trials),
        "--seed", str(options.seed), "--max-concurrency", str(1 if options.oracle else options.slots),
        "--agent-api-key", "",  # else the runner puts a key of its own over the agent's
        "--results-dir", str(out), "--save-to", "simulations", "--skip-failed-samples",
        "--agent", "llm_agent_solo" if options.solo else "llm_agent", "--user", "dummy_user" if options.solo else "user_simulator",
        *llm("agent", temperature=options.temperature, max_tokens=options.max_tokens),
        *(llm("user", temperature=0.0) if "user" in servers else ()),
        *(("--num-tasks", str(options.limit)) if options.limit else ()),
    ]  # fmt: skip
    return [str(python), "-P", str(WORKER), "run", *words]


def outcomes(simulations: Path, logs: Sequence[Path]) -> list[Outcome]:
    """One row a simulation of the official results; those it skipped are told apart by what its logs say of them."""
    reasons = {}
    for task, trial, said in (
        found for log in logs for found in _ERROR.findall(log.read_text(encoding="utf-8", errors="replace"))
    ):
        reasons[task, int(trial)] = said
    rows = []
    for one in json.loads(simulations.read_text(encoding="utf-8"))["simulations"]:
        reward = (one.get("reward_info") or {}).get("reward") or 0.0
        fault = ""
        if one.get("skipped"):
            said = reasons.get((one["task_id"], one["trial"]), "")
            fault = next(
                (
                    kind
                    for kind, words in (("policy", _OWN_FAULTS), ("context", _TOO_LONG))
                    if any(word in said for word in words)
                ),
                "infrastructure",
            )
        rows.append(Outcome(one["task_id"], one["trial"], float(reward), one["termination_reason"], fault))
    return rows


def pass_hat(found: Sequence[Outcome], k: int) -> tuple[list[float], int]:
    """pass^k of each task with at least k runs that infrastructure left alone, and how many tasks have fewer."""
    from slca.evals.stats import pass_hat_k

    runs: dict[str, list[bool]] = {}
    for one in found:
        kept = runs.setdefault(one.task, [])
        if one.fault != "infrastructure":
            kept.append(one.reward >= 1.0 - 1e-6)
    return [pass_hat_k(sum(kept), len(kept), k) for kept in runs.values() if len(kept) >= k], sum(
        len(kept) < k for kept in runs.values()
    )


def report(found: Sequence[Outcome], tasks: Sequence[Mapping[str, Any]], options: argparse.Namespace, out: Path) -> None:
    """Print the scores and write scores.json."""
    from slca.evals.stats import mean_interval, wilson

    who = options.checkpoint or (f"{options.model} at {options.url}" if options.url else "gold actions")
    user = "none (solo)" if options.solo else options.user_llm or "SCRIPTED: not the benchmark, compare with nothing"
    basis = Counter(" + ".join(task["basis"]) for task in tasks)
    floor = [task["floor"] for task in tasks]
    lines = [
        f"tau2-bench tasks of {TAU2.package} {TAU2.version} (comparable with tau2-era results only), official runner and evaluator",
        f"domain {options.domain}{' solo' if options.solo else ''}, split {options.split}: {len(tasks)} tasks x {options.trials}; "
        f"agent {who}{', last write dropped' if options.drop_last_write else ''}; user {user}",
        f"temperature {options.temperature:g}, {options.max_tokens} tokens a reply, seed {options.seed}; "
        f"reward basis: {', '.join(f'{name} ({n})' for name, n in basis.items())}",
        "",
    ]
    scores = []
    for k in range(1, options.trials + 1):
        values, missing = pass_hat(found, k)
        # One trial: 0 or 1 a task, so Wilson; more: a share a task, so Student over tasks.
        interval = wilson(int(sum(values)), len(values)) if options.trials == 1 else mean_interval(values or [float("nan")])
        scores.append({"k": k, "mean": interval.mean, "low": interval.low, "high": interval.high, "tasks": interval.n})
        short = f"; {missing} tasks have fewer than {k} usable runs" if missing else ""
        lines.append(
            f"pass^{k}: {interval.mean:.3f} (95 % {interval.low:.3f} to {interval.high:.3f}, {interval.n} tasks{short})"
        )
    faults, ends = Counter(one.fault for one in found if one.fault), Counter(one.ended for one in found)
    lines += [
        f"floor (do nothing, official evaluator): {sum(floor) / len(floor):.3f}",
        f"lost to infrastructure, in no score: {faults['infrastructure']}; prompt beyond the context, scored 0: {faults['context']}; "
        f"replies that the protocol refuses, scored 0: {faults['policy']}",
        f"ends: {', '.join(f'{name} {n}' for name, n in sorted(ends.items()))}",
    ]
    print("\n".join(lines))
    record = {
        "package": f"{TAU2.package} {TAU2.version}", "domain": options.domain, "solo": options.solo, "agent": who, "user": user,
        "pass_hat": scores, "floor": sum(floor) / len(floor), "basis": dict(basis), "faults": dict(faults), "ends": dict(ends),
    }  # fmt: skip
    (out / "scores.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    print(f"files: {out}")


if __name__ == "__main__":
    sys.exit(main())
