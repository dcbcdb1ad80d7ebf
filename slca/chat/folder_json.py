"""JSON files of a model's folder: objects, or a ValueError of one line that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ValueError: unreadable, no JSON, or JSON of another kind."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}; fetch it again") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {type(value).__name__}, not an object; fetch it again")
    return value


def turn_ends(folder: Path) -> list[int]:
    """`eos_token_id` of generation_config.json, [] where there is none. Raises ValueError as `read_object` does."""
    file = folder / "generation_config.json"
    found = read_object(file).get("eos_token_id") if file.exists() else None
    ids = [] if found is None else found if isinstance(found, list) else [found]
    if not all(type(i) is int for i in ids):
        raise ValueError(f"{file}: eos_token_id={found!r:.80}: an id or a list of ids")
    return ids
