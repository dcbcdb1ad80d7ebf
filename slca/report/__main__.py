"""`python -m slca.report WORKDIR [WORKDIR2 ...] [--out=FILE]`: the report of a run, or runs side by side.

Runs whose configs differ in the seed alone are drawn as one line with a 95 % interval.
"""

import argparse
import sys

from slca.report.page import write_report


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m slca.report", description=__doc__.splitlines()[0])
    parser.add_argument("workdir", nargs="+", help="run folder(s): the first one names the default output")
    parser.add_argument("--out", help="file to write (default: WORKDIR/report.html, or WORKDIR/comparison.html for several)")
    args = parser.parse_args(argv)
    out = args.out or (f"{args.workdir[0]}/comparison.html" if len(args.workdir) > 1 else None)
    try:
        print(write_report(*args.workdir, out=out))
    except FileNotFoundError as error:
        print(f"slca.report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
