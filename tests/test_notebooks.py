"""Every notebook's code runs from top to bottom, and git holds no outputs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FILES = sorted(Path(__file__).parents[1].glob("notebooks/*.ipynb"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_notebook_runs(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    code = "\n".join("".join(cell["source"]) for cell in cells)
    done = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "slca leak 0.0" in done.stdout
