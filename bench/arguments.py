"""What the command lines of bench/ share: types for argparse, whose errors say what is wrong and what to do (exit code 2), and files."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def at_least(least: int, kind: type[int] | type[float] = int) -> Callable[[str], Any]:
    """Type: a whole number (or any, with float) from `least` on."""

    def number(text: str) -> int | float:
        try:
            found = kind(text)
        except ValueError:
            found = kind(least - 1)
        if not found >= least:  # nan too
            raise argparse.ArgumentTypeError(f"{text or 'nothing'}: a {'whole ' * (kind is int)}number, at least {least}")
        return found

    return number


positive, natural = at_least(1), at_least(0)


def numbers(text: str) -> list[int]:
    """Type: positive whole numbers, split by commas."""
    return [positive(part) for part in text.split(",")]


def names(known: Iterable[str], split: str = ",") -> Callable[[str], list[str]]:
    """Type: some of the known names, at least one."""

    def given(text: str) -> list[str]:
        found = text.split(split)
        if unknown := sorted(set(found) - set(known)):
            raise argparse.ArgumentTypeError(unknown_names(unknown, known, split))
        return found

    return given


def unknown_names(unknown: Iterable[str], known: Iterable[str], split: str = ",") -> str:
    between = f"{split} "
    return f"{between.join(name or 'no name' for name in unknown)} unknown; there are {between.join(known)}"


def interpreter(text: str) -> str:
    """Type: the Python of another environment; "" = none."""
    if text and not shutil.which(text):
        raise argparse.ArgumentTypeError(f"{text}: no program is there; bench/venvs.sh FOLDER makes FOLDER/NAME/bin/python")
    return text


def output(text: str) -> Path:
    """Type: a file that can be written, found out before anything is measured; its folder may be missing."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: a folder; name a file in it")
    there = next(folder for folder in path.absolute().parents if folder.exists())
    if not there.is_dir() or not os.access(path if path.exists() else there, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text}: cannot be written in {there}; name another file")
    return path


def none(name: str, description: str | None) -> None:
    """The command line of a module that takes no argument: --help, and an error for everything else."""
    argparse.ArgumentParser(
        prog=name, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()


def read_json(path: Path) -> Any:
    """Raises ValueError, with the file's name, where it holds no JSON."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as wrong:
        raise ValueError(f"{path}: cannot be read as JSON ({wrong})") from None


def read_results(path: Path, comparison: str) -> dict[str, Any]:
    """What `contender.write` left of a comparison. Raises ValueError, with the file's name, where it is something else."""
    found = read_json(path)
    fine = isinstance(found, dict) and found.get("comparison") == comparison and isinstance(found.get("tables"), list)
    if not fine or not all(isinstance(table, dict) and "title" in table for table in found["tables"]):
        raise ValueError(
            f"{path}: no results of `python -m bench.run {comparison}`; name another file, or remove it and measure again"
        )
    return found
