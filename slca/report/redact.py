"""Keep secrets out of every file of a run.

Keys live in environment variables; a config only names them (fields ending in `key_env`). Whatever reaches a sink (metrics,
episodes, config, report) passes `redact` first, because keys have come back in error texts, URLs and uploaded run configs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

MASK = "[redacted]"
SHORTEST = 8  # characters; masking shorter values ("EMPTY", "none") would shred harmless text
ALWAYS = ("WANDB_API_KEY", "HF_TOKEN")  # read by libraries we call, never named in a config

_CREDENTIALS = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")  # https://user:password@host


def secrets(config: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Values that must never be written: of the variables named by `*key_env` fields of `config`, and of `ALWAYS`.

    Longest first, so that a value that contains another is masked whole.
    """
    names = {*ALWAYS, *(_key_variables(config) if config is not None else ())}
    values = {environ[name] for name in names if len(environ.get(name, "")) >= SHORTEST}
    return tuple(sorted(values, key=lambda value: (-len(value), value)))


def _key_variables(config: Mapping[str, Any]) -> Iterator[str]:
    for name, value in config.items():
        if isinstance(value, Mapping) or hasattr(value, "items"):
            yield from _key_variables(value)
        elif str(name).endswith("key_env") and value:
            yield str(value)


def redact(text: str, hidden: tuple[str, ...] = ()) -> str:
    """`text` with each value of `hidden` (see `secrets`) and each user:password of a URL replaced by `MASK`."""
    for value in hidden:
        text = text.replace(value, MASK)
    return _CREDENTIALS.sub(MASK, text)


def redact_tree(tree: Any, hidden: tuple[str, ...] = ()) -> Any:
    """`redact` on every string of a JSON-able tree, keys included. Applied before serialising, where escapes cannot hide a value."""
    if isinstance(tree, str):
        return redact(tree, hidden)
    if isinstance(tree, Mapping) or hasattr(tree, "items"):
        return {redact_tree(key, hidden): redact_tree(value, hidden) for key, value in tree.items()}
    if isinstance(tree, list | tuple | set | frozenset):
        return [redact_tree(value, hidden) for value in tree]
    return tree
