#!/usr/bin/env bash
# The same command on every worker of a TPU VM slice, which find each other through the metadata server:
#
#   TPU=NAME ZONE=ZONE launch/tpu_pod.sh configs/7b.py[:VARIANT] [flags of slca.main ...] [--dry-run]
#
# Every worker needs this repository and the weights in ~/slca, installed with pip install -e '.[tpu]', and a --workdir that all of
# them see (a mounted disk). PROJECT names another Google Cloud project than the default one.
# SLCA_DISTRIBUTED=1 is what has them look: no variable of a TPU VM says that there are others.
# Keys (SLCA_SIMULATOR_KEY, SLCA_JUDGE_KEY, WANDB_API_KEY) belong in ~/slca.env on the workers, never on this line.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
set -- ${words[@]+"${words[@]}"}
need_config "$@"
[ -n "${TPU:-}" ] || fail "set TPU to the name of the slice"
[ -n "${ZONE:-}" ] || fail "set ZONE to the zone of the slice"
# What the worker's shell reads: quoted once here, and once more by `run` for the shell on this side.
remote="cd ~/slca && { [ ! -f ~/slca.env ] || { set -a; . ~/slca.env; set +a; }; } && SLCA_DISTRIBUTED=1 $(quoted python -m slca.main --config="$1" "${@:2}")"
run gcloud compute tpus tpu-vm ssh "$TPU" ${PROJECT:+--project="$PROJECT"} --zone="$ZONE" --worker=all --command="$remote"
