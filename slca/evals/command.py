"""What the commands of all graders share: flags, the interpreter, one run a folder, going on after an interruption, exit codes."""

from __future__ import annotations

import argparse
import errno
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slca.evals.graders import Grader, GraderError, held

SETTINGS, SCORES = "settings.json", "scores.json"
# Flags that change where or how fast, not what: a run goes on under other ones.
_INDIFFERENT = ("out", "venv", "setup", "slots", "timeout", "key_env", "user_key_env")
_PARTS = ("answers", "result", "score", "simulations.json")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # no fault of the command

Check = Callable[[argparse.ArgumentParser, argparse.Namespace], None]
Work = Callable[[argparse.Namespace, Path, Path], None]


def command_arguments(parser: argparse.ArgumentParser, grader: Grader) -> None:
    """What the commands of all graders take."""
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help=f"default runs/{grader.name}-<time>; one of an interrupted run goes on with it"
    )
    where = f"the grader's environment (default ${grader.variable} or the cache)"
    parser.add_argument("--venv", default="", metavar="DIR", help=where)
    parser.add_argument("--setup", action="store_true", help="make the grader's environment and stop")


def command(grader: Grader, parser: argparse.ArgumentParser, argv: Sequence[str] | None, check: Check, work: Work) -> int:
    """Run a grader's command and give its exit code. check(parser, options): faults that need no grader; work(options, python, out):
    evaluates into the folder `out`, reports, and writes scores.json last.

    Exit codes: 0 done; 1 generation or grading failed; 2 command, checkpoint, environment or folder wrong; 128 + n ended by signal n.
    """
    options = parser.parse_args(argv)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it would say that PyTorch is missing, which is as it should be
    try:
        if options.setup:
            grader.setup(options.venv)
            return 0
        sane(parser, options)
        check(parser, options)
        python = grader.python(options.venv)
        out = (options.out or Path("runs") / f"{grader.name}-{time.strftime('%Y%m%d-%H%M%S')}").resolve()
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise GraderError(f"--out={out}: cannot be made ({error.strerror})") from None
        with held(out / ".lock", f"--out={out} is in use"):
            begun = begin(out, options)
            with ended_by_signals():
                code = _work(grader, work, options, python, out)
            if begun and code == 2:  # nothing to go on with: the command may be put right in the same folder
                (out / SETTINGS).unlink()
            return code
    except (GraderError, ValueError) as error:
        return failed(grader, error, 2)


def _work(grader: Grader, work: Work, options: argparse.Namespace, python: Path, out: Path) -> int:
    from slca.sgls.endpoint import EndpointError

    try:
        work(options, python, out)
    except (ValueError, ImportError) as error:
        return failed(grader, error, 2)
    except OSError as error:
        return failed(grader, error, 1 if error.errno in _FULL else 2)
    except (EndpointError, RuntimeError) as error:
        return failed(grader, error, 1)
    except Ended as end:
        return failed(grader, f"ended by a signal; the same command with --out={out} goes on", 128 + end.number)
    return 0


def sane(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse numbers that no grader has a use for, by the parser (exit code 2)."""
    given = vars(options)
    for name in ("max_tokens", "context", "slots", "trials"):
        if name in given and not 0 < given[name] < 2**31:
            parser.error(f"--{name.replace('_', '-')}={given[name]}: must be above 0 and below 2^31")
    for name in ("limit", "seed"):
        if not 0 <= given[name] < 2**31:
            parser.error(f"--{name}={given[name]}: must be 0 to 2^31 - 1")
    if not 0 <= options.temperature <= 2:
        parser.error(f"--temperature={options.temperature}: must be 0 to 2")
    if not 0 < given.get("timeout", 1.0) < math.inf:
        parser.error(f"--timeout={options.timeout}: seconds above 0")
    for name in ("url", "user_url"):
        if given.get(name) and not given[name].startswith(("http://", "https://")):
            parser.error(f"--{name.replace('_', '-')}={given[name]}: must begin with http:// or https://")


def begin(out: Path, options: argparse.Namespace) -> bool:
    """Note what the run in this folder is; False = it was begun before. Raises ValueError for a folder with a finished run, or with
    parts of another one."""
    settings = {key: value for key, value in vars(options).items() if key not in _INDIFFERENT and value is not None}
    settings["checkpoint"] = resolved(options.checkpoint)
    file = out / SETTINGS
    if (out / SCORES).exists():
        raise ValueError(f"--out={out} holds a finished run; name another folder")
    if not file.exists():
        if parts := [name for name in _PARTS if (out / name).exists()]:
            raise ValueError(f"--out={out} holds {parts[0]} of another run; name another folder")
        file.write_text(json.dumps(settings, indent=1), encoding="utf-8")
        return True
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
        changed = sorted(key for key in {*before, *settings} if before.get(key) != settings.get(key))
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f"{file} is damaged; name another folder") from None
    if changed:
        said = ", ".join(f"{key} {before.get(key)!r} is now {settings.get(key)!r}" for key in changed)
        raise ValueError(f"--out={out} holds the beginning of another run ({said}); name another folder")
    print(f"going on with the run in {out}", file=sys.stderr)
    return False


def resolved(checkpoint: str | None) -> str | None:
    """A run's checkpoint as its step folder: the run may have saved others since. Anything else as it is."""
    if not checkpoint:
        return None
    from slca.checkpoint import step_folder

    try:
        return str(step_folder(checkpoint))
    except OSError:
        return checkpoint


class Ended(BaseException):
    """SIGTERM or SIGINT: children are ended on the way out."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Both signals raise Ended, so that what runs in other processes does not outlive the command."""

    def end(number: int, _: Any) -> None:
        raise Ended(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def failed(grader: Grader, error: object, code: int) -> int:
    """Say what is wrong; returns the exit code."""
    print(f"slca.evals.{grader.name}: {error}", file=sys.stderr)
    return code
