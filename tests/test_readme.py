"""Every command and snippet of README.md and launch/README.md is run, or is marked on its line as needing what no test machine has.

How each is tested (RULES; a command that fits none fails the test):
    snippets          every ```python block, in order, in one folder
    run               as it stands, in that folder
    training          flags parsed by absl as slca.main does, the config validated; nightly: the tiny ones train, cut down to a step
    checkpoint        words parsed by the command's own parser; nightly: run on the checkpoint of that training
    installing        its extras exist; installed by .ci/run in a fresh environment
    needs ...         needs a pod, GPUs, a cluster, a server or weights: flags parsed; launchers are dry-run in tests/test_launch.py as well
"""

import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path
from unittest.mock import patch

import pytest
from absl import flags
from ml_collections import config_flags

from slca.credit.algorithms import ALGORITHMS
from slca.validate import ConfigError, validate
from tests.programs import one_device

ROOT = Path(__file__).parents[1]
README, LAUNCH = (ROOT / name for name in ("README.md", "launch/README.md"))

RULES = (  # (pattern of the command, how it is tested)
    (r"pip install ", "installing"),
    (r"pytest -n 2$", "suite"),
    (r"python -m slca\.main ", "training"),
    (r"python -m slca\.(report|tasks\.catalog|sgls) ", "run"),
    (r"python -m slca\.(export|serve|evals\.\w+) ", "checkpoint"),
    (r"(\w+=\S+ )*launch/\S+ .*--dry-run", "run"),
    (r"(sbatch|kubectl|launch/gpu\.sh) ", "needs"),
)
OPENAPI = """
openapi: 3.0.3
info: {title: weather, version: "1"}
paths:
  /weather:
    get:
      operationId: get_weather
      summary: Weather of a city
      parameters:
        - {name: city, in: query, required: true, schema: {type: string}}
      responses:
        "200":
          description: ok
          content:
            application/json:
              schema: {type: object, required: [city, celsius], properties: {city: {type: string}, celsius: {type: integer}}}
"""


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.S | re.M)


def commands(path):
    """(command, remark) of every line of the bash blocks; `a && b` is two."""
    found = []
    for line in "".join(blocks(path, "bash")).splitlines():
        command, _, remark = line.partition(" #")
        found += [(part.strip(), remark.strip()) for part in command.split(" && ") if part.strip()]
    return found


def rule(command):
    return next((how for pattern, how in RULES if re.match(pattern, command)), None)


def of(how, path=README):
    return [pytest.param(command, remark, id=command[:60]) for command, remark in commands(path) if rule(command) == how]


def python(command):
    """The words of a command, `python` being this interpreter."""
    words = shlex.split(command)
    return [sys.executable if word == "python" else word for word in words]


def test_every_command_has_a_rule_and_what_needs_hardware_says_so():
    for command, remark in commands(README) + commands(LAUNCH):
        assert rule(command), f"README: say in tests/test_readme.py how this is tested: {command}"
        if rule(command) == "needs":
            assert "needs" in remark, command
    assert len(commands(README)) > 20 and len(blocks(README, "python")) >= 5


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a reader would be: a checkout with an OpenAPI file and three runs. Configs and launchers are those of the repository."""
    from tests.report.test_page import run

    (tmp_path / "api.yaml").write_text(OPENAPI)
    for name in ("configs", "launch"):
        (tmp_path / name).symlink_to(ROOT / name)
    for seed, (name, algorithm) in enumerate([("tiny-slca", "slca"), ("seed1", "slca"), ("tiny-grpo", "grpo")]):
        (tmp_path / "runs" / name).mkdir(parents=True)
        run(tmp_path / "runs" / name, seed, algorithm)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def shell(command):
    """Run a command in the current folder, `python` being this interpreter."""
    line = re.sub(r"\bpython\b", shlex.quote(sys.executable), command, count=1) if command.startswith("python") else command
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
    return done.stdout


def test_commands_that_run_and_snippets_in_the_order_of_the_page(folder):
    said = {}
    for path in (README, LAUNCH):
        for command, _ in commands(path):
            if rule(command) == "run":
                said[command] = shell(command)
    assert any('"city"' in text for command, text in said.items() if "slca.sgls" in command)
    assert (folder / "runs/tiny-slca/comparison.html").exists()
    known = dict(ALGORITHMS)
    try:
        for block in blocks(README, "python"):
            exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
        validate(config_of("python -m slca.main --config=configs/tiny.py:slca_half"))
    finally:
        ALGORITHMS.clear()
        ALGORITHMS.update(known)
    tasks = [json.loads(line) for line in (folder / "tasks.jsonl").read_text().splitlines()]
    assert {task["split"] for task in tasks} == {"train", "heldout_tasks"} and len(tasks) == 350
    (own,) = (command for command, _ in commands(README) if "jsonl:tasks.jsonl" in command)
    from slca.tasks.datasets import evaluation_tasks, stream

    c = config_of(own).tasks
    assert len(stream(c, "train", 0).next(3)) == 3 and len(evaluation_tasks(c, "heldout_tasks", 9, 0)) == 9
    c.source = "jsonl:mine.jsonl"
    assert stream(c, "train", 0).next(1)[0].id == "mine-1"


def config_of(command):
    """The config of a slca.main command, read as slca.main reads it; unknown flags and fields raise."""
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", None, "", lock_config=True, flag_values=values)
    for name in ("workdir", "coordinator"):
        flags.DEFINE_string(name, None, "", flag_values=values)
    for name in ("num_processes", "process_id"):
        flags.DEFINE_integer(name, None, "", flag_values=values)
    argv = ["slca.main", *shlex.split(command)[3:]]
    with patch.object(sys, "argv", argv):  # where ml_collections looks for overrides
        assert values(argv) == ["slca.main"]
    return values.config


@pytest.mark.parametrize(("command", "remark"), of("training"))
def test_training_commands_parse_and_their_configs_are_valid(command, remark, folder):
    try:
        validate(config_of(command))
    except ConfigError as error:  # weights or an extra that are not here, and nothing else
        assert "needs" in remark or "smollm2" in command, error
        missing = ("no such folder", "neither a run's checkpoints", "pip install")
        assert all(any(words in line for words in missing) for line in str(error).splitlines() if "=" in line), error


@pytest.mark.parametrize(("command", "remark"), of("checkpoint"))
def test_checkpoint_commands_parse(command, remark, folder, capsys):
    words = shlex.split(command)
    name = {"slca.serve": "slca.serve.__main__"}.get(words[2], words[2])
    module = importlib.import_module(name)
    if hasattr(module, "arguments"):
        module.arguments().parse_args(words[3:])
    else:  # its words are read where it runs: the run of this folder has no checkpoint, which is all that it says
        assert module.main(words[3:]) == 2 and "checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "remark"), of("installing"))
def test_extras_exist(command, remark):
    extras = re.search(r"^EXTRAS = \{(.*?)^\}", (ROOT / "setup.py").read_text(), re.S | re.M)[1]
    for names in re.findall(r"\.\[(.*?)\]", command):
        for name in names.split(","):
            assert f'"{name}":' in extras


def test_the_extras_that_the_text_names_exist():
    extras = re.search(r"^EXTRAS = \{(.*?)^\}", (ROOT / "setup.py").read_text(), re.S | re.M)[1]
    for path in (README, LAUNCH):
        for name in re.findall(r"'\.\[(\w+)\]'|extra: (\w+)", path.read_text()):
            assert f'"{name[0] or name[1]}":' in extras, name


def test_all_algorithms_are_listed():
    section = README.read_text().split("## Algorithms\n")[1].split("\n## ")[0]
    rows = "".join(line for line in section.splitlines() if line.startswith("| ") and "`" in line)
    listed = re.findall(r"`(\w+)`", rows)
    assert sorted(listed) == sorted(ALGORITHMS)


def test_links_lead_somewhere():
    for path in (README, LAUNCH, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
            assert target.startswith("http") or (path.parent / target).exists(), f"{path.name}: {target}"


def test_numbers_of_the_results_table_are_those_of_the_record():
    results = (ROOT / "bench/RESULTS.md").read_text()
    for number in ("10.2 points", "4.1 to 16.3", "0.594", "0.669", "0.667", "0.242", "41,430"):
        assert number in README.read_text() and number in results
    rows = re.findall(r"^\| [012] \| (T = 1|greedy) \| ([\d.]+ / [\d.]+ / [\d.]+) \|", results, re.M)
    for decoding in ("T = 1", "greedy"):
        seeds = [[float(x) for x in numbers.split(" / ")] for name, numbers in rows if name == decoding]
        assert len(seeds) == 3
        for column in zip(*seeds, strict=True):  # untrained, after SFT, after RL
            assert f"{sum(column) / 3:.3f}" in README.read_text()


CUT = textwrap.dedent("""
    --config.sft.steps=4 --config.train.steps=1 --config.eval.tasks=2 --config.rollout.prompts=2 --config.rollout.group=2
    --config.rollout.slots=4 --config.model.width=32 --config.model.layers=1 --config.model.heads=2 --config.model.kv_heads=1
    --config.model.head_dim=16 --config.model.ff=64 --config.rollout.max_turn_tokens=24
""").split()


@pytest.mark.nightly
def test_training_and_what_follows_it_cut_down_to_a_step(folder):
    """The commands on configs/tiny.py that need no server, then every command on their checkpoint that needs no grader."""
    shutil.rmtree(folder / "runs")
    shell(next(command for command, _ in commands(README) if "slca.tasks.catalog" in command))
    exec(compile(blocks(README, "python")[0], "README.md", "exec"), {"__name__": "readme"})
    for command, remark in commands(README):
        if rule(command) == "training" and "tiny.py" in command and "needs" not in remark:
            done = subprocess.run([*python(command), *CUT], capture_output=True, text=True, timeout=900, env=one_device())
            assert done.returncode == 0 and "report: " in done.stdout, done.stderr[-2000:]
    for command, _ in commands(README):
        if rule(command) == "checkpoint" and re.search(r"slca\.(export|evals\.indomain)", command):
            cut = ["--tasks=2"] if "indomain" in command else []
            done = subprocess.run([*python(command), *cut], capture_output=True, text=True, timeout=900, env=one_device())
            assert done.returncode == 0, done.stderr[-2000:]
    (serve,) = (command for command, _ in commands(README) if "slca.serve" in command)
    served(python(serve.replace("--port=8000", "--port=0")))


def served(words):
    """Start the server on a free port, ask for its models, stop it."""
    pytest.importorskip("fastapi", reason="no fastapi (extra [serve]): the server of the README is not started")
    environ = {**one_device(), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ) as server:
        try:
            line = next(found for found in server.stdout if re.search(r"http://\S+:\d+", found))
            url = re.search(r"http://\S+:\d+", line)[0]
            with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as answer:
                assert json.load(answer)["data"]
        finally:
            server.terminate()
        assert server.wait(60) == 0
