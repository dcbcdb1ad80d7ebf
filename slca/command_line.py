"""What the commands that take a `--config` share: absl's parser with a line in place of a traceback."""

from __future__ import annotations

import sys

from absl import flags


def parse(argv: list[str], command: str) -> list[str]:
    """Absl's parser; a wrong flag or an unreadable config is one line on standard error, and exit code 2."""
    try:
        return flags.FLAGS(argv)
    except (AttributeError, KeyError) as error:
        print(f"{command}: no such config field: {error}; see configs/default.py", file=sys.stderr)
    except Exception as error:  # a config file is Python: anything may come out of it
        lines = str(error).splitlines()  # a traceback through absl, between the flag and what was wrong
        print(f"{command}: {type(error).__name__}: {' '.join(dict.fromkeys((lines[0], lines[-1])))}", file=sys.stderr)
    sys.exit(2)
