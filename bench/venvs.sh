#!/bin/sh
# Virtual environments of the peers that bench/rollout.py is compared to (Python 3.11; one FOLDER, about 3 GB):
#     sh bench/venvs.sh FOLDER
#     python -m bench.rollout --torch FOLDER/torch/bin/python --tunix FOLDER/tunix/bin/python --jax12 FOLDER/jax12/bin/python
# torch first and pinned, so that transformers does not bring a build for CUDA. jax12 needs Python 3.12 (PYTHON312=...).
set -eu
folder=${1:?usage: sh bench/venvs.sh FOLDER}
python=${PYTHON:-python3.11}
mkdir -p "$folder"
"$python" -m venv "$folder/torch"
"$folder/torch/bin/pip" install -q torch==2.13.0
"$folder/torch/bin/pip" install -q transformers==5.24.0
"$python" -m venv "$folder/tunix"
"$folder/tunix/bin/pip" install -q google-tunix==0.1.7
if [ -n "${PYTHON312:-}" ]; then
    "$PYTHON312" -m venv "$folder/jax12"
    "$folder/jax12/bin/pip" install -q "jax>=0.12" flax jaxtyping safetensors optax sentencepiece jinja2 ml-collections
fi
