#!/usr/bin/env bash
# One machine, whatever it has: ./launch/local.sh [--dry-run] configs/tiny.py[:variant] [flags of slca.main ...]
set -euo pipefail
dry=""
[ "${1:-}" = "--dry-run" ] && { dry=echo; shift; }
config=${1:?usage: launch/local.sh [--dry-run] CONFIG [flags]}
shift
$dry python -m slca.main --config="$config" "$@"
