#!/usr/bin/env bash
# One machine, whatever devices it has:
#
#   launch/local.sh configs/tiny.py[:VARIANT] [flags of slca.main ...] [--dry-run]
#
# PYTHON names the interpreter (default python).
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
set -- ${words[@]+"${words[@]}"}
need_config "$@"
run "${PYTHON:-python}" -m slca.main --config="$1" "${@:2}"
