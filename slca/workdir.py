"""The run folder: who may use it, and files that are written whole or not at all."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slca.checkpoint import config_diff
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
        raise ConfigError(f"--workdir={workdir}: cannot write there ({error})") from error
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


def check_workdir(workdir: Path, config: Any, resume: bool, allow_config_change: bool) -> dict[str, Any]:
    """Make the folder; returns the config as it will be stored. Refuses a folder that holds another run."""
    now = redact_tree(json.loads(json.dumps(config.to_dict())), secrets(config.to_dict()))
    file = workdir / "config.json"
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        probe = workdir / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
        before = json.loads(file.read_text()) if file.is_file() else None
    except OSError as error:
        raise ConfigError(f"--workdir={workdir}: cannot write there ({error})") from error
    except ValueError as error:
        raise ConfigError(f"{file} is damaged ({error}); put it back, or name another --workdir") from error
    saved = (workdir / "checkpoints").is_dir() and any(p.name.isdigit() for p in (workdir / "checkpoints").iterdir())
    if before is None and saved:
        raise ConfigError(f"{workdir} holds checkpoints but no config.json; put it back, or name another --workdir")
    if before is not None and not resume:
        raise ConfigError(f"{workdir} holds a run already; continue it (--resume) or name another --workdir")
    changes = config_diff(before, now) if before is not None else []
    if changes and not allow_config_change:
        lines = "\n  ".join(changes[:20] + ([f"... and {len(changes) - 20} more"] if len(changes) > 20 else []))
        raise ConfigError(
            f"{workdir} was started with another config; use another --workdir, or --allow-config-change:\n  {lines}"
        )
    return now


def write_json(path: Path, value: Any) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(value, indent=1))
    os.replace(temporary, path)
