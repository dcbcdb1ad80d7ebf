"""The road to tau2's official runner: gold and scripted answers, what becomes of its results, and (where installed) a short run."""

import json
import subprocess
import sys
from argparse import Namespace

import pytest

from slca.evals import tau2
from slca.evals.graders import TAU2, GraderError
from slca.evals.stats import wilson
from slca.evals.tau2 import Outcome, outcomes, pass_hat
from slca.evals.tau2_oracle import Oracle, gold_agent, scripted_user

TASK = {
    "id": "t0", "basis": ["DB"], "communicate": ["42 dollars"], "floor": 0.0,
    "actions": [
        {"name": "find", "arguments": {"id": "7"}, "write": False, "requestor": "assistant"},
        {"name": "toggle", "arguments": {}, "write": True, "requestor": "user"},
        {"name": "pay", "arguments": {"id": "7"}, "write": True, "requestor": "assistant"},
        {"name": "look", "arguments": {}, "write": False, "requestor": "assistant"},
    ],
}  # fmt: skip
TICKET = {"role": "system", "content": "a ticket"}


def played(answer, start=(TICKET,)):
    """The names of the calls an agent makes, and its last words."""
    messages, names = list(start), []
    for _ in range(20):
        message = answer(messages)
        if not message.get("tool_calls"):
            return names, message["content"]
        (call,) = message["tool_calls"]
        names.append(call["function"]["name"])
        if names[-1] == "done":
            return names, ""
        messages += [message, {"role": "tool", "content": "ok", "tool_call_id": call["id"]}]
    raise AssertionError("it never ends")


def test_the_gold_agent_takes_the_actions_one_by_one():
    assert played(gold_agent([TASK], solo=True)) == (["find", "toggle", "pay", "look", "done"], "")
    assert played(gold_agent([TASK], solo=True, drop_last_write=True))[0] == ["find", "toggle", "look", "done"]
    handed_over = {**TASK, "actions": TASK["actions"][:1]}  # no write at all: its last action goes
    assert played(gold_agent([handed_over], solo=True, drop_last_write=True))[0] == ["done"]
    asked = (TICKET, {"role": "assistant", "content": "Hi!"}, {"role": "user", "content": "Pay, please."})
    names, said = played(gold_agent([TASK], solo=False), asked)
    assert names == ["find", "pay", "look"] and "42 dollars" in said  # the user's actions are the user's


def test_conversations_are_counted_not_recognised():
    other = {**TASK, "actions": []}
    agent = gold_agent([TASK, other], solo=True)
    assert [played(agent)[0] for _ in range(3)] == [["find", "toggle", "pay", "look", "done"], ["done"], ["find", "toggle", "pay", "look", "done"]]  # fmt: skip


def test_the_scripted_user_speaks_once():
    system = {"role": "system", "content": "Guidelines.\n<scenario>\nYou want to pay.\n</scenario>"}
    first = scripted_user([system, {"role": "user", "content": "Hi! How can I help you today?"}])
    assert first["content"] == "You want to pay."
    assert (
        scripted_user([system, {"role": "user", "content": "Hi!"}, first, {"role": "user", "content": "Done."}])["content"]
        == "###STOP###"
    )


def test_results_and_whose_fault_they_are(tmp_path):
    def row(task, trial, reward, skipped=False):
        return {
            "task_id": task,
            "trial": trial,
            "reward_info": {"reward": reward},
            "termination_reason": "agent_stop",
            "skipped": skipped,
        }

    rows = [row("a|x[P:None]", 0, 1.0), row("a|x[P:None]", 1, 0.0, True), row("b", 0, 0.0, True), row("b", 1, 0.0, True)]
    (tmp_path / "r.json").write_text(json.dumps({"simulations": rows}))
    (tmp_path / "log").write_text(
        "Error running task a|x[P:None], trial 1: litellm.APIConnectionError: gone\n"
        "Error running task b, trial 0: LLMSoloAgent only supports tool calls.\n"
        "Error running task b, trial 1: litellm.BadRequestError: the prompt has 1229 tokens; 1 to 511 fit this server\n"
    )
    found = outcomes(tmp_path / "r.json", [tmp_path / "log"])
    assert [(one.task, one.reward, one.fault) for one in found] == [
        ("a|x[P:None]", 1.0, ""), ("a|x[P:None]", 0.0, "infrastructure"), ("b", 0.0, "policy"), ("b", 0.0, "context"),
    ]  # fmt: skip
    assert pass_hat(found, 1) == ([1.0, 0.0], 0)  # what infrastructure lost is no failure of the policy
    assert pass_hat(found, 2) == ([0.0], 1)


def test_pass_hat_k_over_trials():
    found = [Outcome("a", i, float(i < 3), "agent_stop") for i in range(4)]
    assert pass_hat(found, 1) == ([0.75], 0) and pass_hat(found, 2) == ([0.5], 0) and pass_hat(found, 4) == ([0.0], 0)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "one of --checkpoint"),
        (["--oracle", "--checkpoint=x", "--solo"], "one of --checkpoint"),
        (["--oracle", "--solo", "--domain=retail"], "telecom and mock"),
        (["--oracle", "--domain=retail"], "--user-llm"),
        (["--oracle", "--solo", "--scripted-user"], "takes no user"),
        (["--oracle", "--domain=retail", "--user-llm=m"], "go together"),
        (["--url=http://127.0.0.1:1/v1", "--solo"], "--model"),
        (["--checkpoint=x", "--solo", "--drop-last-write"], "--oracle"),
        (["--oracle", "--solo", "--trials=0"], "--trials=0"),
    ],
)
def test_wrong_commands_are_refused_at_once(flags, words, capsys):
    with pytest.raises(SystemExit) as stop:
        tau2.main(flags)
    assert stop.value.code == 2 and words in capsys.readouterr().err


def test_a_missing_runner_is_named_with_the_remedy(tmp_path, capsys):
    assert tau2.main(["--oracle", "--solo", f"--venv={tmp_path}"]) == 2
    assert "slca.evals.tau2 --setup" in capsys.readouterr().err


def test_the_report_names_floor_basis_and_a_scripted_user(tmp_path, capsys):
    options = tau2.arguments().parse_args(["--oracle", "--domain=airline", "--scripted-user"])
    tau2.report([Outcome("t0", 0, 1.0, "user_stop")], [{**TASK, "floor": 0.38}], options, tmp_path)
    said = capsys.readouterr().out
    interval = wilson(1, 1)
    assert f"pass^1: 1.000 (95 % {interval.low:.3f} to 1.000, 1 tasks)" in said
    assert (
        "floor (do nothing, official evaluator): 0.380" in said and "SCRIPTED: not the benchmark" in said and "DB (1)" in said
    )


def test_no_key_stands_on_the_runners_command_line(tmp_path):
    """`ps` shows it, and the runner writes it into its files; and its default for the agent's key would replace ours."""
    options = Namespace(
        domain="mock", split="base", trials=1, seed=0, oracle=False, slots=4, solo=False, temperature=0.0, max_tokens=9, limit=1
    )
    server = {"url": "http://127.0.0.1:1/v1", "model": "m", "key": "canary-key"}
    words = tau2.command_line(tmp_path, options, {"agent": server, "user": server}, tmp_path)
    assert "canary" not in " ".join(words) and words[words.index("--agent-api-key") + 1] == ""
    named = [json.loads(words[words.index(f"--{who}-llm-args") + 1])["api_key"] for who in ("agent", "user")]
    assert named == ["agent", "user"]


def test_help_is_quick_and_names_exit_codes():
    done = subprocess.run([sys.executable, "-m", "slca.evals.tau2", "--help"], capture_output=True, text=True, check=True)
    assert "Exit codes" in done.stdout and "--scripted-user" in done.stdout


def test_an_oracle_goes_on_behind_the_opening_of_a_forced_call():
    from types import SimpleNamespace

    engine = Oracle(gold_agent([TASK], solo=True))
    decode = engine.template.tokenizer.decode

    def ids(constraint):
        stream = engine.submit(SimpleNamespace(messages=[TICKET], constraint=constraint))
        return stream._pieces[0].ids

    assert decode(ids(None)).startswith("<tool_call>{")
    engine = Oracle(gold_agent([TASK], solo=True))
    assert decode(ids(object())[:-1]) == '{"name":"find","arguments":{"id":"7"}}'


def test_the_official_runner_gives_the_gold_agent_full_marks(tmp_path, capsys):
    for package in ("fastapi", "uvicorn", "llguidance"):
        pytest.importorskip(package, reason=f"the server behind the runner needs {package}")
    try:
        TAU2.python()
    except GraderError as missing:
        pytest.skip(str(missing))
    for flags, reward in (([], 1.0), (["--drop-last-write"], 0.0)):
        out = tmp_path / str(reward)
        assert tau2.main(["--oracle", "--solo", "--limit=2", f"--out={out}", *flags]) == 0
        scores = json.loads((out / "scores.json").read_text())
        assert scores["pass_hat"][0]["mean"] == reward and scores["floor"] == 0.0 and scores["faults"] == {}
