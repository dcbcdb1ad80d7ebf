"""The process that answers a line with JSON, and the tables made of answers."""

import json
import sys

import pytest

from bench import contender
from bench.contender import Contender, Row, in_turns, peer, table, write

ECHO = """
import json, os, sys
for n, line in enumerate(sys.stdin):
    print(json.dumps({"seconds": n + 1, "heard": line.strip(), "path": os.environ["PYTHONPATH"], "how": os.environ.get("HOW")}), flush=True)
    if line.strip() == "leave": break
"""


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(contender, "PAUSE", 0.0)
    running = []

    def make(**how):
        running.append(Contender([sys.executable, "-S", "-c", ECHO], **how))
        return running[-1]

    yield make
    for one in running:
        one.stop()


def test_answers_are_kept_in_the_order_of_the_rounds(made):
    a, b = made(ours=True), made(ours=False, env={"HOW": "so"})
    in_turns({"a": a, "b": b}, 3, "step")
    assert a.column() == [1, 2, 3] and a.column(skip=2) == [3] and b.column("how") == ["so"] * 3
    assert {answer["heard"] for answer in a.answers} == {"step"}


def test_a_peer_does_not_see_the_project(made):
    assert made(ours=False).ask()["path"] == ""
    assert made(ours=True).ask()["path"] == str(contender.ROOT)


def test_a_contender_that_ended_is_named(made):
    one = made(ours=False)
    one.ask("leave")
    with pytest.raises(SystemExit, match=r"a contender ended \(0\): .*python"):
        one.ask()


def test_a_peer_is_found_where_venvs_sh_puts_it(tmp_path):
    python = tmp_path / "torch" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert peer(tmp_path, "torch") == str(python)
    assert peer(tmp_path, "tunix") == "" and peer(None, "torch") == ""


def test_ratios_are_taken_round_by_round(capsys, tmp_path):
    """Theirs 2, 9, 4 over ours 1, 3, 4: ratios 2, 3, 1 with median 2; the ratio of medians would be 4/3."""
    found = table("t", "s", [Row("theirs", [2.0, 9.0, 4.0], [1.0, 3.0, 4.0])], form=".0f")
    assert "| theirs | 4 (2 to 9) | 2.00 (1.00 to 3.00) |" in capsys.readouterr().out
    assert found["rows"][0]["ratio"] == {"median": 2.0, "least": 1.0, "most": 3.0}
    write(tmp_path / "new" / "out.json", "step", [found], rounds=3)
    stored = json.loads((tmp_path / "new" / "out.json").read_text())
    assert stored["comparison"] == "step" and stored["rounds"] == 3 and stored["tables"] == [found]
    assert stored["machine"]["cores"] >= 1


def test_versions_are_those_of_the_interpreter():
    found = contender.versions()
    assert found["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.") and "jax" in found
