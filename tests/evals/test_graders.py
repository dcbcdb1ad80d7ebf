"""Virtual environments of graders, with a stand-in for the package: nothing is installed from anywhere."""

import sys
from pathlib import Path

import pytest

from slca.evals.graders import Grader, GraderError, environment, run

GRADER = Grader("probe", "probe-package", "1.0", ("needs-nothing",))


def venv(folder: Path, version: str) -> Path:
    """A folder that looks like an environment with the package at `version` ("" = without it)."""
    (folder / "bin").mkdir(parents=True)
    site = folder / "site"
    (site / f"probe_package-{version}.dist-info").mkdir(parents=True)
    if version:
        (site / f"probe_package-{version}.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: probe-package\nVersion: {version}\n"
        )
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_flag_before_variable_before_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert GRADER.place() == tmp_path / ".cache/slca/graders/probe-1.0"
    monkeypatch.setenv("SLCA_PROBE_VENV", "/there")
    assert GRADER.place() == Path("/there") and GRADER.place("/here") == Path("/here")


def test_only_the_version_that_is_asked_for_will_do(tmp_path):
    python = venv(tmp_path / "right", "1.0")
    assert GRADER.python(str(tmp_path / "right")) == python
    said = []
    assert GRADER.setup(str(tmp_path / "right"), said.append) == python and "already" in said[0]
    venv(tmp_path / "old", "0.9")
    with pytest.raises(GraderError, match=r"holds 0\.9, not probe-package 1\.0"):
        GRADER.python(str(tmp_path / "old"))
    with pytest.raises(GraderError, match="--setup"):
        GRADER.python(str(tmp_path / "nothing"))


def test_a_failed_installation_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(GraderError, match="needs-nothing"):
        GRADER.setup(str(tmp_path / "new"), lambda text: None)
    with pytest.raises(GraderError):  # and what it left behind does not pass for an environment
        GRADER.python(str(tmp_path / "new"))


def test_a_graders_process_gets_no_keys(monkeypatch):
    monkeypatch.setenv("SLCA_EVAL_KEY", "secret")
    given = environment({"BFCL_PROJECT_ROOT": "/x"})
    assert "SLCA_EVAL_KEY" not in given and given["BFCL_PROJECT_ROOT"] == "/x" and "PATH" in given


def test_failures_come_with_the_last_lines(tmp_path):
    log = tmp_path / "log"
    run([sys.executable, "-c", "print('fine')"], {}, log, 60.0)
    assert log.read_text() == "fine\n"
    with pytest.raises(GraderError, match=r"exit code 3[\s\S]*the reason"):
        run([sys.executable, "-c", "print('the reason'); exit(3)"], {}, log, 60.0)
    with pytest.raises(GraderError, match=r"more than 0\.2 s"):
        run([sys.executable, "-c", "import time; time.sleep(60)"], {}, log, 0.2)
