"""The command line of the comparisons: what it refuses, what it hands on, what it writes."""

import json

import pytest

from bench import run
from bench.agentic import SHAPE
from bench.step_worker import SIZES


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "COMPARISON"),
        (["nothing"], "nothing"),
        (["step", "--rounds=0"], "--rounds: 0: a whole number, at least 1"),
        (["step", "--sizes=small,huge"], "--sizes: huge unknown; there are small, mid"),
        (["scaling", "--axes=G"], "--axes: G unknown; there are group, turns, prompt, model"),
        (["rollout", "--batches=16,x"], "--batches: x: a whole number, at least 1"),
        (["rollout", "--batches=0"], "--batches: 0: "),
        (["rollout", "--new=0"], "--new: 0: a whole number, at least 1"),
        (["rollout", "--without=floo"], "--without: floo unknown; there are plain loop; floor; transformers; "),
        (["rollout", "--without=floor;ours"], "--without: ours cannot be left out"),
        (["rollout", "--add", "--out=README.md"], "README.md: cannot be read as JSON"),
        (["rollout", "--add", "--out=bench/figures/step.json"], "step.json: no results of `python -m bench.run rollout`"),
        (["step", "--out=bench"], "--out: bench: a folder; name a file in it"),
        (["agentic", "--venvs=/nowhere"], "--venvs=/nowhere has no tunix; build it with: sh bench/venvs.sh /nowhere"),
        (["startup", "--venvs=/nowhere"], "--venvs"),
    ],
)
def test_wrong_arguments_are_named(argv, says, capsys, monkeypatch):
    monkeypatch.chdir(run.contender.ROOT)
    with pytest.raises(SystemExit) as ended:
        run.main(argv)
    assert ended.value.code == 2 and says in capsys.readouterr().err


def test_interpreters_that_are_there_are_handed_on(tmp_path, monkeypatch, capsys):
    """jax12 may be missing; the versions of all are printed and stored."""
    for name in ("torch", "tunix"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "python").touch()
    asked = []

    def fake(args, peers):
        asked.append((args.sizes, args.rounds, peers))
        return [{"title": "t"}]

    monkeypatch.setattr(run.contender, "versions", lambda *python: {"python": "3"})
    monkeypatch.setitem(run.COMPARISONS, "rollout", fake)
    out = tmp_path / "r.json"
    assert run.main(["rollout", f"--venvs={tmp_path}", "--sizes=mid", f"--out={out}"]) == 0
    peers = {name: str(tmp_path / name / "bin" / "python") for name in ("torch", "tunix")}
    assert asked == [(["mid"], 5, peers)]
    stored = json.loads(out.read_text())
    assert stored["tables"] == [{"title": "t"}] and set(stored["versions"]) == {"ours", "torch", "tunix"}
    assert "tunix: python 3" in capsys.readouterr().out


def test_few_rounds_are_called_a_trial(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(run.COMPARISONS, "step", lambda args, peers: [])
    assert run.main(["step", "--rounds=2", f"--out={tmp_path}/s.json"]) == 0
    printed = capsys.readouterr().out
    assert "a trial and not a result" in printed and "the peers are left out" in printed


def test_results_are_written_table_by_table_and_parts_are_added(tmp_path, monkeypatch, capsys):
    """A contender that ends loses no earlier table; what was measured with other rounds is not mixed in."""
    out = tmp_path / "u.json"

    def titles():
        return [(table["title"], table["n"]) for table in json.loads(out.read_text())["tables"]]

    def broken(args, peers):
        yield {"title": "small", "n": 1}
        raise RuntimeError("a contender ended")

    monkeypatch.setitem(run.COMPARISONS, "update", broken)
    with pytest.raises(RuntimeError):
        run.main(["update", f"--out={out}"])
    assert titles() == [("small", 1)]
    monkeypatch.setitem(run.COMPARISONS, "update", lambda args, peers: [{"title": "mid", "n": 2}, {"title": "small", "n": 3}])
    run.main(["update", f"--out={out}", "--add"])
    assert titles() == [("small", 3), ("mid", 2)]
    with pytest.raises(SystemExit):
        run.main(["update", f"--out={out}", "--add", "--rounds=7"])
    assert "has rounds 5, this run 7" in capsys.readouterr().err and titles() == [("small", 3), ("mid", 2)]
    monkeypatch.setitem(run.COMPARISONS, "update", lambda args, peers: [{"title": "mid", "n": 4}])
    run.main(["update", f"--out={out}"])
    assert titles() == [("mid", 4)]


def test_what_is_left_out_is_not_started(monkeypatch):
    from bench import rollout

    monkeypatch.setattr(rollout, "Contender", lambda command, **how: command)
    peers = {"torch": "t", "tunix": "u", "jax12": "j"}
    assert set(rollout.contenders("f", 2, 3, **peers)) == {"ours", *rollout.OTHERS}
    without = rollout.left_out("transformers, passive;floor")
    assert set(rollout.contenders("f", 2, 3, **peers, without=without)) == {"ours", *rollout.OTHERS} - set(without)
    assert rollout.left_out("") == []


def test_names_agree_between_the_modules():
    from bench.rollout import SIZES as SAMPLED
    from bench.scaling import AXES

    assert run.SIZES == tuple(SIZES) == tuple(SAMPLED) and run.AXES == tuple(AXES)
    assert SIZES == SAMPLED and set(run.PEERS) < set(run.COMPARISONS)
    assert set(SHAPE) == {"prompts", "group", "turns", "length", "new", "result"}
