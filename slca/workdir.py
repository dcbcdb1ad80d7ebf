"""The run folder: who may use it, and files that are written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from slca.checkpoint import config_diff
from slca.report.redact import redact_tree, secrets
from slca.validate import ConfigError


def check_workdir(workdir: Path, config: Any, resume: bool, allow_config_change: bool) -> dict[str, Any]:
    """Make the folder; returns the config as it will be stored. Refuses a folder that holds another run."""
    now = redact_tree(json.loads(json.dumps(config.to_dict())), secrets(config.to_dict()))
    file = workdir / "config.json"
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        (workdir / ".writable").touch()
        (workdir / ".writable").unlink()
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
