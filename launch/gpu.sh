#!/usr/bin/env bash
# All GPUs of one host:
#
#   launch/gpu.sh configs/0_5b.py[:VARIANT] [flags of slca.main ...] [--dry-run]
#
# Install first: pip install -e '.[cuda]'. PYTHON names the interpreter (default python); XLA_PYTHON_CLIENT_MEM_FRACTION is the
# share of the memory that JAX takes at start (default 0.92).
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
set -- ${words[@]+"${words[@]}"}
need_config "$@"
run env "XLA_PYTHON_CLIENT_MEM_FRACTION=${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.92}" \
  "${PYTHON:-python}" -m slca.main --config="$1" "${@:2}"
