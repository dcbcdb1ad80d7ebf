"""The run folder: who may use it, and files that are written whole or not at all."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from configs.default import get_config
from slca.checkpoint import config_diff
from slca.files import whole
from slca.report.redact import redact_tree, secrets
from slca.validate import ConfigError


@contextmanager
def lock(workdir: Path) -> Iterator[None]:
    """Hold the run folder: two writers would tear each other's files. The kernel lets go of the lock when its holder ends, however.

    Raises ConfigError that names the process (pid, host) that holds it.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        file = open(workdir / ".lock", "a+")
    except OSError as error:
        raise ConfigError(f"--workdir={workdir}: cannot write there ({error.strerror or error})") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip() or f"another process ({error.strerror})"
            raise ConfigError(f"{workdir} is in use by {holder}; wait for it, stop it, or name another --workdir") from error
        file.truncate(0)
        file.write(f"pid {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


class Silent:
    """What a process that writes no files has in place of the metrics writer."""

    def write(self, *_: Any, **__: Any) -> None:
        pass

    def offset(self) -> int:
        return 0

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def holds_run(workdir: Path) -> bool:
    """Whether a run was begun there."""
    return (workdir / "config.json").is_file() or _saved(workdir)


def check_resume(workdir: Path) -> None:
    """Before the folder is made: raises ConfigError when it holds no run to continue, with those beside it that do."""
    if holds_run(workdir):
        return
    beside = sorted(p.name for p in workdir.parent.iterdir() if holds_run(p)) if workdir.parent.is_dir() else []
    beside = get_close_matches(workdir.name, beside, 5, 0.3) or beside[:5]
    there = "it holds no config.json and no checkpoints" if workdir.is_dir() else "there is no such folder"
    runs = (
        f"runs in {workdir.absolute().parent}: {', '.join(beside)}" if beside else f"{workdir.absolute().parent} holds no run"
    )
    raise ConfigError(
        f"--resume: nothing to continue in {workdir.absolute()}: {there} ({runs}); leave --resume out to begin one"
    )


def _saved(workdir: Path) -> bool:
    folder = workdir / "checkpoints"
    return folder.is_dir() and any(p.name.isdigit() for p in folder.iterdir())


def check_workdir(workdir: Path, config: Any, resume: bool | None, allow_config_change: bool) -> dict[str, Any]:
    """Make the folder; returns the config as it will be stored. Refuses a folder that holds another run, or, with resume=False, any."""
    now = redact_tree(json.loads(json.dumps(config.to_dict())), secrets(config.to_dict()))
    file = workdir / "config.json"
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        probe = workdir / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
        before = json.loads(file.read_text()) if file.is_file() else None
    except OSError as error:
        raise ConfigError(f"--workdir={workdir}: cannot write there ({error.strerror or error})") from error
    except ValueError as error:
        raise ConfigError(f"{file} is damaged ({error}); put it back, or name another --workdir") from error
    if before is None and _saved(workdir):
        raise ConfigError(f"{workdir} holds checkpoints but no config.json; put it back, or name another --workdir")
    if before is not None and resume is False:
        raise ConfigError(f"{workdir} holds a run already; continue it (without --noresume) or name another --workdir")
    changes = config_diff(before, now, get_config().to_dict()) if before is not None else []
    if changes and not allow_config_change:
        lines = "\n  ".join(changes[:20] + ([f"... and {len(changes) - 20} more"] if len(changes) > 20 else []))
        raise ConfigError(
            f"{workdir} was started with another config; use another --workdir, or --allow-config-change:\n  {lines}"
        )
    return now


def write_json(path: Path, value: Any) -> None:
    """Whole or not at all."""
    with whole(path) as file:
        file.write_text(json.dumps(value, indent=1))
