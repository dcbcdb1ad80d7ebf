"""What the commands that take a `--config` share: absl's parser with a line in place of a traceback."""

from __future__ import annotations

import difflib
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from configs.default import get_config

LIKE_ENOUGH = 0.7  # of 1: equal


def parse(argv: list[str], command: str) -> list[str]:
    """Absl's parser; a wrong flag or an unreadable config is one line on standard error, and exit code 2."""
    try:
        return flags.FLAGS(argv)
    except Exception as error:  # a config file is Python: anything may come out of it
        if isinstance(error, AttributeError | KeyError) and (unknown := _unknown(argv)):
            print(f"{command}: {unknown}; every field is in configs/default.py", file=sys.stderr)
        else:
            lines = str(error).splitlines() or [""]  # a traceback through absl, between the flag and what was wrong
            text = " ".join(dict.fromkeys((lines[0], lines[-1])))
            print(f"{command}: {_line_of_config(error, argv)}{type(error).__name__}: {text}", file=sys.stderr)
    sys.exit(2)


def config_file(argv: Sequence[str]) -> tuple[str, str]:
    """(file, variant) of the --config flag as typed, "" for what is not there."""
    for i, word in enumerate(argv):
        if word in ("--config", "-config"):
            value = argv[i + 1] if i + 1 < len(argv) else ""
        elif word.startswith(("--config=", "-config=")):
            value = word.split("=", 1)[1]
        else:
            continue
        file, _, variant = value.partition(":")
        return file, variant
    return "", ""


def _line_of_config(error: Exception, argv: Sequence[str]) -> str:
    """`FILE:LINE: ` of the line of the config file that failed, "" when it was not in there."""
    file = config_file(argv)[0]
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if file and Path(f.filename) == Path(file)]
    return f"{file}:{lines[-1]}: " if lines else ""


def nearest(name: str, fields: Sequence[str], most: int = 3) -> list[str]:
    """Up to `most` of the dotted field names that may be meant by `name`: spelt alike, or of another section, the best first."""

    def likeness(field: str) -> float:
        whole, last = (difflib.SequenceMatcher(None, *pair).ratio() for pair in ((name, field), (_last(name), _last(field))))
        return max(whole, 0.9 * last) + whole / 100

    alike = {field: likeness(field) for field in fields}
    return sorted((f for f in fields if alike[f] >= LIKE_ENOUGH), key=lambda f: -alike[f])[:most]


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _unknown(argv: Sequence[str]) -> str:
    """The first `--config.a.b` that is no field of a config, with those that may be meant; "" when all are fields."""
    fields = list(_fields(get_config()))  # no config adds any
    for word in argv:
        found = re.match(r"--?config\.([^=]*)", word)
        if found and found[1] not in fields:
            meant = nearest(found[1], fields)
            return f"no such config field: {found[1]}" + (f"; did you mean {' or '.join(meant)}?" if meant else "")
    return ""


def _fields(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in config.items():
        yield from _fields(value, f"{prefix}{name}.") if hasattr(value, "items") else [prefix + name]
