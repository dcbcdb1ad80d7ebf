#!/usr/bin/env bash
# A TPU slice on GKE through xpk (pip install xpk), which builds the image from this checkout and submits a JobSet:
#
#   CLUSTER=NAME TPU_TYPE=v5p-128 launch/xpk.sh configs/7b.py[:VARIANT] [flags of slca.main ...] [--dry-run]
#
# IMAGE is the base image (default python:3.12), WORKLOAD the job's name (default slca), SLICES their number (default 1).
# PROJECT and ZONE are those of gcloud unless set. Without xpk: launch/jobset.yaml.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
set -- ${words[@]+"${words[@]}"}
need_config "$@"
[ -n "${CLUSTER:-}" ] || fail "set CLUSTER to the name of the GKE cluster"
[ -n "${TPU_TYPE:-}" ] || fail "set TPU_TYPE to the kind of slice, for instance v5p-128"
run xpk workload create --cluster="$CLUSTER" --workload="${WORKLOAD:-slca}" --tpu-type="$TPU_TYPE" --num-slices="${SLICES:-1}" \
  ${PROJECT:+--project="$PROJECT"} ${ZONE:+--zone="$ZONE"} --base-docker-image="${IMAGE:-python:3.12}" --script-dir=. \
  --command="pip install -q -e '.[tpu]' && exec $(quoted python -m slca.main --config="$1" "${@:2}")"
