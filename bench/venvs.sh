#!/bin/sh
# Virtual environments of the peers that bench/run.py compares with (Python 3.11; one FOLDER, about 3 GB):
#     sh bench/venvs.sh FOLDER
#     python -m bench.run step --venvs FOLDER
# torch first and pinned, so that transformers does not bring a build for CUDA. jax12 needs Python 3.12 (PYTHON312=...).
# What is there already is left as it is.
set -eu
folder=${1:?usage: sh bench/venvs.sh FOLDER}
python=${PYTHON:-python3.11}
mkdir -p "$folder"

make() { # NAME PYTHON PACKAGES...: one environment, finished when its mark is there
    name=$1 interpreter=$2
    shift 2
    [ -e "$folder/$name/.complete" ] && return 0
    "$interpreter" -m venv "$folder/$name"
    for packages in "$@"; do
        # unquoted: a step of several packages is split into them
        # shellcheck disable=SC2086
        "$folder/$name/bin/pip" install -q $packages
    done
    touch "$folder/$name/.complete"
}

make torch "$python" "torch==2.13.0" "transformers==5.24.0 trl==1.16.0"
make tunix "$python" "google-tunix==0.1.7"
if [ -n "${PYTHON312:-}" ]; then
    make jax12 "$PYTHON312" "jax>=0.12 flax jaxtyping safetensors optax sentencepiece jinja2 ml-collections"
fi
