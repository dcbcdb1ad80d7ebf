"""The run folder: one writer at a time, files whole or not at all, another run's folder refused."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slca.validate import ConfigError
from slca.workdir import check_resume, check_workdir, lock, write_json

HOLDER = "import sys, time\nfrom pathlib import Path\nfrom slca.workdir import lock\nwith lock(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)"


def test_a_second_writer_is_refused_and_kill_9_lets_go(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "run")], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        for _ in range(2):
            with pytest.raises(ConfigError, match=rf"run is in use by pid {holder.pid} on .*another --workdir"):
                with lock(tmp_path / "run"):
                    pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with lock(tmp_path / "run"):
            assert f"pid {os.getpid()}" in (tmp_path / "run" / ".lock").read_text()
        with lock(tmp_path / "run"):  # and again, in one process: a notebook
            pass
    finally:
        holder.kill()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write there"):
        with lock(tmp_path / "file" / "run"):
            pass


def test_to_resume_there_must_be_a_run(tmp_path):
    for name in ("tiny-slca", "tiny-grpo", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    check_resume(tmp_path / "tiny-slca")
    with pytest.raises(ConfigError) as error:
        check_resume(tmp_path / "tiny-scla")
    assert f"nothing to continue in {tmp_path}/tiny-scla: there is no such folder" in str(error.value)
    assert "tiny-slca, tiny-grpo" in str(error.value) and not (tmp_path / "tiny-scla").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"it holds no config\.json and no checkpoints"):
        check_resume(tmp_path / "empty")
    with pytest.raises(ConfigError, match=r"no such folder \(.*/empty holds no run\)"):
        check_resume(tmp_path / "empty" / "run")
    with pytest.raises(ConfigError, match="no such folder"):
        check_resume(tmp_path / "nowhere" / "run")
    (tmp_path / "empty" / "checkpoints" / "7").mkdir(parents=True)
    check_resume(tmp_path / "empty")  # what is wrong with it, `check_workdir` says


def test_what_a_folder_holds_decides(tmp_path, config):
    stored = check_workdir(tmp_path, config, True, False)
    assert json.loads(json.dumps(stored)) == stored
    write_json(tmp_path / "config.json", stored)
    assert check_workdir(tmp_path, config, True, False) == stored
    with pytest.raises(ConfigError, match="holds a run already"):
        check_workdir(tmp_path, config, False, False)
    config.optim.lr = 0.5
    with pytest.raises(ConfigError, match=r"optim\.lr: 1e-06 -> 0\.5"):
        check_workdir(tmp_path, config, True, False)
    assert check_workdir(tmp_path, config, True, True)["optim"]["lr"] == 0.5
    older = json.loads((tmp_path / "config.json").read_text())  # by a version without these two fields
    del older["rollout"]["resample_fresh"], older["sgls"]["faults"]["rate"]
    write_json(tmp_path / "config.json", older)
    config.optim.lr = 1e-6
    check_workdir(tmp_path, config, True, False)  # at their defaults: nothing changed
    config.sgls.faults.rate = 0.5
    with pytest.raises(ConfigError, match=r"sgls\.faults\.rate: 0\.0 -> 0\.5$"):
        check_workdir(tmp_path, config, True, False)
    (tmp_path / "config.json").write_text('{"run":')
    with pytest.raises(ConfigError, match="is damaged"):
        check_workdir(tmp_path, config, True, False)
    (tmp_path / "config.json").unlink()
    (tmp_path / "checkpoints" / "7").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"checkpoints but no config\.json"):
        check_workdir(tmp_path, config, True, False)
    assert not [p for p in tmp_path.iterdir() if "writable" in p.name or p.name.endswith(".tmp")]
