"""Write a trained policy as a Hugging Face folder that `transformers` (and servers built on it) load.

    python -m slca.export runs/tiny-slca out/tiny                        # the newest checkpoint of a run
    python -m slca.export runs/7b-slca/checkpoints/50 out/7b --dtype bfloat16

RUN is a workdir, its checkpoints folder, a step folder, a Hugging Face folder or gguf:NAME; DIR must be new or empty. DIR holds
config.json, safetensors, generation_config.json, the tokenizer's files with the chat template, and chat.json (how the policy
was trained to write calls), which `--checkpoint=DIR` of the other commands reads. LoRA adapters are merged.
Exit codes: 0 written; 2 the command is wrong or there is nothing to export; 1 writing failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slca.restore import Policy


def export(policy: Policy, folder: str | os.PathLike[str]) -> Path:
    """Write `policy` to `folder`, whole or not at all. Raises ValueError when the folder holds anything already."""
    from slca.chat import hf_files
    from slca.policy import weights

    folder = Path(folder)
    check_free(folder)
    stops = tuple(dict.fromkeys((*policy.template.stop_ids, *policy.model.stop_ids)))
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        weights.save(temporary, dataclasses.replace(policy.model, stop_ids=stops), policy.params)
        hf_files.write(policy.tokenizer, temporary)
        if policy.config.chat.template:  # not the one among the tokenizer's files
            (temporary / "chat_template.jinja").write_text(policy.tokenizer.chat_template, encoding="utf-8")
        _json(temporary / "generation_config.json", _generation(policy, stops))
        chat = policy.config.chat.to_dict()
        _json(temporary / "chat.json", {name: value for name, value in chat.items() if name not in ("tokenizer", "template")})
        for file in temporary.rglob("*.safetensors"):  # written for the owner alone; the others follow the umask
            file.chmod((temporary / "config.json").stat().st_mode)
        if folder.exists():
            folder.rmdir()
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def check_free(folder: Path) -> None:
    """Raises ValueError when `folder` cannot take an export, before anything is loaded for it."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists and is not an empty folder; name another, or delete it first")


def _generation(policy: Policy, stops: tuple[int, ...]) -> dict[str, Any]:
    """What the model came with, and every id that ends a turn: a sampler that knows one of them only runs on."""
    from slca.chat.folder_json import read_object

    file = Path(policy.tokenizer.name) / "generation_config.json"
    before = read_object(file) if file.is_file() else {"do_sample": True}
    return before | {"eos_token_id": list(stops), "pad_token_id": int(policy.tokenizer.pad_id)}


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    assert __doc__
    parser = argparse.ArgumentParser("slca.export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", help="workdir, checkpoints folder, step folder, Hugging Face folder or gguf:NAME")
    parser.add_argument("dir", metavar="DIR", type=Path, help="folder to write; new or empty")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="of the tensors; default: those of the checkpoint")
    args = parser.parse_args(argv)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it would say that PyTorch is missing, which is as it should be
    from slca.restore import policy_of

    try:
        check_free(args.dir)
        policy = policy_of(args.run, dtype=args.dtype)
    except ValueError as error:
        print(f"slca.export: {error}", file=sys.stderr)
        return 2
    try:
        export(policy, args.dir)
    except (OSError, ValueError) as error:
        print(f"slca.export: {args.dir}: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
        return 1
    count = sum(file.stat().st_size for file in args.dir.iterdir())
    print(f"{args.dir}: {policy.model.family}, {count / 1e6:.1f} MB" + (f", step {policy.step}" if policy.step >= 0 else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
