"""Small real tokenizers of every supported family, each as `transformers` sees it and as slca loads it.

Qwen and SmolLM2: the cut-down real tokenizers of `tests/golden`. Llama and Gemma: the Qwen pipeline with their control tokens
and with templates that have the structure of theirs (single calls, JSON results, roles that alternate, no tools).
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from slca.chat.template import Template
from slca.chat.tokenizer import load

GOLDEN = Path(__file__).parents[1] / "golden"
TOKENIZERS = GOLDEN / "tokenizers"
HERE = Path(__file__).parent

# name -> options of Template
OPTIONS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "smollm2": {},
    "qwen2_5": {},
    "qwen3": {"history": "append"},
    "qwen3_thinking": {"history": "append", "thinking": True},
    "qwen3_instruct_2507": {},
    "llama": {"wire": "llama_json"},
    "gemma": {},
}
KEEPS_PREFIXES = ["tiny", "smollm2", "qwen2_5", "qwen3_instruct_2507", "llama", "gemma"]
PARALLEL = [name for name in OPTIONS if name != "llama"]
NATIVE = [name for name in OPTIONS if name not in ("tiny", "smollm2", "gemma")]  # tools in the template, as transformers has it
LLAMA_CONTROL = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>")
GEMMA_CONTROL = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
GEMMA_TEXT = ("\n\n", "\n\n\n", "<b>", "</b>")  # added tokens that are ordinary text


@cache
def transformers_tokenizer(name: str) -> Any:
    """The family's tokenizer as a `transformers` object with its chat template."""
    from transformers import AutoTokenizer

    if name == "smollm2":
        return AutoTokenizer.from_pretrained(str(TOKENIZERS / "smollm2"))
    base = AutoTokenizer.from_pretrained(str(TOKENIZERS / "qwen3"))
    if name in ("qwen3", "qwen3_thinking"):
        return base
    if name == "qwen3_instruct_2507":
        base.chat_template = (TOKENIZERS / f"{name}.jinja").read_text(encoding="utf-8")
        return base
    if name == "qwen2_5":
        drop = {"<tool_response>", "</tool_response>", "<think>", "</think>"}
        return _rebuilt(base, drop=drop, template=(TOKENIZERS / "qwen2_5.jinja").read_text(encoding="utf-8"))
    template = (HERE / f"{name}_like.jinja").read_text(encoding="utf-8")
    if name == "llama":
        return _rebuilt(base, add=LLAMA_CONTROL, template=template, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>")
    return _rebuilt(base, add=GEMMA_CONTROL, text=GEMMA_TEXT, template=template, bos_token="<bos>", eos_token="<eos>")


def _rebuilt(
    base: Any, *, template: str, drop: set[str] | None = None, add: tuple = (), text: tuple = (), **special: str
) -> Any:
    """`base` with other added tokens; `add` replaces them all."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    spec = json.loads(base.backend_tokenizer.to_str())
    old = {token["content"] for token in spec["added_tokens"]}
    spec["added_tokens"] = [token for token in spec["added_tokens"] if not add and token["content"] not in (drop or ())]
    kept = {token["content"] for token in spec["added_tokens"]}
    spec["model"]["vocab"] = {token: i for token, i in spec["model"]["vocab"].items() if token not in old - kept}
    first = 200_000
    for index, content in enumerate((*add, *text), first):
        spec["model"]["vocab"][content] = index
        flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=content in add)
        spec["added_tokens"].append({"id": index, "content": content, **flags})
    names = special or {key: value for key, value in base.special_tokens_map.items() if isinstance(value, str)}
    built = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(spec)), **names)
    built.chat_template = template
    return built


@cache
def template(name: str) -> Template:
    """The family's `Template` with the options of `OPTIONS`."""
    return Template(load("tiny") if name == "tiny" else transformers_tokenizer(name), **OPTIONS[name])


def rendered(name: str, messages: list[Any], tools: list[Any] | None, *, generation_prompt: bool = True) -> list[int]:
    """The ids `transformers` gives: the reference for harmless content."""
    options: dict[str, Any] = {"date_string": "26 Jul 2024", "enable_thinking": OPTIONS[name].get("thinking", False)}
    return list(
        transformers_tokenizer(name).apply_chat_template(
            messages, tools=tools or None, add_generation_prompt=generation_prompt, tokenize=True, return_dict=False, **options
        )
    )
