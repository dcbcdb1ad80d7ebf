#!/usr/bin/env bash
# One machine, whatever it has: ./launch/local.sh [--dry-run] configs/tiny.py[:variant] [flags of slca.main ...]
set -euo pipefail
dry=""
[ "${1:-}" = "--dry-run" ] && { dry=echo; shift; }
config=${1:?usage: launch/local.sh [--dry-run] CONFIG [flags]}
shift
# Huge pages make the allocation-heavy CPU train step up to 1.5x faster (glibc reads this before the process starts).
$dry env GLIBC_TUNABLES=glibc.malloc.hugetlb=1 python -m slca.main --config="$config" "$@"
