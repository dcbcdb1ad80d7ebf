#!/bin/sh
# One command on one GPU: decode tokens/s and share of memory bandwidth, train MFU, a whole step, peak memory; 0.5B and 7B shapes.
#     sh bench/gpu.sh [--dry] [--models=0.5B] [--parts=decode,train] [--out=FILE] ...      (python -m bench.gpu --help)
# JAX takes 75 % of the memory unless told: a 7B update needs most of it.
set -eu
cd "$(dirname "$0")/.."
export XLA_PYTHON_CLIENT_MEM_FRACTION="${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.95}"
case " $* " in # toy programs: compiling them well takes longer than anything else
*" --dry "*) export XLA_FLAGS="${XLA_FLAGS:-} --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true" ;;
esac
exec "${PYTHON:-python}" -m bench.gpu "$@"
