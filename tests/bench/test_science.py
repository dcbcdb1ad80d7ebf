"""The science runs: which there are, which are done, and that each is made once and after its cold start."""

import json

import pytest

from bench import science
from bench.contender import ROOT
from bench.science import Run, cold_start, finished, run_all, runs


def write_results(folder, *names):
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps({"rows": [{"name": name} for name in names]}))


def write_evaluation(folder, tasks, **metrics):
    """As `slca.evals.indomain --out` writes it."""
    cells = [{"split": "heldout_tasks", "temperature": 1.0, "tasks": tasks, "metrics": metrics}]
    (folder / "evaluation.json").write_text(json.dumps({"cells": cells}))


@pytest.fixture
def commands(monkeypatch):
    """Commands in the order in which they are run; each leaves the results of a finished run, or fails if FAIL is in it."""
    made: list[list[str]] = []

    def fake(command, log, cores):
        made.append(command)
        folder = next(word for word in command if word.startswith("--workdir=")).removeprefix("--workdir=")
        if any("FAIL" in word for word in command):
            return 3
        write_results(science.Path(folder), "after SFT" if ":sft" in command[3] else "after RL")
        return 0

    monkeypatch.setattr(science, "make", fake)
    return made


def test_every_seed_has_the_same_runs_and_seeds_are_outermost():
    """9 methods in the base condition; 7 at each of three noise levels; 5 with two correlations, sparse and without HierR."""
    found = runs(tuple(science.PARTS), 2)
    assert len(found) == 2 * (9 + 7 * 3 + 5 * 4) and len(set(found)) == len(found)
    assert [run.seed for run in found] == [0] * 50 + [1] * 50
    assert [run.algorithm for run in runs(("base",), 1)] == list(science.BASE)
    assert runs(("sparse",), 1)[0] == Run("sparse execution reward", "slca", 0)


def test_folders_and_commands(tmp_path):
    run = Run("noise 1, rho -0.5", "mix@0.5", 3, ("noise=1", "rho=-0.5"))
    assert run.folder(tmp_path) == tmp_path / "noise-1_rho--0.5" / "mix@0.5-3"
    command = run.command(tmp_path, ("--extra",))
    assert "--config=configs/science.py:mix@0.5,noise=1,rho=-0.5" in command and command[-1] == "--extra"
    assert f"--config.checkpoint.init={cold_start(tmp_path, 3)}" in command and "--config.run.seed=3" in command
    folders = [run.folder(tmp_path) for run in runs(tuple(science.PARTS), 1)]
    assert len(set(folders)) == len(folders)  # "w/o HierR" too


def test_finished_means_that_the_last_evaluation_is_there(tmp_path):
    assert not finished(tmp_path / "none")
    write_results(tmp_path / "half", "untrained", "after SFT")
    write_results(tmp_path / "done", "untrained", "after RL")
    assert not finished(tmp_path / "half") and finished(tmp_path / "done")


@pytest.mark.parametrize("jobs", [1, 3])
def test_each_run_is_made_once_after_its_cold_start(tmp_path, commands, jobs):
    wanted = runs(("sparse",), 2)
    write_results(wanted[1].folder(tmp_path), "after RL")
    assert run_all(tmp_path, wanted, jobs, ("--flag",)) == 0
    where = [next(word for word in c if word.startswith("--workdir=")).removeprefix("--workdir=") for c in commands]
    assert len(where) == len(set(where)) == 2 + 9  # two cold starts; one of ten runs was done
    for run in wanted:
        if run != wanted[1]:
            assert where.index(str(cold_start(tmp_path, run.seed))) < where.index(str(run.folder(tmp_path)))
    assert all(c[-1] == "--flag" for c in commands)
    assert run_all(tmp_path, wanted, jobs) == 0 and len(commands) == 11  # a second time there is nothing to do


def test_a_cold_start_that_was_killed_is_made_to_its_end(tmp_path, commands, monkeypatch):
    """Runs write results.json at every evaluation, the first of them before any training."""
    wanted = [run for run in runs(("sparse",), 2) if run.algorithm == "slca"]
    write_results(cold_start(tmp_path, 0), "untrained")
    write_results(cold_start(tmp_path, 1), "untrained", "after SFT")
    monkeypatch.setattr(science, "make", lambda command, log, cores: commands.append(command) or 0)
    assert run_all(tmp_path, wanted, 1) == 0
    assert [c[4] for c in commands if ":sft" in c[3]] == [f"--workdir={cold_start(tmp_path, 0)}"]


def test_seeds_may_share_cold_starts(tmp_path, commands):
    """Seeds 0, 1, 2 over two cold starts: 0, 1, 0."""
    wanted = [run for run in runs(("sparse",), 3) if run.algorithm == "slca"]
    assert run_all(tmp_path, wanted, 1, cold_starts=2) == 0
    assert sum(":sft" in c[3] for c in commands) == 2
    used = [word.rpartition("-")[2] for c in commands for word in c if word.startswith("--config.checkpoint.init=")]
    assert used == ["0", "1", "0"]


def test_failures_are_counted_and_a_failed_cold_start_stops_its_own_runs_alone(tmp_path, monkeypatch, commands, capsys):
    monkeypatch.setattr(science, "cold_start", lambda root, seed: root / (f"sft-FAIL-{seed}" if seed == 0 else f"sft-{seed}"))
    wanted = [run for run in runs(("sparse",), 2) if run.algorithm in ("slca", "grpo")]
    assert run_all(tmp_path, wanted, 1) == 3  # the cold start of seed 0 and its two runs
    assert [run for run in wanted if finished(run.folder(tmp_path))] == [run for run in wanted if run.seed == 1]
    printed = capsys.readouterr().out
    assert "exit code 3, see " in printed and "sparse execution reward · slca · seed 0: its cold start failed" in printed


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["list", "--algorithms=nope"], "--algorithms: nope unknown; there are slca, grpo, "),
        (["list", "--algorithms=slca,gigpo", "--part=sparse"], "--algorithms: gigpo unknown; there are slca, grpo, "),
        (["list", "--seeds=0"], "--seeds: 0: a whole number, at least 1"),
        (["run", "--seeds=-1"], "--seeds: -1: a whole number, at least 1"),
        (["run", "--cold-starts=-1"], "--cold-starts: -1: a whole number, at least 0"),
        (["run", "--jobs=0"], "--jobs: 0: a whole number, at least 1"),
        (["evaluate", "--root=nowhere"], "--root=nowhere: there is no such folder"),
        (["evaluate", "--tasks=0"], "--tasks: 0: a whole number, at least 1"),
        (["collect", "--root=nowhere"], "--root=nowhere: there is no such folder"),
        (["collect", "--root=.", "--results=README.md/x.jsonl"], "--results=README.md/x.jsonl: cannot be written"),
        (["collect", "--results=bench"], "bench is a folder"),
        (["report", "--results=bench"], "bench is a folder"),
        (["report", "--results=nowhere.jsonl"], "nowhere.jsonl: no such file, no lines for this selection"),
        (["report", "--results=README.md"], "README.md, line 1: not a line that"),
    ],
)
def test_wrong_arguments_are_named(argv, says, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as ended:
        science.main(argv)
    assert ended.value.code == 2 and says in capsys.readouterr().err


def test_collect_makes_the_folder_of_its_results_and_report_wants_lines(tmp_path, capsys, monkeypatch):
    write_results(Run("base", "slca", 0).folder(tmp_path), "after RL")
    monkeypatch.setattr(science.science_report, "outcome", lambda folder: {"numbers": {}, "curves": {}})
    results = tmp_path / "new" / "lines.jsonl"
    where = [f"--root={tmp_path}", f"--results={results}"]
    for added in (1, 0):
        assert science.main(["collect", *where]) == 0 and f"{added} runs added to {results}" in capsys.readouterr().out
    write_evaluation(Run("base", "slca", 0).folder(tmp_path), 2048)
    for replaced in (1, 0):
        monkeypatch.setattr(
            science.science_report, "outcome", lambda folder: {"numbers": {"held-out tasks": 2048}, "curves": {}}
        )
        assert science.main(["collect", *where]) == 0
        assert f"0 runs added to {results}, which had 1; {replaced} of those replaced" in capsys.readouterr().out
    assert [json.loads(line)["numbers"] for line in results.read_text().splitlines()] == [{"held-out tasks": 2048}]
    with pytest.raises(SystemExit):
        science.main(["report", "--algorithms=grpo", *where])
    assert "1 lines, none for this selection" in capsys.readouterr().err


def test_finished_runs_are_evaluated_on_more_tasks_once(tmp_path, monkeypatch):
    """Of four runs one is not finished, one was evaluated on fewer tasks, one on as many, and of one the evaluation was killed."""
    wanted = [Run("base", "slca", seed) for seed in range(4)]
    for run in wanted[1:]:
        write_results(run.folder(tmp_path), "after RL")
    write_evaluation(wanted[1].folder(tmp_path), 128)
    write_evaluation(wanted[2].folder(tmp_path), 2048)
    (wanted[3].folder(tmp_path) / "evaluation.json").touch()
    made = []

    def fake(command, log, cores):
        made.append(command)
        write_evaluation(science.Path(command[-1].removeprefix("--out=")).parent, 2048)
        return 0

    monkeypatch.setattr(science, "make", fake)
    argv = ["evaluate", "--part=base", "--algorithms=slca", "--seeds=4", f"--root={tmp_path}"]
    for _ in range(2):
        assert science.main(argv) == 0
        assert [c[3] for c in made] == [f"--checkpoint={wanted[k].folder(tmp_path)}" for k in (1, 3)]
    assert all({"--tasks=2048", "--temperatures=1"} < set(c) for c in made)
    monkeypatch.setattr(science, "make", lambda *_: 1)
    assert science.main([*argv, "--tasks=4096"]) == 1


def test_list_and_unknown_parts(tmp_path, capsys):
    (tmp_path / "lines.jsonl").write_text(json.dumps({"run": ["base", "grpo", 0], "numbers": {}, "curves": {}}) + "\n")
    write_results(Run("base", "slca", 0).folder(tmp_path), "after RL")
    where = ["--part=base", "--seeds=1", f"--root={tmp_path}", f"--results={tmp_path}/lines.jsonl"]
    assert science.main(["list", *where]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["done\tbase\tslca\t0", "done\tbase\tgrpo\t0", "open\tbase\tsupport_control\t0"] and len(lines) == 9
    with pytest.raises(SystemExit):
        science.main(["list", "--part=nothing"])
    assert "nothing unknown" in capsys.readouterr().err
    picked = ["--part=base,noise,correlation", "--algorithms=slca", "--conditions=noise 1, rho 0.5;noise 3"]
    assert science.main(["list", "--seeds=1", *picked]) == 0
    assert [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()] == ["noise 3", "noise 1, rho 0.5"]
    with pytest.raises(SystemExit):
        science.main(["list", "--part=base", "--conditions=noise 3"])
    assert "noise 3 unknown; there are base" in capsys.readouterr().err
