"""Train a tool-calling policy: cold start, SGLS rollouts, HierR rewards, SLCA credit, sharded updates.

    python -m slca.main --config=configs/tiny.py                       # minutes on two CPU cores
    python -m slca.main --config=configs/tiny.py:grpo --workdir=runs/g  # another algorithm of the table
    python -m slca.main --config=configs/tiny.py --workdir=runs/short --config.train.steps=20

Flags: --config FILE[:VARIANT] (required), --workdir DIR (default runs/<config>-<variant>), --resume / --noresume (the
workdir must hold a run, or none; default: continue what it holds), --allow-config-change (continue although the config differs).
Several processes (the same command on every host, the workdir shared): found by themselves under SLURM, Open MPI and GKE, and on a
TPU VM slice with SLCA_DISTRIBUTED=1; elsewhere --coordinator HOST:PORT (of process 0) --process_id I --num_processes N, or the variables
SLCA_COORDINATOR, ...
Exit codes: 0 finished, or stopped by SIGTERM with a resumable checkpoint; 1 the run failed; 2 the command or the config is wrong;
3 the watchdog ended it (run.watchdog_seconds without movement); 130 a second signal ended it at once.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from absl import app, flags
from ml_collections import config_flags

from slca import command_line

CONFIG = config_flags.DEFINE_config_file("config", None, "config file, with an optional :variant", lock_config=True)
WORKDIR = flags.DEFINE_string("workdir", None, "run folder; default runs/<config>-<variant>")
RESUME = flags.DEFINE_bool("resume", None, "the workdir must hold a run to continue; --noresume: it must hold none")
ALLOW_CHANGE = flags.DEFINE_bool("allow-config-change", False, "continue although the config differs from the stored one")
STORAGE = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EIO,
    errno.ESTALE,
)  # no fault of the program
COORDINATOR = flags.DEFINE_string("coordinator", None, "host:port of process 0, for a run of several processes")
PROCESS_ID = flags.DEFINE_integer("process_id", None, "which of them this is, from 0")
NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "how many there are")


def default_workdir(argv: list[str], algorithm: str) -> Path:
    """runs/<config>-<variant> from the --config flag as typed; without a variant it is that of the config's algorithm."""
    file, variant = command_line.config_file(argv)
    return Path("runs") / f"{Path(file).stem}-{variant or algorithm}"


def use_huge_pages() -> None:
    """Start this process over (same pid, same interpreter options) with glibc asking for huge pages, which it reads only at start.

    Train steps on a CPU allocate big temporaries at every call; without it a third of the time goes to page faults
    (bench/RESULTS.md, section "tiny"). A value that the user set is left alone; other systems ignore the variable. A process
    that is debugged or profiled stays as it is: starting over, it would lose its breakpoints and the connection to its debugger.
    """
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ and not watched():
        environment = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def watched() -> bool:
    """Whether a debugger, a profiler or a coverage tool looks at this process."""
    monitoring: Any = getattr(sys, "monitoring", None)  # where Python 3.12 and newer have theirs: six places
    return bool(sys.gettrace() or sys.getprofile() or (monitoring and any(map(monitoring.get_tool, range(6)))))


def main(argv: list[str]) -> int:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it would say that PyTorch is missing, which is as it should be
    from slca import processes
    from slca.checkpoint import SaveError
    from slca.train import run
    from slca.validate import ConfigError

    if len(argv) > 1:
        print(f"slca.main: unknown arguments {argv[1:]}; see --help", file=sys.stderr)
        return 2
    if CONFIG.value is None:
        print("slca.main: --config=FILE is missing, for instance --config=configs/tiny.py", file=sys.stderr)
        return 2
    try:
        CONFIG.value.to_dict()
    except OSError as error:  # absl keeps the failure to load and raises it at the first look
        print(f"slca.main: --config: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    workdir = Path(WORKDIR.value) if WORKDIR.value else default_workdir(sys.argv, CONFIG.value.credit.algorithm)
    try:
        processes.start(COORDINATOR.value, PROCESS_ID.value, NUM_PROCESSES.value)
        return run(CONFIG.value, workdir, resume=RESUME.value, allow_config_change=ALLOW_CHANGE.value)
    except (ConfigError, processes.Refused) as error:
        print(f"slca.main: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in STORAGE and not isinstance(error, SaveError):
            raise
        hint = (
            ""
            if isinstance(error, SaveError)
            else f"; mend it, and the same command continues from the last checkpoint in {workdir}"
        )
        print(f"slca.main: {error}{hint}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # the second signal: nothing is waited for, neither tools nor a save in flight
        print("slca.main: interrupted; the same command continues from the last checkpoint", file=sys.stderr, flush=True)
        os._exit(130)
    except Exception:
        if processes.count() == 1:
            raise
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # leaving in good order would wait for the other processes, which wait for this one


def parse(argv: list[str]) -> list[str]:
    """See `slca.command_line.parse`."""
    return command_line.parse(argv, "slca.main")


if __name__ == "__main__":
    if {"--help", "-h", "-help"} & set(sys.argv):
        print(__doc__)
        sys.exit(0)
    use_huge_pages()
    app.run(main, flags_parser=parse)
