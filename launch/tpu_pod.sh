#!/usr/bin/env bash
# All workers of a TPU VM pod slice: TPU=name ZONE=zone ./launch/tpu_pod.sh [--dry-run] configs/7b.py[:variant] [flags ...]
# The repository and the weights must lie in ~/slca on every worker, installed with pip install -e '.[tpu]'.
set -euo pipefail
dry=""
[ "${1:-}" = "--dry-run" ] && { dry=echo; shift; }
config=${1:?usage: TPU=name ZONE=zone launch/tpu_pod.sh [--dry-run] CONFIG [flags]}
shift
: "${TPU:?set TPU to the name of the slice}" "${ZONE:?set ZONE to its zone}"
printf -v flags '%q ' "$@"
[ $# -gt 0 ] || flags=""
$dry gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all \
  --command="cd ~/slca && python -m slca.main --config=$config $flags"
