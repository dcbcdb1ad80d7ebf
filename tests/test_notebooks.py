"""Every notebook runs from its first cell to its last in a kernel of its own, and git holds no outputs.

01_quickstart trains (with SLCA_NOTEBOOK=smoke, the smallest of its sizes): nightly. The others take seconds.
"""

import json
from pathlib import Path

import pytest

from slca.report.episodes import episode_file, save_episodes
from slca.report.metrics import Writer
from tests.report.synthetic import batch

ROOT = Path(__file__).parents[1]
FILES = sorted(ROOT.glob("notebooks/*.ipynb"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of a made-up run, for the notebook that reads one."""
    folders = [tmp_path_factory.mktemp(f"seed{seed}") for seed in (0, 1)]
    for seed, folder in enumerate(folders):
        with Writer(folder) as writer:
            for step in range(1, 4):
                writer.write(step, {"rollout/reward/tool": 0.1 * step + 0.01 * seed, "train/ess": 1.0})
        (folder / "config.json").write_text(json.dumps({"run": {"seed": seed}, "credit": {"algorithm": "slca"}}))
        row = {"name": "after RL", "split": "heldout_tasks", "temperature": 1.0, "metrics": {"success@0.9": 0.5 + 0.1 * seed}}
        (folder / "results.json").write_text(json.dumps({"rows": [row]}))
        episodes, rollouts, credits, words, segments = batch(groups=2, hostile=True, seed=seed)
        save_episodes(episode_file(folder, 3), episodes, rollouts, credits, words.decode, segments=segments, step=3)
    return folders


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_git_holds_no_outputs_and_the_first_cell_installs(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    assert "%pip install -q {SOURCE}" in "".join(cells[0]["source"])  # ready for Colab
    assert not any("!" == line[0] for cell in cells for line in cell["source"] if line.strip())


def executed(name, folder, monkeypatch, **environ):
    """Run a notebook in `folder`; returns what its cells printed."""
    nbclient = pytest.importorskip("nbclient", reason="no nbclient: the notebooks are not run")
    pytest.importorskip("ipykernel", reason="no ipykernel: the notebooks are not run")
    import nbformat

    for key, value in {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "XLA_FLAGS": "", **environ}.items():
        monkeypatch.setenv(key, value)
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "".join(output.get("text", "") or output.get("data", {}).get("text/html", "") for output in outputs)


def test_02_advantage_routing(tmp_path, monkeypatch):
    said = executed("02_advantage_routing", tmp_path, monkeypatch)
    assert "slca leak 0.0\n" in said and "rltr leak 0.0\n" in said and "grpo leak 0.0\n" not in said
    assert said.count("<h4>") == 4 and (tmp_path / "routing.html").stat().st_size > 10_000


def test_03_simulator(tmp_path, monkeypatch):
    said = executed("03_simulator", tmp_path, monkeypatch)
    for status in ("ok ", "invalid_arguments", "unknown_tool", "replay", "cache"):
        assert status in said
    assert "refused: [('elsewhere'" in said


def test_04_credit_lab(tmp_path, monkeypatch):
    said = executed("04_credit_lab", tmp_path, monkeypatch)
    assert "laws hold" in said and said.count("rank_slca  tool") == 3


def test_05_read_a_run(runs, tmp_path, monkeypatch):
    said = executed("05_read_a_run", tmp_path, monkeypatch, SLCA_RUNS=":".join(map(str, runs)))
    assert "3 RL steps" in said and "Reward by channel" in said and "worst call" in said
    assert "0.550 ± " in (tmp_path / "comparison.html").read_text()  # the mean of 0.5 and 0.6 over two seeds


@pytest.mark.nightly
def test_01_quickstart(tmp_path, monkeypatch):
    said = executed("01_quickstart", tmp_path, monkeypatch, SLCA_NOTEBOOK="smoke")
    assert "metrics.jsonl" in said and "advantage" in said and (tmp_path / "runs/quickstart-smoke/report.html").exists()
