#!/usr/bin/env bash
# The two servers of configs/7b.py with vLLM: ./launch/simulator.sh [--dry-run] simulator|judge
set -euo pipefail
dry=""
[ "${1:-}" = "--dry-run" ] && { dry=echo; shift; }
case "${1:?usage: launch/simulator.sh [--dry-run] simulator|judge}" in
  simulator) $dry vllm serve Qwen/Qwen3-235B-A22B-Instruct-2507 --served-model-name Qwen3-235B-A22B-Instruct-2507 \
    --port 8001 --tensor-parallel-size 8 --max-model-len 32768 --max-num-seqs 300 ;;
  judge) $dry vllm serve openai/gpt-oss-120b --served-model-name gpt-oss-120b --port 8002 --tensor-parallel-size 8 --max-num-seqs 300 ;;
  *) echo "launch/simulator.sh: say simulator or judge" >&2; exit 2 ;;
esac
