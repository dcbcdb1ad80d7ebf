#!/usr/bin/env bash
# All GPUs of one host: ./launch/gpu.sh [--dry-run] configs/0_5b.py[:variant] [flags of slca.main ...]
# Install first: pip install -e '.[cuda]'
set -euo pipefail
dry=""
[ "${1:-}" = "--dry-run" ] && { dry=echo; shift; }
config=${1:?usage: launch/gpu.sh [--dry-run] CONFIG [flags]}
shift
$dry env XLA_PYTHON_CLIENT_MEM_FRACTION=0.92 python -m slca.main --config="$config" "$@"
