"""Metrics of scripted policies whose scores are known by hand."""

import json
import os
import random
import subprocess
import sys

import jax
import optax
import pytest

from configs.default import get_config
from slca.checkpoint import Checkpoints
from slca.evals.indomain import SHOWN, evaluate, intervals, main, passes, row_of, summarize
from slca.evals.stats import mean_interval, wilson
from slca.learn.update import init_state
from slca.policy import transformer
from slca.policy.config import ModelConfig
from slca.report.metrics import finalize, merge
from slca.rollout.engine import rollout
from slca.sgls.simulator import Simulator
from slca.types import Observation, Task, ToolCall
from tests.rollout.fakes import ScriptedSampler, Template, Tokenizer

encode, STOP = Tokenizer().encode, 1
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


class Tools:
    def simulate(self, call, toolset, context):
        return Observation('{"city": "Oslo", "sky": "rain"}', "sim_failed" if context.group == "broken" else "ok")


def task(name):
    question = {"role": "user", "content": f"{name}: how is the weather in Oslo?"}
    return Task(name, [question], [WEATHER], [[ToolCall("weather", {"city": "Oslo"})]], facts=[["rain"]])


def policy(row, key):
    """Right for tasks named good, the wrong city for bad, no call for lazy; coin: right or lazy by the key."""
    text = Tokenizer().decode(row)
    kind = text.split("user\n")[1].split(":")[0].rstrip("0123456789")
    if kind == "coin":
        kind = random.Random(key).choice(["good", "lazy"]) if "tool\n" not in text else "good"
    if kind == "lazy" or "tool\n" in text:
        return [*encode("The weather in Oslo is rain today."), STOP]
    city = {"bad": "Rome"}.get(kind, "Oslo")
    return [*encode(f'<tool_call>{{"name": "weather", "arguments": {{"city": "{city}"}}}}</tool_call>'), STOP]


def run(config, names, **options):
    config.rollout.update({"max_turn_tokens": 200, "max_response_tokens": 1000, "max_prompt_tokens": 500})
    options = {"temperature": 0.0, "seed": 5} | options
    return evaluate(None, [task(name) for name in names], ScriptedSampler(policy), Template(), Tools(), config, **options)


def test_a_right_policy_scores_one(config):
    table = run(config, ["good1", "good2"])
    for name in ("process", "name", "argmatch", "success@0.9", "solved", "answered", "end/answered"):
        assert table[name] == (2.0, 2), name
    assert table["tool_turns"] == (2.0, 2) and table["unscored"] == (0.0, 2)
    assert table["summary"][0] > 1.0
    assert table["cost/calls_per_solved"] == (2.0, 2) and table["cost/tokens_per_solved"] == (0.0, 2)


def test_a_wrong_argument_costs_the_value_term(config):
    table = run(config, ["bad", "good"])
    # HierR weights: format .10, name .25, key .15, value .20, parallel .30; the wrong city loses the value term alone.
    assert table["process"] == (pytest.approx(0.8 + 1.0), 2)
    assert table["success@0.9"] == (1.0, 2) and table["name"] == (2.0, 2)
    assert table["argmatch"] == (pytest.approx(0.5 + 1.0), 2)
    # The call of the rollout that failed was made for the other one's success.
    assert table["cost/calls_per_solved"] == (2.0, 1)


def test_no_call_where_one_is_due(config):
    table = run(config, ["lazy"])
    assert table["success@0.9"] == (0.0, 1) and table["omitted"] == (1.0, 1) and table["tool_turns"] == (0.0, 1)


def test_unscored_rows_lower_n_not_the_mean(config):
    table = run(config, ["good", "broken"])
    assert table["process"] == (1.0, 1) and table["unscored"] == (1.0, 2) and table["end/sim_failed"] == (1.0, 2)
    table = run(config, ["broken"])
    assert "process" not in table and table["unscored"] == (1.0, 1)
    assert summarize([], config)["unscored"] == (0.0, 0)


def test_tables_of_parts_merge_into_the_table_of_the_whole(config):
    """What a part spent without solving anything counts: 1 + 2 calls for one solved task, in one process or in two."""
    two = episodes(config, ["good1"]), episodes(config, ["bad1", "bad2"])
    parts = [summarize(part, config) for part in two]
    assert [part["cost/calls_per_solved"] for part in parts] == [(1.0, 1), (2.0, 0)]
    found = finalize(merge(*parts))
    assert found["cost/calls_per_solved"] == 3.0 and found["success@0.9"] == pytest.approx(1 / 3)
    assert found == finalize(summarize([*two[0], *two[1]], config))


def test_trials_are_drawn_by_seed(config):
    table = run(config, [f"coin{i}" for i in range(8)], temperature=1.0, trials=4)
    right, n = table["success@0.9"]
    assert n == 32 and 0.2 < right / n < 0.8
    assert run(config, [f"coin{i}" for i in range(8)], temperature=1.0, trials=4) == table
    assert run(config, [f"coin{i}" for i in range(8)], temperature=1.0, trials=4, seed=6) != table


def test_success_on_the_weighted_score_has_a_name_of_its_own(config):
    config.reward.update(process_weight=3.0, summary_weight=1.0)
    (episode,) = episodes(config, ["bad"])
    row = row_of(episode, config)
    assert row["process"] == pytest.approx(0.8)
    assert row["weighted"] == pytest.approx((3 * 0.8 + row["summary"]) / 4)
    assert row["weighted_success@0.7"] == float(row["weighted"] >= 0.7) and row["weighted_success@1.0"] == 0.0
    assert row["success@0.8"] == 1.0 and row["success@0.9"] == 0.0


def episodes(config, names, trials=1, temperature=0.0, seed=5):
    config.rollout.update({"max_turn_tokens": 200, "max_response_tokens": 1000, "max_prompt_tokens": 500})
    parts = None, [task(name) for name in names], ScriptedSampler(policy), Template(), Tools(), config
    return rollout(*parts, seed=seed, step=0, temperature=temperature, group=trials)


def test_intervals_count_tasks_not_trials(config):
    found = intervals(episodes(config, ["good1", "bad1", "lazy1", "broken"]), config, 1)
    assert found["success@0.9"] == tuple(wilson(1, 3))  # the broken one is unscored
    mean, low, high, n = found["process"]
    assert (mean, n) == (pytest.approx(1.8 / 3), 3) and low < mean < high
    found = intervals(episodes(config, ["good1", "bad1"], trials=2), config, 2)
    assert found["success@0.9"][3] == 2 and found["success@0.9"] == tuple(mean_interval([1.0, 0.0]))


def test_shares_of_single_trials_have_a_wilson_interval_and_they_alone(config):
    """`solved` as well as the successes, and where nothing was solved; a score that happens to be 0 or 1 is still a score."""
    ran = episodes(config, ["lazy1", "lazy2"])
    assert {row_of(one, config)["name"] for one in ran} <= {0.0, 1.0}
    found = intervals(ran, config, 1)
    shares = {name for name in SHOWN if "success@" in name} | {"solved"}
    assert all(
        found[name][:3] == pytest.approx((0.0, 0.0, 0.657620), abs=1e-6) for name in shares
    )  # z^2 / (2 + z^2), z = 1.959964
    assert found["name"] == tuple(mean_interval([0.0, 0.0])) and found["calls"][:3] == (0.0, 0.0, 0.0)
    found = intervals(episodes(config, ["good1", "bad1"]), config, 1)
    assert found["solved"] == tuple(wilson(1, 2)) and found["name"] == (1.0, 1.0, 1.0, 2)
    several = intervals(episodes(config, ["good1", "bad1"], trials=2), config, 2)
    assert several["solved"] == tuple(mean_interval([1.0, 0.0]))


def test_pass_at_k_and_pass_hat_k(config):
    ran = episodes(config, ["good1", "bad1", "coin1", "broken"], trials=4, temperature=1.0)
    right = sum(row_of(episode, config)["success@0.9"] for episode in ran if episode.task.id == "coin1")
    assert 0 < right < 4
    found = passes(ran, config, 4)
    assert found["pass@1"] == found["pass^1"] == (pytest.approx((1 + right / 4) / 3), 3)
    assert found["pass@4"] == (pytest.approx(2 / 3), 3) and found["pass^4"] == (pytest.approx(1 / 3), 3)


# The command


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A workdir of an untrained policy, as a run leaves it."""
    workdir, config = tmp_path_factory.mktemp("run"), get_config()
    config.model.update(width=16, layers=1, heads=2, kv_heads=1, head_dim=8, ff=24)
    config.rollout.update(max_turn_tokens=8, max_response_tokens=16, prompt_buckets=(512,), slots=4, decode_steps=8)
    config.eval.update(tasks=3)
    stored = json.loads(json.dumps(config.to_dict()))
    weights = transformer.init(ModelConfig.random(config.model, 1280), jax.random.key(0))
    with Checkpoints(workdir) as checkpoints:
        checkpoints.save(1, init_state(weights, optax.sgd(0.1), jax.random.key(0)), {"phase": "rl"}, stored)
    (workdir / "config.json").write_text(json.dumps(stored))
    return workdir


def test_the_command_on_held_out_tasks_and_tools(run_folder, tmp_path, capsys):
    out = tmp_path / "scores.json"
    assert main([f"--checkpoint={run_folder}", "--temperatures=0,1", "--trials=2", f"--out={out}"]) == 0
    said = capsys.readouterr().out
    cells = json.loads(out.read_text())["cells"]
    assert [(cell["split"], cell["temperature"], cell["trials"]) for cell in cells] == [
        ("heldout_tasks", 0.0, 1), ("heldout_tasks", 1.0, 2), ("heldout_tools", 0.0, 1), ("heldout_tools", 1.0, 2),
    ]  # fmt: skip
    for words in (
        "success@0.9",
        "weighted_success@0.9",
        "pass^2",
        "tokens/summary",
        "cost/calls_per_solved",
        "greedy: 3 tasks",
    ):
        assert words in said, words


def no_memory(*_, **__):
    raise RuntimeError("no memory")


@pytest.mark.parametrize("fails", [False, True])
def test_one_simulator_for_all_cells_let_go_at_the_end(run_folder, monkeypatch, fails):
    """A model of the simulator that fits once fits all along; what it was asked in one cell is asked again in the next."""
    made = []

    class Counted(Simulator):
        def close(self):
            self.closed = True
            super().close()

        def forget(self):
            self.forgotten = getattr(self, "forgotten", 0) + 1
            super().forget()

    def make(config, model, template):
        made.append(Counted.from_config(config.sgls))
        return made[-1]

    monkeypatch.setattr("slca.simulate.make_simulator", make)
    if fails:
        monkeypatch.setattr("slca.rollout.engine.rollout", no_memory)
    assert main([f"--checkpoint={run_folder}", "--tasks=1"]) == (1 if fails else 0)
    (simulator,) = made
    assert simulator.closed and simulator.forgotten == (1 if fails else 4)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--set", "eval.splits=[]"], "eval.splits and eval.temperatures: nothing to evaluate; name --splits=heldout_tasks"),
        (["--set", "rollout.slotz=3"], "no such config field"),
        (["--set", "rollout.slots=many"], "rollout.slots is a int"),
        (["--set", "tasks.source=nowhere"], "tasks.source"),
        (["--temperatures=warm"], "--temperatures=warm"),
        (["--splits=heldout"], "heldout"),
        (["--checkpoint=nothing/here"], "no such folder"),
    ],
)
def test_wrong_choices_are_one_line(run_folder, flags, words, capsys):
    assert main([f"--checkpoint={run_folder}", "--tasks=1", *flags]) == 2
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said


def test_help_is_quick_and_names_exit_codes():
    done = subprocess.run([sys.executable, "-m", "slca.evals.indomain", "--help"], capture_output=True, text=True, check=True)
    assert "Exit codes" in done.stdout
    code = "import sys, slca.evals.indomain; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("module", "flags"),
    [
        ("slca.evals.indomain", ["--checkpoint=nowhere"]), ("slca.evals.bfcl", ["--silent", "--venv=nowhere"]),
        ("slca.evals.tau2", ["--oracle", "--solo", "--venv=nowhere"]), ("slca.export", ["nowhere", "out"]),
        ("slca.serve.__main__", ["--checkpoint=nowhere", "--port=0"]),
    ],
)  # fmt: skip
def test_no_command_says_that_pytorch_is_missing(module, flags, tmp_path):
    code = f"import importlib; m = importlib.import_module({module!r}); assert m.main({flags}) == 2; import transformers"
    environ = {name: value for name, value in os.environ.items() if name != "TRANSFORMERS_VERBOSITY"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path, env=environ)
    assert "PyTorch" not in done.stderr + done.stdout and done.stderr.startswith("slca.")


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(tmp_path, capsys):
    assert main(["--checkpoint=nowhere", f"--out={tmp_path / 'none' / 'scores.json'}"]) == 2
    assert "scores.json" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--checkpoint=nowhere", f"--seed={2**31}"])
    assert "--seed" in capsys.readouterr().err
