"""Write the report of a run, or compare several runs, as one HTML file that opens without a network.

    python -m slca.report runs/tiny-slca                                # runs/tiny-slca/report.html
    python -m slca.report runs/slca-0 runs/slca-1 runs/grpo-0           # runs/slca-0/comparison.html
    python -m slca.report runs/slca-0 runs/grpo-0 --out=slca_grpo.html

A run's report shows scores before and after, curves, and the stored episodes token by token under each algorithm. In a
comparison, runs whose configs differ in run.seed alone are drawn as one line: their mean and its 95 % interval.
Exit codes: 0 written; 2 the command is wrong or a run folder is missing.
"""

from __future__ import annotations

import argparse
import sys


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slca.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workdir", nargs="+", help="run folders; the first one names the default output")
    parser.add_argument(
        "--out", metavar="FILE", help="file to write (default: WORKDIR/report.html; of several runs WORKDIR/comparison.html)"
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    options = arguments().parse_args(argv)
    from slca.report.page import write_report  # imports jax, which --help should not wait for

    out = options.out or (f"{options.workdir[0]}/comparison.html" if len(options.workdir) > 1 else None)
    try:
        print(write_report(*options.workdir, out=out))
    except OSError as error:
        print(f"slca.report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
