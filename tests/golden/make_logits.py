"""Make logits.npz: what transformers + torch compute in float32 for the recipe's tiny models.

pip install torch transformers && python -m tests.golden.make_logits
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

from tests.golden import recipe


def main() -> None:
    arrays = {}
    for name, hf in recipe.CONFIGS.items():
        config = transformers.AutoConfig.for_model(**hf)
        model = transformers.AutoModelForCausalLM.from_config(config)
        tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
        shapes = {key: list(value.shape) for key, value in model.state_dict().items() if key not in tied}
        with tempfile.TemporaryDirectory() as folder:
            recipe.write_folder(Path(folder), name, {key: tuple(shape) for key, shape in shapes.items()})
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        model.eval()
        rows = torch.tensor(recipe.tokens(), dtype=torch.long)
        with torch.no_grad():
            logits = model(rows).logits.numpy()
            greedy = rows
            for _ in range(24):  # the plainest loop, no cache
                greedy = torch.cat([greedy, model(greedy).logits[:, -1:].argmax(-1)], 1)
        arrays[f"{name}/shapes"] = json.dumps(shapes)
        arrays[f"{name}/logits"] = logits.astype(np.float32)
        arrays[f"{name}/greedy"] = greedy[:, rows.shape[1] :].numpy().astype(np.int32)
        top = np.sort(logits, -1)
        print(f"{name}: logits spread {logits.std():.2f}, smallest top-2 gap {(top[..., -1] - top[..., -2]).min():.4f}")
    np.savez_compressed(recipe.GOLDEN, **arrays)


if __name__ == "__main__":
    main()
