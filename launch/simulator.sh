#!/usr/bin/env bash
# The servers that configs/7b.py asks, with vLLM (pip install vllm, in an environment of its own), one a call:
#
#   launch/simulator.sh simulator|judge [flags of vllm serve ...] [--dry-run]
#
# simulator: the model that plays the tools, port 8001. judge: the model that grades summaries, port 8002. Models and widths
# are those of the paper; another one is set by MODEL, NAME (as the config says it), PORT and GPUS (tensor parallel width):
#
#   MODEL=Qwen/Qwen3-8B NAME=qwen3-8b GPUS=1 launch/simulator.sh simulator
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
set -- ${words[@]+"${words[@]}"}
case "${1:-}" in
  simulator) model=Qwen/Qwen3-235B-A22B-Instruct-2507 port=8001 length=32768 ;;
  judge) model=openai/gpt-oss-120b port=8002 length=32768 ;;
  "") fail "say simulator or judge" ;;
  *) fail "say simulator or judge (got $1)" ;;
esac
model=${MODEL:-$model}
run vllm serve "$model" --served-model-name "${NAME:-${model##*/}}" --port "${PORT:-$port}" \
  --tensor-parallel-size "${GPUS:-8}" --max-model-len "$length" --max-num-seqs 300 "${@:2}"
